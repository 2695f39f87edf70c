"""A proxy in front of an HTTP server: it counts requests, delays each, and fails them on command."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import unquote, urlsplit

Kind = Literal["answer", "reset", "lost", "truncate", "stall"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: its method, its path without the bucket, its query, the bytes it asks for."""

    method: str
    path: str
    query: str
    range: str
    key: str = field(default="", repr=False)
    signed: str = ""

    @property
    def time(self) -> datetime:
        """When it was signed."""
        return datetime.strptime(self.signed, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)


@dataclass(slots=True)
class Fault:
    """A failure of the next `times` requests for which `concerns` is true.

    Attributes:
        kind: `answer`: with `status`, `body` and `headers`, without asking the server. `reset`: the connection ends before there is an
            answer. `lost`: the same, after the server did as it was asked. `truncate`, `stall`: half the body, and then the end or nothing.
    """

    kind: Kind
    times: int = 1
    status: int = 503
    code: str = "SlowDown"
    headers: dict[str, str] = field(default_factory=dict)
    concerns: Callable[[Asked], bool] = lambda asked: True
    message: str = "said the proxy"

    def answer(self, method: str) -> bytes:
        body = (
            f"<Error><Code>{self.code}</Code><Message>{self.message}</Message></Error>".encode() if self.code else b""
        )
        lines = [f"HTTP/1.1 {self.status} Fault", f"Content-Length: {len(body)}", "Content-Type: application/xml"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + (b"" if method == "HEAD" else body)


class Proxy:
    """Forwards to `url`.

    Attributes:
        delay: seconds that every request takes longer.
        asked: the requests so far.
        faults: those to come.
    """

    def __init__(self, url: str, delay: float = 0.0) -> None:
        parts = urlsplit(url)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self.delay = delay
        self.asked: list[Asked] = []
        self.faults: list[Fault] = []
        self.port = 0
        self._serving: set[asyncio.Task[None] | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def count(self, method: str = "", containing: str = "") -> int:
        """How many requests there were."""
        return sum(asked.method.startswith(method) and containing in asked.path for asked in self.asked)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        # Once a client has closed its end, asyncio keeps only weak references to the task that waits for the server.
        task = asyncio.current_task()
        self._serving.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                asked, headers = _parsed(head)
                if headers.get("expect", "").lower() == "100-continue":
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:"))
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.asked.append(asked)
                if self.delay:
                    await asyncio.sleep(self.delay)
                fault = self._fault(asked)
                if fault is not None and fault.kind == "answer":
                    writer.write(fault.answer(asked.method))
                    continue
                if fault is not None and fault.kind == "reset":
                    _reset(writer)
                    return
                if upstream is None:
                    upstream = await asyncio.open_connection(*self._upstream, limit=1 << 20)
                upstream[1].write(head + body)
                if not await self._answer(upstream[0], writer, asked, fault):
                    return
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            return
        finally:
            for end in (writer, *(upstream[1:] if upstream else ())):
                end.close()
            self._serving.discard(task)

    def _fault(self, asked: Asked) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and fault.concerns(asked):
                fault.times -= 1
                return fault
        return None

    async def _answer(
        self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: Asked, fault: Fault | None
    ) -> bool:
        head = await upstream.readuntil(b"\r\n\r\n")
        _, headers = _parsed(head, answer=True)
        left = 0 if asked.method == "HEAD" else int(headers.get("content-length", 0))
        if fault is not None and fault.kind == "lost":
            await upstream.readexactly(left)
            _reset(writer)
            return False
        writer.write(head)
        if asked.method != "HEAD" and headers.get("transfer-encoding", "").lower() == "chunked":
            await _chunks(upstream, writer)
        if fault is not None:
            writer.write(await upstream.readexactly(left // 2))
            await writer.drain()
            if fault.kind == "stall":
                await asyncio.sleep(3600)
            return False
        while left:
            data = await upstream.read(min(left, 1 << 20))
            if not data:
                return False
            left -= len(data)
            writer.write(data)
            await writer.drain()
        return headers.get("connection", "").lower() != "close"


def _parsed(head: bytes, *, answer: bool = False) -> tuple[Asked, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if answer:
        return Asked("", "", "", ""), headers
    method, target, _ = first.split(" ", 2)
    path, _, query = target.partition("?")
    inside = unquote(path).lstrip("/").partition("/")[2]
    return Asked(
        method, inside, query, headers.get("range", ""), headers.get("authorization", ""), headers.get("x-amz-date", "")
    ), headers


async def _chunks(upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        size = await upstream.readuntil(b"\r\n")
        data = await upstream.readexactly(int(size, 16) + 2)
        writer.write(size + data)
        if int(size, 16) == 0:
            return


def _reset(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextmanager
def proxied(url: str, delay: float = 0.0) -> Iterator[Proxy]:
    """A proxy in a thread of its own."""
    proxy = Proxy(url, delay)
    loop = asyncio.new_event_loop()

    async def start() -> asyncio.Server:
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 20)
        proxy.port = server.sockets[0].getsockname()[1]
        return server

    async def stop(server: asyncio.Server) -> None:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)

    server = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(stop(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        with contextlib.suppress(RuntimeError):
            loop.close()
