"""A proxy between a client and a broker that fails on command.

    with Proxy() as proxy, Broker(behind=proxy.port) as broker:
        proxy.connect(broker.address("BEHIND"))
        ... clients connect to proxy.address ...

It understands as much of Kafka's protocol as it takes to tell one request from another: each is a length, the number of what is asked, a
version and the number that the answer begins with.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self, TypeVar

from tests.support.kafka.node import free_ports

PRODUCE, METADATA, INIT_PRODUCER_ID, END_TXN = 0, 3, 22, 26

T = TypeVar("T")
Fate = Literal["lost", "halved", "unanswered", "stalled", "failed"]

_WITHIN = 60.0


class Fault:
    """A failure of the next request of a kind.

    - `lost`: the broker never gets it;
    - `halved`: the broker gets the first half of it;
    - `unanswered`: the broker does what it is asked to, and its answer is lost;
    - `stalled`: the proxy stalls, as by `Proxy.stall`, with this request;
    - `failed`: the broker never gets it, and the answer is UNKNOWN_SERVER_ERROR. Only of END_TXN.

    The connection is reset, in each case but the last two.
    """

    def __init__(self, api: int, fate: Fate) -> None:
        self.api = api
        self.fate = fate
        self._happened = threading.Event()

    def wait(self, timeout: float = _WITHIN) -> None:
        """Return when it has happened."""
        if not self._happened.wait(timeout):
            raise TimeoutError(f"no request of kind {self.api} was {self.fate} within {timeout:g} seconds")

    @property
    def happened(self) -> bool:
        return self._happened.is_set()

    def done(self) -> None:
        self._happened.set()


class Proxy:
    """Listens at `address` and connects clients to a broker. Requests and answers pass as wholes.

    Attributes:
        port: where it listens, from the beginning to the end.
    """

    def __init__(self) -> None:
        [self.port] = free_ports(1)
        self._broker: tuple[str, int] | None = None
        self._links: set[_Link] = set()
        self._faults: list[Fault] = []
        self._counted = threading.Condition()
        self._requests: Counter[int] = Counter()
        self._open = True
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._flowing: asyncio.Event
        self._server: asyncio.Server

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return f"127.0.0.1:{self.port}"

    def connect(self, address: str) -> None:
        """Pass those who come from now on to a broker."""
        host, _, port = address.partition(":")
        self._broker = (host, int(port))

    def cut(self) -> None:
        """Reset all connections. New ones are let through."""
        self._call(self._cut)

    def refuse(self) -> None:
        """Reset all connections, and new ones too, until `resume`."""
        self._open = False
        self.cut()

    def stall(self) -> None:
        """Let nothing through, in either direction, until `resume`. Connections stay open, new ones are accepted."""
        self._call(self._flowing.clear)

    def resume(self) -> None:
        """Forward everything again, stalled data first. Pending faults are dropped."""
        self._open = True
        self._faults.clear()
        self._call(self._flowing.set)

    def next(self, api: int, fate: Fate) -> Fault:
        """Let something happen to the next request of a kind."""
        fault = Fault(api, fate)
        self._faults.append(fault)
        return fault

    def passed(self, api: int) -> int:
        """How many requests of a kind went to the broker so far."""
        return self._requests[api]

    def wait_for(self, api: int, count: int = 1, timeout: float = _WITHIN) -> None:
        """Return when so many more requests of a kind have gone to the broker."""
        with self._counted:
            wanted = self._requests[api] + count
            if not self._counted.wait_for(lambda: self._requests[api] >= wanted, timeout):
                raise TimeoutError(f"{count} requests of kind {api} did not come within {timeout:g} seconds")

    def close(self) -> None:
        """End all connections, and be gone."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_WITHIN)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WITHIN)
        self._loop.close()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(_WITHIN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- in the loop's thread -------------------------------------------------------------------------------------

    def _call(self, function: Callable[[], T]) -> T:
        async def called() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(_WITHIN)

    async def _start(self) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _end(self) -> None:
        self._server.close()
        self._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cut(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not self._open or self._broker is None:
                raise ConnectionRefusedError
            broker = await asyncio.open_connection(*self._broker)
        except OSError:
            _reset(writer)
            return
        link = _Link((reader, writer), broker)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests_of(link))
                group.create_task(self._answers_of(link))
        except* (OSError, EOFError):
            pass
        finally:
            self._links.discard(link)
            link.reset()

    async def _requests_of(self, link: _Link) -> None:
        while True:
            request = await _message(link.client[0])
            api, version, number = struct.unpack_from(">hhi", request, 4)
            await self._flowing.wait()
            fault = self._fault(api)
            if fault is not None and fault.fate == "failed":
                # The client may check for the fault as soon as it has the answer.
                fault.done()
                link.client[1].write(_failed_end(version, number))
                continue
            if fault is not None and fault.fate == "unanswered":
                link.unanswered[number] = fault
            elif fault is not None and fault.fate == "stalled":
                self._flowing.clear()
                fault.done()
                await self._flowing.wait()
            elif fault is not None:
                if fault.fate == "halved":
                    link.broker[1].write(request[: len(request) // 2])
                    await link.broker[1].drain()
                fault.done()
                raise ConnectionResetError
            link.broker[1].write(request)
            await link.broker[1].drain()
            with self._counted:
                self._requests[api] += 1
                self._counted.notify_all()

    async def _answers_of(self, link: _Link) -> None:
        while True:
            answer = await _message(link.broker[0])
            (number,) = struct.unpack_from(">i", answer, 4)
            await self._flowing.wait()
            if (fault := link.unanswered.get(number)) is not None:
                fault.done()
                raise ConnectionResetError
            link.client[1].write(answer)
            await link.client[1].drain()

    def _fault(self, api: int) -> Fault | None:
        for fault in self._faults:
            if fault.api == api:
                self._faults.remove(fault)
                return fault
        return None


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """A client's connection and the one to the broker that belongs to it."""

    def __init__(self, client: Stream, broker: Stream) -> None:
        self.client = client
        self.broker = broker
        self.unanswered: dict[int, Fault] = {}

    def reset(self) -> None:
        _reset(self.client[1])
        _reset(self.broker[1])


def _failed_end(version: int, number: int) -> bytes:
    """The answer to END_TXN: no throttling, UNKNOWN_SERVER_ERROR. From version 3 on header and body end with tagged fields."""
    tags = b"\x00" if version >= 3 else b""
    answer = struct.pack(">i", number) + tags + struct.pack(">ih", 0, -1) + tags
    return struct.pack(">i", len(answer)) + answer


async def _message(reader: asyncio.StreamReader) -> bytes:
    length = await reader.readexactly(4)
    return length + await reader.readexactly(int.from_bytes(length))


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a network does that has forgotten it, not as a program does that is done with it."""
    if writer.is_closing():
        return
    connection: socket.socket = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
