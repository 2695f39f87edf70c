"""`cdfd check`: checks a configuration, its tables and its sink, and predicts what `cdfd run` would do. Writes nothing."""

import asyncio
import os
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdfd.cli.commands.columns import align_columns
from cdfd.cli.commands.dry_run import DryRun, dry_run
from cdfd.config import settings
from cdfd.config.parser import load
from cdfd.config.settings import Settings
from cdfd.config.sinks import sink_address
from cdfd.daemon import assembly
from cdfd.daemon.assembly import ledgers
from cdfd.daemon.membership.discovery import discover_tables
from cdfd.daemon.membership.shard import Shard
from cdfd.daemon.supervision.preflight import preflight
from cdfd.deliver.configured import open_table
from cdfd.delta.protocol import cdf_enabled
from cdfd.errors import CdfdError, StorageError, Within
from cdfd.escaping import as_json as json_of
from cdfd.escaping import one_line
from cdfd.model.columns import change_schema
from cdfd.sinks.base import Connector, connector
from cdfd.sinks.ledger.ledger import Ledger
from cdfd.sinks.ledger.recovery import delivered_version
from cdfd.storage.durable import nearest_existing

COLUMNS = ("table", "version", "files", "changes", "topic", "state")


@dataclass(frozen=True, slots=True)
class Checked:
    """The result for one table.

    Attributes:
        table, topic: their names.
        usable: whether a daemon would deliver it.
        state: the reason, in one line.
        warnings: the warnings of a daemon.
        version, files: the newest version and the number of its live files; None if unknown.
        changes: the source of change rows.
        next: where a daemon would start or resume.
        sink: its name in `sinks`; empty with `sink`.
    """

    table: str
    topic: str
    usable: bool
    state: str
    warnings: Sequence[str] = ()
    version: int | None = None
    files: int | None = None
    changes: str | None = None
    next: str | None = None
    sink: str = ""

    def row(self) -> tuple[str, ...]:
        """The cells of a row; see `COLUMNS`."""
        version = "" if self.version is None else str(self.version)
        files = "" if self.files is None else f"{self.files:,}"
        state = "; ".join([self.state, *(f"warning: {warning}" for warning in self.warnings)])
        name = sink_address(self.table, self.sink)
        return name, version, files, self.changes or "", self.topic, state

    def document(self) -> dict[str, Any]:
        """The result as JSON values."""
        names = ("table", "topic", "usable", "state", "version", "files", "changes", "next")
        of_sink = {"sink": self.sink} if self.sink else {}
        return of_sink | {name: getattr(self, name) for name in names} | {"warnings": list(self.warnings)}


def run(path: Path, *, as_json: bool = False, shard: Shard | None = None, sink: str | None = None) -> tuple[str, int]:
    """The results as a table or as JSON, and the exit code: 0 if a daemon would deliver every table, otherwise 1.

    Args:
        path: of the configuration file.
        as_json: whether to return JSON.
        shard: check the tables of this shard only; None: all.
        sink: check this sink only; None: all.

    Raises:
        ConfigError: the configuration is invalid, has no such sink, or names something that cannot be used.
    """
    config = load(path)
    preflight(config, shard)
    reports, problems, shared = asyncio.run(_check_sinks(config, config.chosen(sink), shard))
    usable = all(each.usable for each in reports) and not any(isinstance(each, CdfdError) for each in shared.values())
    code = 0 if usable and not problems else 1
    states = {name: None if state is None else str(state) for name, state in shared.items()}
    if as_json:
        document = {"tables": [each.document() for each in reports], "refused": problems, **states}
        return json_of(document, indent=2) + "\n", code
    text = align_columns([COLUMNS, *(each.row() for each in reports)])
    text += "".join(f"not delivered: {one_line(problem)}\n" for problem in problems)
    lines = [f"{name.replace('_', ' ')}  {one_line(state)}\n" for name, state in states.items() if state is not None]
    return text + "\n" * bool(lines) + "".join(lines), code


Shared = dict[str, str | CdfdError | None]
"""The state of everything that tables share, by its name; None if there is none."""


async def _check_sinks(
    config: Settings, sinks: Sequence[Settings], shard: Shard | None
) -> tuple[list[Checked], list[str], Shared]:
    """The results of tables, the errors of patterns, and the state of what tables share, of several sinks one after the other."""
    reports, problems = list[Checked](), list[str]()
    shared: Shared = {"notifications": await _state(assembly.check_notifications(config))}
    for of_sink in sinks:
        try:
            resolved, errors = await discover_tables(of_sink, shard=shard)
        except CdfdError as error:
            resolved, errors = of_sink.with_tables(of_sink.listed), [error]
        problems += map(str, errors)
        sink = connector(resolved)
        unreachable: CdfdError | None = None
        try:
            await sink.reach()
        except CdfdError as error:
            unreachable = error
        async with ledgers(resolved) as ledger_of:
            for table in resolved.listed:
                reports.append(await _check_table(resolved, table, ledger_of(table), sink, unreachable))
        topics = None if unreachable else await _state(sink.check_own_topics())
        shared[of_sink.address("topics_of_the_daemon")] = topics
    return reports, problems, shared


async def _state(checking: Awaitable[str | None]) -> str | CdfdError | None:
    """The result of a check, or its error."""
    try:
        return await checking
    except CdfdError as error:
        return error


async def _check_table(
    config: Settings, table: settings.Table, ledger: Ledger, sink: Connector, unreachable: CdfdError | None
) -> Checked:
    try:
        if unreachable is not None:
            raise unreachable
        note = await sink.check(table)
        report = await dry_run(config, table, sink, ledger)
        if report.error is not None:
            raise report.error
        state = await open_table(config, table).log.snapshot()
        with Within(table.uri):
            files = len(state.live())
            columns = change_schema(table.rows.shape.published(table.rows.shape.select(state.header.schema)).arrow)
            await asyncio.to_thread(sink.check_columns, table, state.metadata.id, columns)
        warnings = [*report.warnings, *_ledger_warnings(config, table, ledger, report)]
    except CdfdError as error:
        return Checked(table.name, table.topic, usable=False, state=str(error), sink=config.sink_name)
    changes = "files" if table.changes == "files" or not cdf_enabled(state.metadata) else "cdc files"
    return Checked(
        table.name,
        table.topic,
        usable=True,
        state=note,
        warnings=warnings,
        version=state.version,
        files=files,
        changes=changes,
        next=report.reason,
        sink=config.sink_name,
    )


def _ledger_warnings(config: Settings, table: settings.Table, ledger: Ledger, report: DryRun) -> list[str]:
    """The warnings of a daemon about a ledger that it cannot write.

    Raises:
        StorageError: the ledger cannot be written, and would be the only place of the first position.
    """
    if config.progress.ledger.kind != "table":
        return []
    error = None
    if "://" not in ledger.uri:  # other locations cannot be checked without a write
        place = nearest_existing(os.path.join(ledger.uri, "_delta_log"))
        if not os.path.isdir(place) or not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
            error = StorageError(
                "the ledger cannot be written",
                path=place,
                hint="Check its owner and permissions, or set `progress.ledger` to another location, or to none",
            )
    if error is not None and report.entry is None and assembly.policies(config, table).ledger_counts:
        assert report.following is not None
        if delivered_version(report.following) is not None:  # the daemon records this before its first delivery
            raise error
    return [] if error is None else [str(error)]
