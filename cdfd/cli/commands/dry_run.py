"""Dry run of `cdfd run` for one table.

`check` and `progress` take the steps of a `Feed` up to its first delivery, with the same functions. They do not write.
"""

from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field

from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.daemon import assembly
from cdfd.deliver.configured import open_table
from cdfd.deliver.resuming import Policies, check_fit, explain_gap, read_ledger
from cdfd.errors import CdfdError, NotATableError
from cdfd.log.start import start_position
from cdfd.log.table import Table
from cdfd.model.position import Phase, Position
from cdfd.runtime.clock import SystemClock
from cdfd.sinks.base import Connector
from cdfd.sinks.ledger.ledger import Ledger, LedgerEntry, app_id
from cdfd.sinks.ledger.recovery import decide


@dataclass(slots=True)
class DryRun:
    """The results of a dry run, up to its first error.

    Attributes:
        position: the sink's position.
        entry: the ledger's entry.
        newest: the newest version of the table.
        following: the position at which a daemon would start or resume.
        reason: the reason for that position.
        warnings: the warnings of a daemon.
        error: the error of a daemon; None if it would deliver.
    """

    position: Position | None = None
    entry: LedgerEntry | None = None
    newest: int | None = None
    following: Position | None = None
    reason: str = ""
    warnings: list[str] = field(default_factory=list)
    error: CdfdError | None = None


async def dry_run(config: Settings, table: settings.Table, sink: Connector, ledger: Ledger) -> DryRun:
    """Predict what a daemon would do with a table. Errors are part of the result."""
    report = DryRun()
    try:
        with assembly.add_reset_hint(sink):
            await _run(report, config, table, sink, ledger)
    except NotATableError as error:
        error.hint = f"{error.hint}. `cdfd run` waits for it" if error.hint else "`cdfd run` waits for it"
        report.error = error
    except CdfdError as error:
        report.error = error
    return report


async def _run(report: DryRun, config: Settings, table: settings.Table, sink: Connector, ledger: Ledger) -> None:
    source = open_table(config, table)
    policies = assembly.policies(config, table)
    report.position = await sink.position(table)
    if config.progress.ledger.kind != "none":
        name = app_id(config.ledger_name, table.name)
        report.entry, error = await read_ledger(ledger, name, needed=report.position is None)
        if error is not None:
            report.warnings.append(f"the ledger cannot be read: {error}")
    try:
        report.newest = (await source.log.header()).version
    except NotATableError:
        if report.position is None:
            raise
    report.following = position = await _start(report, config, source, policies, sink, ledger.uri)
    # Plan the first delivery of a daemon there.
    with explain_gap() if report.position is not None else nullcontext(), source.tailer() as tailer:
        await tailer.resume(position)
        stream = source.stream(policies.rows)
        stream.continue_from(position)
        if position.phase == "snapshot":
            await stream.snapshot(position.version, tailer)
            there = stream.header
        else:
            there = await stream.begin(tailer, position.version)
        before = stream.header
        newest = await source.log.header()
        if position.phase == "stream":
            async with aclosing(stream.versions(tailer, position.version, newest.version)) as versions:
                await anext(versions, None)
    first = there or newest
    warnings = check_fit(policies, first, newest, before or first) + check_fit(policies, newest, newest, first)
    report.warnings += dict.fromkeys(warnings)


async def _start(
    report: DryRun, config: Settings, table: Table, policies: Policies, sink: Connector, ledger: str
) -> Position:
    """The position at which a daemon would start or resume."""
    if report.position is None and report.entry is None:
        begin = await start_position(table.log, policies.start, SystemClock().now_ms())
        report.reason = f"begins at {policies.start}"
        phase: Phase = "snapshot" if begin.snapshot else "stream"
        return Position(begin.table_id, begin.version, phase=phase, digest=begin.digest)
    table_id = (await table.log.header()).metadata.id if report.position is None else report.position.table_id
    ledger_name = None if config.progress.ledger.kind == "none" else f"the ledger {ledger}"
    start = decide(report.position, report.entry, table_id, policies.ledger_counts, sink.place, ledger_name)
    assert start.position is not None
    report.reason = start.reason
    if start.warning:
        report.warnings.append(start.reason)
    return start.position
