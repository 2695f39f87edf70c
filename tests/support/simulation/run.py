"""One seed: tables that are written, daemons that deliver, an operator who kills and restarts them, and faults; then calm, and an end."""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol

from cdfd.errors import CdfdError, FencedError
from tests.support.simulation.daemon import TABLES, Daemon, Settled
from tests.support.simulation.decoding import decoded_once
from tests.support.simulation.invariants import Auditor
from tests.support.simulation.loop import Stuck, VirtualLoop
from tests.support.simulation.sink import Topic
from tests.support.simulation.storage import Disk
from tests.support.simulation.weather import SLOW_SECONDS, Weather
from tests.support.simulation.world import World

CALM_SECONDS, CALM_SECONDS_DISTURBED = 300.0, 1200.0
"""Until all tables are at their tips, once nothing goes wrong any more. The longest pause of the daemon is 75 s, and what is missing in a
remote log is looked for every 900 s."""
PAUSE_SECONDS = 20.0
"""From one start of a process to the next, at least."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a seed.

    Attributes:
        violations: of invariants; empty if the run passed.
        trace: what happened.
        counts: of injected faults, kills, starts, rows and versions.
    """

    seed: int
    violations: list[str]
    trace: list[tuple[object, ...]]
    counts: Counter[str]


class Run(Protocol):
    """A run of a seed."""

    weather: Weather

    async def run(self) -> None:
        """Let everything happen."""

    def counts(self) -> Counter[str]:
        """Numbers of events, by kind."""


def simulate(seed: int, kind: Callable[[Random], Run] | None = None) -> Outcome:
    """Run a seed. The same seed gives the same outcome, trace and all.

    Args:
        seed: decides everything.
        kind: makes the run; None: a daemon without standby.
    """
    random = Random(seed)
    loop = VirtualLoop(random)
    with _collected_after():
        weather, counts, extra = _run(loop, random, kind or Simulation)
    generators = [f"{name} was left unclosed" for name in loop.unclosed]
    weather.violations.extend(extra + generators + [f"nobody handled {error}" for error in loop.errors])
    return Outcome(seed, weather.violations, weather.trace, counts)


