"""Invariants of a daemon: at all times, and at the end."""

import asyncio
from collections.abc import Mapping, Sequence

from cdfd.sinks.ledger.ledger import app_id
from cdfd.sinks.ledger.table_ledger import TableLedger
from tests.support.simulation.daemon import PIPELINE, Daemon, Settled, Watchful
from tests.support.simulation.loop import VirtualClock
from tests.support.simulation.sink import Topic
from tests.support.simulation.storage import Disk, FailingStorage
from tests.support.simulation.weather import SLOW_SECONDS, Process, Weather


class Auditor:
    """Checks the status of a daemon while it runs, and its results at the end.

    Args:
        weather: of the run.
        settled: the configuration.
        topics: of all tables, by name.
    """

    def __init__(self, weather: Weather, settled: Settled, topics: Mapping[str, Topic]) -> None:
        self._weather = weather
        self._settled = settled
        self._topics = topics
        self.overlapped = False
        """Whether there were two processes. The older one may then record a version late, after the newer one recorded a later version."""

    async def watch(self, daemons: Sequence[Daemon]) -> None:
        """Look again and again."""
        while not self._weather.violations:
            await asyncio.sleep(self._weather.random.uniform(0.1, 5))
            for daemon in daemons:
                if not daemon.task.done():
                    for name, topic in self._topics.items():
                        self._look(daemon, daemon.monitors[name], topic)

    def _look(self, daemon: Daemon, monitor: Watchful, topic: Topic) -> None:
        name, world = topic.name, topic.world
        if world.disturbed or topic.resets:
            return
        reading = monitor.reading()
        for what, version in (("delivered", reading.delivered_version), ("ledger", reading.ledger_version)):
            if version is not None and version > max(topic.whole(), topic.first_version - 1):
                self._weather.violate(f"{name}: says {what} {version}, and {topic.whole()} is")
        if reading.table_version is not None and reading.table_version > world.now.tip:
            self._weather.violate(f"{name}: says that version {reading.table_version} is there, of {world.now.tip}")
        if monitor.not_ready() is None and reading.state == "at_tip":
            # A look that is under way may be slow, and what is half written is not there yet.
            patience = self._settled.max_poll + 3 * SLOW_SECONDS
            now = asyncio.get_running_loop().time()
            old = [number for number, meaning in world.now.versions.items() if meaning.since < now - patience]
            if max(old, default=-1) > max(topic.whole(), topic.first_version - 1):
                self._weather.violate(f"{name}: says that it is at the tip after {topic.whole()}, of {max(old)}")

    def is_done(self, daemons: Sequence[Daemon]) -> bool:
        """Whether every table is delivered, or its daemon says that it cannot be. Sinks in an outage do not count."""
        return all(
            any(self._verdict(daemon, topic) is None for daemon in daemons)
            for topic in self._topics.values()
            if topic.outage is None
        )

    def complain(self, daemons: Sequence[Daemon]) -> None:
        """Say what is not done."""
        for topic in self._topics.values():
            verdicts = [self._verdict(daemon, topic) for daemon in daemons]
            if all(verdicts) and topic.outage is None:
                self._weather.violate(f"{topic.name}: {verdicts[-1] if verdicts else 'no process runs'}")

    def _verdict(self, daemon: Daemon, topic: Topic) -> str | None:
        """The violation of a table at the end, or None."""
        monitor, world = daemon.monitors[topic.name], topic.world
        reading, why = monitor.reading(), monitor.not_ready()
        if daemon.task.done() and not world.disturbed:
            return "no process runs"
        if world.disturbed and reading.state in ("backing_off", "failed"):
            return None
        tip = max(world.now.tip, topic.first_version - 1)
        if topic.whole() != tip:
            return f"{topic.whole()} of {tip} is delivered long after the last fault; {reading.state}, {why}"
        if why is not None or reading.state != "at_tip" or reading.lag_versions or reading.lag_seconds:
            return f"all is delivered, but the daemon says {reading}, not ready: {why}"
        return None

    async def check_end(self, ledger: Disk) -> None:
        """Check the ledger after everything has stopped."""
        if self._settled.ledger != "table":
            return
        progress = TableLedger(FailingStorage(ledger, Process(0)), VirtualClock())
        for name, topic in self._topics.items():
            entry = await progress.position(app_id(PIPELINE, name))
            version = -1 if entry is None else entry.version
            if version > topic.whole() and not topic.resets and not topic.world.disturbed:
                self._weather.violate(f"{name}: the ledger ends with version {version}, the topic with {topic.whole()}")
            lags = version < topic.whole() >= topic.first_version
            if lags and not topic.world.disturbed and not self.overlapped:
                self._weather.violate(f"{name}: after a stop the ledger has {version}, of {topic.whole()}")
