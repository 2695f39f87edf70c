"""One seed with two sinks in one daemon, of which one fails or hangs for a while: it neither delays nor stops the other one."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from cdfd.config.sinks import sink_address
from cdfd.daemon.supervision.supervisor import FENCED_RETRY_SECONDS
from tests.support.simulation.run import Outcome, Simulation, simulate
from tests.support.simulation.sink import Topic
from tests.support.simulation.weather import SLOW_SECONDS

SINKS = ("one", "two")
OUTAGE_COMMITS = 3
DELAY_SECONDS = 2 * SLOW_SECONDS
"""Longest time beyond the poll interval until a sink has a commit, where nothing fails but the other sink: a wait of its own at the tip, or
for the news of a reader that does not come back."""


def simulate_sinks(seed: int) -> Outcome:
    """Run a seed; see `simulate`."""
    return simulate(seed, SinksSimulation)


class SinksSimulation(Simulation):
    """A run."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        settled, alone = self.settled, dict(self.topics)
        self.topics.clear()
        for topic in alone.values():
            world = topic.world
            both = [
                Topic(
                    world,
                    self.weather,
                    exactly_once=settled.exactly_once,
                    on_missing=settled.on_missing,
                    name=sink_address(world.name, sink),
                )
                for sink in SINKS
            ]
            self.topics |= {each.name: each for each in both}
            world.passed = partial(self._passed_by_all, both)
            if not settled.exactly_once:
                world.restorable = partial(self._before_all_ledgers, both)

    def _passed_by_all(self, topics: list[Topic]) -> int:
        return min(map(self._passed, topics))

    def _before_all_ledgers(self, topics: list[Topic]) -> int:
        return min(map(self._before_the_ledger, topics))

    async def _operate(self, actions: int, pause: float) -> None:
        """Start a daemon and do to it as in other runs, while one of the sinks fails now and then."""
        failing = asyncio.create_task(self._fail(pause))
        await super()._operate(actions, pause)
        failing.cancel()
        await asyncio.wait((failing,))
        self._restore()

    async def _fail(self, pause: float) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(1 / (2 * pause)))
            self._take_down(self.random.choice(SINKS))
            await asyncio.sleep(self.random.expovariate(1 / (2 * pause)))
            self._restore()

    def _take_down(self, sink: str) -> None:
        outage = self.random.choice(("fails", "hangs"))
        self.weather.note("sink", sink, outage)
        self.weather.struck[f"sink: {outage}"] = self.weather.struck.get(f"sink: {outage}", 0) + 1
        for topic in self.topics.values():
            if topic.name.endswith(f"@{sink}"):
                topic.outage = outage
                topic.works.clear()

    def _restore(self) -> None:
        self.weather.note("all sinks work")
        for topic in self.topics.values():
            topic.outage = None
            topic.works.set()

    def _calm_seconds(self) -> float:
        """A table that another process took over is tried again later than any other, also if that process has ended."""
        return super()._calm_seconds() + (1.25 * FENCED_RETRY_SECONDS if self.auditor.overlapped else 0)

    async def _settle(self) -> None:
        """Once all is delivered, one of the sinks fails, and the other one is as fast as before. Then the first one catches up."""
        await super()._settle()
        # Of two processes, the one that leads may be in a long pause after an error.
        if self.weather.violations or self.disturbances or len(self.daemons) > 1:
            return
        self._take_down(self.random.choice(SINKS))
        for _ in range(OUTAGE_COMMITS):
            await asyncio.sleep(self.random.uniform(0, 2 * self.settled.max_poll))
            await asyncio.gather(*(world.step() for world in self.worlds))
            await asyncio.sleep(self.settled.max_poll + DELAY_SECONDS)
            if not self.auditor.is_done(self.daemons):
                self.auditor.complain(self.daemons)
                return
        self._restore()
        await super()._settle()
