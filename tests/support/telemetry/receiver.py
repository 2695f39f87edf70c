"""A real HTTP server that takes traces and run events, or refuses them, or does not answer."""

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

WITHIN = 30.0

Mood = Literal["good", "refusing", "failing", "hanging"]
_STATUS = {"good": 200, "refusing": 400, "failing": 503}


@dataclass
class Span:
    name: str
    trace: str
    id: str
    parent: str
    begin: int
    end: int
    attributes: dict[str, Any]
    failed: bool


@dataclass
class Receiver:
    """Runs in a thread of its own from here to the end of a `with`.

    Attributes:
        mood: how it answers from now on.
        spans: of the traces that it took.
        resource: the attributes of the process.
        events: the run events that it took.
        headers: of the last request.
        requests: how many came, whatever became of them.
    """

    mood: Mood = "good"
    spans: list[Span] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    url: str = ""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="receiver")
        self._thread.start()
        assert ready.wait(WITHIN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.mood = "good"  # requests that hang end
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WITHIN)

    def _run(self, ready: threading.Event) -> None:
        async def start() -> web.AppRunner:
            application = web.Application(client_max_size=64 << 20)
            application.add_routes([web.post("/v1/traces", self._traces), web.post("/api/v1/lineage", self._lineage)])
            runner = web.AppRunner(application, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            return runner

        asyncio.set_event_loop(self._loop)
        runner = self._loop.run_until_complete(start())
        ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(asyncio.sleep(0.1))
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _answer(self, request: web.Request, take: Callable[[bytes], None]) -> web.Response:
        self.requests += 1
        self.headers = {name.lower(): value for name, value in request.headers.items()}
        body = await request.read()
        while self.mood == "hanging":
            await asyncio.sleep(0.05)
        if self.mood == "good":
            take(gzip.decompress(body) if request.headers.get("Content-Encoding") == "gzip" else body)
        return web.Response(status=_STATUS[self.mood])

    async def _traces(self, request: web.Request) -> web.Response:
        return await self._answer(request, self._take_spans)

    async def _lineage(self, request: web.Request) -> web.Response:
        return await self._answer(request, lambda body: self.events.append(json.loads(body)))

    def _take_spans(self, body: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource = _values(group.resource.attributes)
            for each in (span for scope in group.scope_spans for span in scope.spans):
                ids = each.trace_id.hex(), each.span_id.hex(), each.parent_span_id.hex()
                times = each.start_time_unix_nano, each.end_time_unix_nano
                self.spans.append(Span(each.name, *ids, *times, _values(each.attributes), each.status.code == 2))


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def until(condition: Callable[[], bool], timeout: float = WITHIN) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)
