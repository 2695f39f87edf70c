"""One seed with two or three processes of a pipeline: elections, hand-overs, pauses, partitions and kills in virtual time.

The candidates, the elections and the daemons are real. The lease is a register that delays, loses and reorders messages.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random

from cdfd.daemon.election.candidate import Candidate
from cdfd.daemon.election.election import Election
from cdfd.daemon.supervision.signals import run_until
from cdfd.errors import CdfdError, FencedError, SinkError
from cdfd.sinks.lease import Claim, Lease
from tests.support.simulation.daemon import Daemon, Settled
from tests.support.simulation.invariants import Auditor
from tests.support.simulation.loop import VirtualClock
from tests.support.simulation.run import Outcome, simulate
from tests.support.simulation.sink import Topic
from tests.support.simulation.storage import Disk
from tests.support.simulation.weather import RATES, SLOW_SECONDS, Host, Weather
from tests.support.simulation.world import World

LEASE_RATES = {
    "lease: reading fails": 0.05,
    "lease: write lost": 0.1,
    "lease: write late": 0.1,
    "lease: write of unknown outcome": 0.1,
    "lease: slow": 0.05,
}
TAKEOVER_SECONDS, POLL_SECONDS = 2.5, 0.5
CALM_SECONDS = 300.0
HAND_OVER_SECONDS = 2.0
"""Longest time from the end of a leader to the next one, where nothing fails: a poll, some requests, and threads that start late."""


def simulate_standby(seed: int) -> Outcome:
    """Run a seed; see `simulate`."""
    return simulate(seed, StandbySimulation)


class Register:
    """The content of the lease, which outlives processes."""

    def __init__(self) -> None:
        self.claim: Claim | None = None

    def take(self, claim: Claim) -> None:
        """A write takes effect."""
        self.claim = claim


class SimulatedLease(Lease):
    """The `Lease` port of one process over the register. The last writer wins, and a write may arrive late."""

    def __init__(self, register: Register, host: Host, weather: Weather) -> None:
        self._register = register
        self._host = host
        self._weather = weather
        self.settle = weather.random.choice((0.0, 0.03))

    async def read(self) -> Claim | None:
        await self._pass()
        if self._weather.strikes("lease: reading fails"):
            raise SinkError("the coordinator did not answer", retriable=True)
        claim = self._register.claim
        await self._pass()
        return claim

    async def write(self, claim: Claim) -> None:
        await self._pass()
        weather = self._weather
        if weather.strikes("lease: write lost"):
            raise SinkError("the request was lost", retriable=True)
        if weather.strikes("lease: write late"):
            weather.loop.call_later(weather.random.uniform(0, 2 * SLOW_SECONDS), self._register.take, claim)
            raise SinkError("the request was not answered in time", retriable=True)
        self._register.take(claim)
        weather.note("lease", claim)
        if weather.strikes("lease: write of unknown outcome"):
            raise SinkError("the answer was lost", retriable=True)
        await self._pass()

    async def _pass(self) -> None:
        await self._host.reach()
        await self._weather.pass_by("lease: slow")
        await self._host.reach()


class Member:
    """A process with `--standby`, on a machine of its own."""

    def __init__(self, number: int, run: StandbySimulation) -> None:
        self.host = Host()
        self.stop = asyncio.Event()
        self.daemon: Daemon | None = None
        self.alive = True
        self._number = number
        self._run = run
        lease = SimulatedLease(run.register, self.host, run.weather)
        self.election = Election(lease, VirtualClock(), POLL_SECONDS, Candidate(f"p{number}", TAKEOVER_SECONDS))
        self.task = asyncio.create_task(self._run_elections(), name=f"member {number}")

    @property
    def leads(self) -> bool:
        return self.alive and self.election.candidate.leads

    async def _run_elections(self) -> None:
        while not self.stop.is_set():
            await self.election.run(self._lead, self.stop)

    async def _lead(self, over: asyncio.Event) -> None:
        run = self._run
        run.sessions += 1
        daemon = Daemon(run.sessions, run.settled, run.topics, run.ledger, run.weather, recover=False, host=self.host)
        self.daemon = daemon
        run.daemons.append(daemon)
        run.weather.note("member", self._number, "leads as process", run.sessions)

        async def deliver() -> None:
            await daemon.task

        async def forward() -> None:
            await over.wait()
            daemon.stop.set()

        forwarding = asyncio.create_task(forward())
        try:
            await run_until(over, deliver())
        finally:
            forwarding.cancel()
            await asyncio.wait((forwarding,))
            await daemon.close()
            run.daemons.remove(daemon)

    async def kill(self) -> None:
        """As `kill -9`: nothing that it still does has an effect, but for requests that are on their way."""
        self.alive = False
        self.host.connected = False
        self.host.running.set()
        if self.daemon is not None:
            self.daemon.process.alive = False
        self.task.cancel()
        await asyncio.wait((self.task,))

    async def end(self) -> None:
        """As SIGTERM."""
        self.stop.set()
        await asyncio.wait((self.task,), timeout=10)
        if not self.task.done():
            await self.kill()
        self.alive = False


class StandbySimulation:
    """A run."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.weather = weather = Weather.of(random, RATES | LEASE_RATES)
        # Without positions in the sink nothing fences, and a leader that was paused repeats changes.
        settled = Settled.of(random)
        start = "earliest" if settled.start == "latest" else settled.start
        self.settled = replace(settled, exactly_once=True, start=start)
        remote = random.random() < 0.5
        self.topics: dict[str, Topic] = {}
        for number in range(random.choice((1, 1, 2))):
            disk = Disk(f"memory://lake/t{number}", weather, remote=remote)
            world = World(number, weather, disk, disturbances=False, checkpoints=False)
            topic = Topic(world, weather, exactly_once=True, on_missing=self.settled.on_missing)
            world.passed = topic.whole
            world.halt = _nothing
            self.topics[world.name] = topic
        self.ledger = Disk("memory://ledger", weather, remote=remote)
        self.register = Register()
        self.daemons: list[Daemon] = []
        self.sessions = self.killed = self.started = 0
        self.actions: Counter[str] = Counter()
        self.auditor = Auditor(weather, self.settled, self.topics)
        self.auditor.overlapped = True
        self.members: list[Member] = []

    async def run(self) -> None:
        weather, random = self.weather, self.random
        weather.note("settled", self.settled, "rates", weather.rates)
        pause = random.choice((0.05, 1.0, 10.0))
        for _ in range(random.choice((2, 2, 3))):
            self._start()
        writers = [
            asyncio.create_task(topic.world.write(random.randint(2, 6), pause)) for topic in self.topics.values()
        ]
        looking = asyncio.create_task(self.auditor.watch(self.daemons))
        await asyncio.gather(*writers, self._operate(random.randint(0, 5)))
        weather.note("calm")
        weather.calm = True
        await self._settle()
        if not weather.violations:
            await self._hand_over()
        looking.cancel()
        await asyncio.wait((looking,))
        if not looking.cancelled():
            looking.result()
        for member in self.members:
            await member.end()
        await asyncio.sleep(10)  # what was on its way arrives
        await self.auditor.check_end(self.ledger)

    def _start(self) -> None:
        self.started += 1
        self.weather.note("member", self.started, "starts")
        member = Member(self.started, self)
        member.task.add_done_callback(self._ended)
        self.members.append(member)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        self.weather.note(task.get_name(), "ended", type(error).__name__, str(error))
        if error is not None and (isinstance(error, FencedError) or not isinstance(error, CdfdError)):
            self.weather.violate(f"a process ended by {error!r}")

    async def _operate(self, actions: int) -> None:
        for _ in range(actions):
            await asyncio.sleep(self.random.expovariate(1 / 3))
            leaders = [member for member in self.members if member.leads]
            chosen = leaders if leaders and self.random.random() < 0.7 else self.members
            member = self.random.choice(chosen)
            action = self.random.choice((self._kill, self._end, self._roll, self._pause, self._cut))
            self.actions[f"standby: {action.__name__.strip('_')}"] += 1
            self.weather.note(action.__name__, member.election.candidate.owner)
            await action(member)
        for member in self.members:
            member.host.running.set()
            member.host.connected = True

    async def _kill(self, member: Member) -> None:
        await member.kill()
        self.killed += 1
        self._replace(member)

    async def _end(self, member: Member) -> None:
        await member.end()
        self._replace(member)

    async def _roll(self, member: Member) -> None:
        """The new process is there before the old one ends."""
        self._start()
        await asyncio.sleep(self.random.uniform(0, 3))
        await member.end()
        self.members.remove(member)

    async def _pause(self, member: Member) -> None:
        member.host.running.clear()
        await asyncio.sleep(self.random.uniform(0, 8))
        member.host.running.set()

    async def _cut(self, member: Member) -> None:
        member.host.connected = False
        await asyncio.sleep(self.random.uniform(0, 8))
        member.host.connected = True

    def _replace(self, member: Member) -> None:
        self.members.remove(member)
        self._start()

    def _ensure(self) -> None:
        """Start what has ended by itself, as a process supervisor does."""
        for member in [member for member in self.members if member.task.done()]:
            self._replace(member)

    async def _settle(self) -> None:
        """Wait until all that can be delivered is, by one leader."""
        end = asyncio.get_running_loop().time() + CALM_SECONDS
        while asyncio.get_running_loop().time() < end and not self.weather.violations:
            self._ensure()
            leaders = [member for member in self.members if member.leads]
            if len(leaders) == 1 and self.auditor.is_done(self.daemons):
                break
            await asyncio.sleep(self.random.uniform(0.5, 5))
        else:
            if not self.weather.violations:
                self.weather.violate(
                    f"{len([each for each in self.members if each.leads])} processes lead long after the last fault"
                )
                self.auditor.complain(self.daemons)
            return
        await asyncio.sleep(2 * SLOW_SECONDS + 1)  # late writes arrive
        leaders = [member for member in self.members if member.leads]
        sessions = self.sessions
        await asyncio.sleep(4 * TAKEOVER_SECONDS)
        if len(leaders) != 1 or sessions != self.sessions or not leaders[0].leads:
            self.weather.violate("the leader changes although nothing fails")

    async def _hand_over(self) -> None:
        """Stop the leader, where nothing fails: another process leads at once, and delivers."""
        leaders = [member for member in self.members if member.leads]
        if len(leaders) != 1 or any(member.task.done() for member in self.members):
            return
        await leaders[0].end()
        self.members.remove(leaders[0])
        await asyncio.sleep(HAND_OVER_SECONDS)
        if not any(member.leads for member in self.members):
            self.weather.violate("no process leads soon after the leader has ended in good order")

    def counts(self) -> Counter[str]:
        counts = Counter(self.weather.struck) + self.actions
        counts["process: killed"] = self.killed
        counts["process: started"] = self.started
        counts["standby: leaderships"] = self.sessions
        for topic in self.topics.values():
            counts["rows"] += topic.rows
            counts["versions"] += topic.world.now.tip + 1
        return counts


async def _nothing() -> None:
    """Replaces a step of the operator."""
