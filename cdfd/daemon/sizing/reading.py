"""Reads the work of a pipeline's tables from their logs, and the measured costs. Reads no data file, and writes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from importlib.resources import files

from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.daemon.sizing.estimate import Costs
from cdfd.daemon.sizing.workload import HOUR_MS, RowCounts, TableWork, VersionWork, scanned_rows, version_work
from cdfd.deliver.configured import open_table
from cdfd.errors import CdfdError, Within
from cdfd.log.bounds import After
from cdfd.log.start import start_version
from cdfd.log.table import Table
from cdfd.model.plan import LiveScans
from cdfd.runtime.clock import Clock

AT_A_TIME = 16
"""Tables whose logs are read at once."""
DAY_MS = 24 * HOUR_MS


def costs() -> Costs:
    """The measured costs, which `bench/sizing.py` writes."""
    return Costs.of(json.loads(files("cdfd.daemon.sizing").joinpath("costs.json").read_text(encoding="utf-8")))


async def read_work(config: Settings, days: float, clock: Clock) -> tuple[list[TableWork], list[CdfdError]]:
    """The work of the tables of a configuration, and the errors of those that cannot be read.

    Args:
        config: with its tables.
        days: how far back.
    """
    turns = asyncio.Semaphore(AT_A_TIME)

    async def read(table: settings.Table) -> TableWork | CdfdError:
        async with turns:
            try:
                return await _table_work(config, table, days, clock)
            except CdfdError as error:
                return error.within(table=table.uri)

    results: Sequence[TableWork | CdfdError] = await asyncio.gather(*map(read, config.listed))
    works = [result for result in results if isinstance(result, TableWork)]
    return works, [result for result in results if isinstance(result, CdfdError)]


async def _table_work(config: Settings, table: settings.Table, days: float, clock: Clock) -> TableWork:
    source = open_table(config, table)
    now_ms = clock.now_ms()
    since_ms = now_ms - round(days * DAY_MS)
    with Within(source.uri):
        newest = await source.stream(table.rows).snapshot()
        scans = newest.plan.scans
        assert isinstance(scans, LiveScans)
        size = scans.files.total_size()
        rows = scanned_rows(scans, RowCounts(0.0))
        first = max(
            await start_version(source.log, "earliest"),
            await start_version(source.log, After(datetime.fromtimestamp(since_ms / 1000, UTC)), now_ms),
        )
        work = await _versions(source, table, first, newest.plan.version, RowCounts(rows / max(size, 1)), clock)
    began_ms = max(since_ms, work[0].at_ms) if work and first == 0 else since_ms
    # A table that is younger than an hour is measured by the hour.
    hours = max(1.0, (now_ms - began_ms) / HOUR_MS)
    return TableWork(table.name, source.log.storage.remote, hours, work, rows, size)


async def _versions(
    source: Table, table: settings.Table, first: int, last: int, counts: RowCounts, clock: Clock
) -> list[VersionWork]:
    work, stream = [], source.stream(table.rows)
    with source.tailer(clock) as tailer:
        async with aclosing(stream.versions(tailer, first, last)) as planned:
            async for version in planned:
                metrics = {} if stream.info is None else stream.info.operation_metrics
                work.append(version_work(version.plan, metrics, counts))
    return work
