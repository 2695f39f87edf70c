"""The faults of a run and their rates, the processes that they hit, and the trace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from cdfd.errors import SinkError

RATES = {
    "storage: transient": 0.04,
    "storage: denied": 0.004,
    "storage: slow": 0.03,
    "storage: listed, not readable": 0.1,
    "storage: write of unknown outcome": 0.15,
    "watch: lost": 0.5,
    "watch: late": 0.3,
    "watch: spurious": 0.1,
    "sink: opening fails": 0.2,
    "sink: write fails": 0.05,
    "sink: commit fails": 0.08,
    "sink: commit of unknown outcome": 0.08,
    "sink: slow": 0.1,
    "writer: partial": 0.3,
    "writer: clock jumps": 0.2,
    "daemon: clock jumps": 0.2,
}
"""How often each kind of fault happens where a run has it: chances for each call."""
SLOW_SECONDS = 4.0


class _AtOnce:
    """To wait for nothing: most calls do, and a coroutine for each of them costs more than all that they look at."""

    def __await__(self) -> Iterator[None]:
        return iter(())


AT_ONCE = _AtOnce()


@dataclass(slots=True)
class Weather:
    """The faults of a run. Each run has some kinds of them, and not the others, so that what one kind would hide is seen, too.

    Attributes:
        loop: the run's.
        random: decides.
        latency: seconds that a call takes, on average; 0 where it takes none.
        rates: of the kinds of faults that this run has.
        calm: from here on nothing goes wrong any more.
        trace: what happened: seconds since the beginning, and what.
        violations: what must not have happened.
        struck: how many faults there were, by kind.
    """

    loop: asyncio.AbstractEventLoop
    random: Random
    latency: float
    rates: dict[str, float]
    calm: bool = False
    trace: list[tuple[object, ...]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    struck: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, random: Random, kinds: Mapping[str, float] = RATES) -> Weather:
        """Of a seed: one run in eight has no faults of its own, others each kind with a chance of 40 %."""
        share = random.choice((0.0, *[0.4] * 7))
        rates = {kind: rate * random.choice((0.3, 1.0, 2.0)) for kind, rate in kinds.items() if random.random() < share}
        return cls(asyncio.get_running_loop(), random, random.choice((0.0, 0.0, 0.003, 0.05)), rates)

    def strikes(self, kind: str) -> bool:
        """Whether a fault of this kind happens now."""
        rate = self.rates.get(kind)
        if rate is None or self.calm or self.random.random() >= rate:
            return False
        self.struck[kind] = self.struck.get(kind, 0) + 1
        self.note("fault", kind)
        return True

    def pass_by(self, kind: str) -> Awaitable[None]:
        """Take the time that a call takes; `kind` is what makes it slow."""
        if self.strikes(kind):
            return asyncio.sleep(self.random.uniform(0, SLOW_SECONDS))
        if self.latency:
            return asyncio.sleep(self.random.expovariate(1 / self.latency))
        return asyncio.sleep(0) if self.random.random() < 0.3 else AT_ONCE

    def note(self, *what: object) -> None:
        """Something happened."""
        self.trace.append((round(self.loop.time(), 3), *what))

    def violate(self, what: str) -> None:
        """Something happened that must not."""
        self.violations.append(what)
        self.note("VIOLATION", what)


@dataclass(slots=True)
class Process:
    """A process that may be killed: then nothing that it still does has an effect."""

    number: int
    alive: bool = True
    host: Host | None = None

    def check(self) -> None:
        """Called by everything that a process reaches the world through."""
        if not self.alive:
            raise asyncio.CancelledError

    def reach(self) -> Awaitable[None]:
        """Called by requests to other machines; wait for its result."""
        return AT_ONCE if self.host is None else self.host.reach()


class Host:
    """The machine of a process, which may be paused or cut off."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.running.set()
        self.connected = True

    async def reach(self) -> None:
        """Wait while the machine is paused.

        Raises:
            SinkError: it is cut off.
        """
        await self.running.wait()
        if not self.connected:
            await asyncio.sleep(0.3)
            if not self.connected:
                raise SinkError("the network is unreachable", retriable=True)
