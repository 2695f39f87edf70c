"""Reads the configuration file again while the daemon runs: after SIGHUP, and after a change of the file.

Only `tables` changes in place. The daemon names every other setting that differs, and keeps its old value until a restart.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from cdfd.config.fields import Section
from cdfd.config.parser import load
from cdfd.config.problems import Problem, conflicts_of
from cdfd.config.settings import Settings
from cdfd.daemon.http.status import Searches
from cdfd.daemon.membership.destinations import Destinations
from cdfd.daemon.supervision.preflight import preflight
from cdfd.deliver.grace import Outage
from cdfd.errors import CdfdError, ConfigError, UnsupportedError
from cdfd.log.watch import DirectoryWatch
from cdfd.runtime.clock import Clock
from cdfd.runtime.file_events import FileEvents
from cdfd.runtime.tasks import first_done


def changed_settings(old: Section, new: Section, prefix: str = "") -> list[str]:
    """The dotted names of settings with different values, such as `poll.interval`. Never shows a value, which may be a secret."""
    if type(old) is not type(new):
        return [f"{prefix}kind"]  # only sinks have sections of different types
    names = list[str]()
    for name in type(old).model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, Section) and isinstance(after, Section):
            names += changed_settings(before, after, f"{prefix}{name}.")
        elif before != after:
            names.append(f"{prefix}{name}")
    return names


logger = logging.getLogger("cdfd.daemon")

CHECK_SECONDS = 10.0
"""How often the daemon compares the file with the one that it read, if no event announces a change."""
SETTLE_SECONDS, MAX_SETTLE_STEPS = 0.1, 20
"""Time without a change after which a file that is being written counts as complete, and how often to wait for that."""
_NAMING = frozenset({"pipeline", "sink.kind", "sink.topics.prefix"})
"""Settings from which names of tables and topics follow. Tables of a file with other values are not applied."""


@dataclass(eq=False)
class Reloading:
    """Applies changes of the configuration file.

    Attributes:
        loaded: its content before the daemon loaded it; None if it comes from a pipe.
        destinations: the sinks and tables of the daemon.
        hangup: set it to read the file again even if it has not changed.
    """

    path: Path
    loaded: bytes | None
    destinations: Destinations
    searches: Searches
    clock: Clock
    file_events: FileEvents
    hangup: asyncio.Event
    _outage: Outage = field(default_factory=Outage, init=False)

    async def run(self) -> None:
        """Watch the file until cancelled. Raises only what is a bug."""
        if self.loaded is None:
            while await self.hangup.wait():
                self.hangup.clear()
                logger.warning("SIGHUP: the configuration comes from a pipe, and cannot be read again")
        folder = os.path.dirname(os.path.abspath(self.path))
        watch = DirectoryWatch(folder, self.file_events, self.clock, accepts=lambda _: True)
        applied: bytes | None = self.loaded
        if await asyncio.to_thread(file_content, self.path) != applied:
            self.hangup.set()  # it has changed during the start, or while this process stood by
        try:
            while True:
                async with first_done(self.hangup.wait(), watch.wait(CHECK_SECONDS)):
                    pass
                # The content of the file, once it stops changing; None if it cannot be read.
                content = await asyncio.to_thread(file_content, self.path)
                for _ in range(MAX_SETTLE_STEPS):
                    await self.clock.sleep(SETTLE_SECONDS)
                    before, content = content, await asyncio.to_thread(file_content, self.path)
                    if before == content:
                        break
                if content != applied or self.hangup.is_set():
                    self.hangup.clear()
                    applied = content if await self.reload() else None
        finally:
            watch.close()

    async def reload(self) -> bool:
        """Read the file, and apply its tables and sinks. If it is invalid, log that and change nothing. False: read it again later.

        A new sink that cannot be opened is an error, too. The other changes are applied then, and logged.
        """
        try:
            config, others = await load_changes(self.path, self.destinations.config)
            changes, failure = await self.destinations.configure(config)
            self.searches.unapplied = others
            for sink, what in changes.items():
                logger.info("the configuration is read again: %s", f"sink {sink}: {what}" if sink else what)
            if others:
                logger.warning(
                    "these settings change with a restart only, and keep their values: %s", ", ".join(others)
                )
            if failure is not None:
                raise failure
            self.searches.reload_error, self.searches.reloaded_ms = None, self.clock.now_ms()
        except CdfdError as error:
            self.searches.reload_error = str(error)
            counts = self._outage.fail(error, self.clock.monotonic())
            logger.log(logging.ERROR if counts else logging.WARNING, "cannot apply the new configuration: %s", error)
            # Only another file helps against what is wrong with this one. A store may answer later, or grant what it denies.
            return isinstance(error, ConfigError | UnsupportedError) and not error.retriable
        self._outage.work()
        return True


async def load_changes(path: Path, running: Settings) -> tuple[Settings, Sequence[str]]:
    """The settings of a file whose tables and sinks a daemon can apply, and the names of its other settings that differ.

    Args:
        running: the settings of the daemon.

    Raises:
        ConfigError: the file is invalid, or needs a restart.
    """
    config = await asyncio.to_thread(load, path)
    if running.engine.kind == "spark":
        raise ConfigError("`engine.kind: spark` applies no changes while it runs", hint="Restart the daemon")
    await asyncio.to_thread(preflight, config)  # opens each table: half a second for a thousand
    others = [name for name in changed_settings(running, config) if name not in ("tables", "sinks")]
    if bool(running.sinks) != bool(config.sinks):
        raise ConfigError("`sink` cannot become `sinks`, or back, while the daemon runs", hint="Restart the daemon")
    if naming := sorted(_NAMING.intersection(others)):
        raise ConfigError(
            f"{' and '.join(naming)} cannot change while the daemon runs, and names of tables follow from it",
            hint="Restart the daemon",
        )
    if others:
        for name, of_sink in running.by_sink.items():
            if name in config.by_sink and running.sinks.get(name) == config.sinks.get(name):
                await asyncio.to_thread(_check_tables, of_sink, config.by_sink[name])
    return config, others


def _check_tables(running: Settings, changed: Settings) -> None:
    """Check that the tables of a new file fit the settings that do not change with them. Blocks: it resolves symbolic links.

    Raises:
        ConfigError: they do not, such as tables without a key while the sink is still a mirror.
    """
    try:
        Settings.model_validate({**dict(running), "tables": changed.tables})
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        problems = [Problem((*each["loc"], *below), text) for each in details for below, text in conflicts_of(each)]
        what = "the tables do not fit other settings, which change with a restart only"
        raise ConfigError(f"{what}: {'; '.join(map(str, problems))}", hint="Restart the daemon") from None


def file_content(path: Path) -> bytes | None:
    """The bytes of a configuration file; None if it cannot be read, or not again."""
    if not os.path.isfile(path):
        return None
    try:
        return path.read_bytes()
    except OSError:
        return None  # editors and volumes replace files; reading it again reports an error that lasts