@contextmanager
def _collected_after() -> Iterator[None]:
    """Run the garbage collector after the block and not within it. So it finds a run's cyclic garbage in the run that left it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(0)


def _run(loop: VirtualLoop, random: Random, kind: Callable[[Random], Run]) -> tuple[Weather, Counter[str], list[str]]:
    """The weather of a run, its counts, and violations that the loop found: tasks that did not end."""
    simulation: Run | None = None

    async def scenario() -> None:
        nonlocal simulation
        simulation = kind(random)
        await simulation.run()

    try:
        with decoded_once():
            loop.run_until_complete(scenario())
        extra = [f"a task is left: {task.get_coro()!r}" for task in asyncio.all_tasks(loop)]
    except Stuck as error:
        extra = [f"stuck: {error}; tasks: {sorted(task.get_name() for task in asyncio.all_tasks(loop))}"]
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
    finally:
        loop.close()
    assert simulation is not None
    return simulation.weather, simulation.counts(), extra


class Simulation:
    """A run."""

    def __init__(self, random: Random) -> None:
        self.weather = weather = Weather.of(random)
        self.random = random
        self.settled = settled = Settled.of(random)
        remote = random.random() < 0.5
        self.disturbances = disturbances = settled.ledger != "source" and random.random() < 0.4
        checkpoints = settled.ledger != "source" and random.random() < 0.3
        self.topics: dict[str, Topic] = {}
        for number in range(random.choice((1, 1, 1, 2, 2, TABLES))):
            disk = Disk(f"memory://lake/t{number}", weather, remote=remote)
            world = World(number, weather, disk, disturbances=disturbances, checkpoints=checkpoints)
            topic = Topic(world, weather, exactly_once=settled.exactly_once, on_missing=settled.on_missing)
            world.passed = partial(self._passed, topic)
            world.halt = self._kill
            if not settled.exactly_once:
                world.restorable = partial(self._before_the_ledger, topic)
            self.topics[world.name] = topic
        self.ledger = Disk("memory://ledger", weather, remote=remote)
        self.daemons: list[Daemon] = []
        self.killed = self.started = 0
        self.auditor = Auditor(weather, settled, self.topics)
        self._recover = False
        self._not_before = 0.0

    @property
    def worlds(self) -> Sequence[World]:
        """The tables."""
        return tuple({topic.world.name: topic.world for topic in self.topics.values()}.values())

    def _passed(self, topic: Topic) -> int:
        """The last version that no later process asks for: of two positions, the ledger has the older one."""
        if self.settled.exactly_once or self.settled.ledger == "none":
            return topic.whole()
        return min(topic.whole(), self._before_the_ledger(topic))

    def _before_the_ledger(self, topic: Topic) -> int:
        """How many versions are before the one that the ledger knows, where its entry is the only one that tells a backup from the table.

        None where there are two processes: the older one may tell the ledger of a lower version.
        """
        return 0 if self.auditor.overlapped else topic.recorded

    async def run(self) -> None:
        weather, random = self.weather, self.random
        weather.note("settled", self.settled, "rates", weather.rates)
        pause = random.choice((0.05, 1.0, 10.0))
        writers = [asyncio.create_task(world.write(random.randint(2, 6), pause)) for world in self.worlds]
        operator = asyncio.create_task(self._operate(random.choice((0, 1, 1, 2, 3)), pause))
        looking = asyncio.create_task(self.auditor.watch(self.daemons))
        await asyncio.gather(*writers, operator)
        weather.note("calm")
        weather.calm = True
        await self._settle()
        looking.cancel()
        await asyncio.wait((looking,))
        if not looking.cancelled():
            looking.result()
        await asyncio.sleep(SLOW_SECONDS)
        for daemon in self.daemons:
            if not await daemon.end():
                weather.violate("a stop takes too long although nothing is wrong")
        await asyncio.sleep(10)  # what was on its way arrives
        await self.auditor.check_end(self.ledger)

    async def _operate(self, actions: int, pause: float) -> None:
        """Start a daemon, and do to it what happens to daemons."""
        await asyncio.sleep(self.random.choice((0, 3)))
        self._start()
        for _ in range(actions):
            await asyncio.sleep(self.random.expovariate(1 / (4 * pause)))
            actions = [self._kill, self._kill, self._restart, self._overlap]
            # With `latest`, a daemon without positions starts at the newest version, and skips those before it.
            actions += [self._lose] * (self.settled.start != "latest")
            await self.random.choice(actions)()
            if self.random.random() < 0.5:
                await asyncio.sleep(self.random.expovariate(1 / pause))
            self._ensure()

    def _start(self) -> None:
        self.started += 1
        daemon = Daemon(self.started, self.settled, self.topics, self.ledger, self.weather, recover=self._recover)
        if self.weather.strikes("daemon: clock jumps"):
            daemon.clock.skew_ms = self.random.choice((-3_600_000, -9_000, 400, 3_600_000))
        daemon.task.add_done_callback(self._ended)
        self.daemons.append(daemon)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A process may end after a stop request, after another process took over, and after all its tables failed."""
        if task.cancelled():
            return
        error = task.exception()
        self.weather.note(task.get_name(), "ended", type(error).__name__, str(error))
        if error is None or isinstance(error, FencedError):
            if error is not None and self.started == 1 and not any(topic.resets for topic in self.topics.values()):
                self.weather.violate("fenced, although there is no other process")
        elif not isinstance(error, CdfdError):
            self.weather.violate(f"ended by {error!r}")

    def _ensure(self) -> None:
        """Restart the daemon if all its processes have ended, as a process supervisor does."""
        now = asyncio.get_running_loop().time()
        if all(daemon.task.done() for daemon in self.daemons) and now >= self._not_before:
            self._not_before = now + PAUSE_SECONDS
            self.daemons.clear()
            self._start()

    async def _kill(self) -> None:
        for daemon in self.daemons:
            await daemon.kill()
            self.killed += 1

    async def _restart(self) -> None:
        for daemon in self.daemons:
            await daemon.end()

    async def _overlap(self) -> None:
        if not self.settled.exactly_once and any("restored" in topic.world.disturbed for topic in self.topics.values()):
            return
        self.auditor.overlapped = True
        self._start()

    async def _lose(self) -> None:
        """The sink is emptied; the operator starts the daemon as its message says."""
        await self._kill()
        self.weather.note("the sink is emptied")
        self._recover = True
        for topic in self.topics.values():
            topic.lose()

    def _calm_seconds(self) -> float:
        """Longest time from the last fault until all tables are at their tips."""
        disturbed = any(topic.world.disturbed for topic in self.topics.values())
        return CALM_SECONDS_DISTURBED if disturbed else CALM_SECONDS

    async def _settle(self) -> None:
        """Wait until all that can be delivered is."""
        end = asyncio.get_running_loop().time() + self._calm_seconds()
        while asyncio.get_running_loop().time() < end and not self.weather.violations:
            self._ensure()
            if self.auditor.is_done(self.daemons):
                return
            await asyncio.sleep(self.random.uniform(0.5, 5))
        if not self.weather.violations:
            self.auditor.complain(self.daemons)

    def counts(self) -> Counter[str]:
        counts = Counter(self.weather.struck)
        counts["process: killed"] = self.killed
        counts["process: started"] = self.started
        for topic in self.topics.values():
            counts["rows"] += topic.rows
            counts["versions"] += topic.world.now.tip + 1
            counts.update(f"table: {how}" for how in topic.world.disturbed)
        return counts
