"""`cdfd sample`: the records of some rows, as a daemon would send them. Sends nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdfd.cli.commands.progress import table_of
from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.deliver.configured import execution, open_table
from cdfd.errors import CdfdError, ConfigError, MissingColumnError
from cdfd.escaping import as_json as json_of
from cdfd.escaping import one_line
from cdfd.log.start import check_range, check_rows_from, start_version
from cdfd.log.table import Table
from cdfd.model.columns import CHANGE_TYPE
from cdfd.sinks.base import Sample, connector

_NEWEST = 10
"""Versions that are searched for changes, from the newest back."""


def run(
    path: Path,
    name: str,
    *,
    start: str | None = None,
    rows: int = 2,
    as_json: bool = False,
    sink: str | None = None,
) -> str:
    """The records as text or JSON.

    Args:
        path: of the configuration file.
        name: of the table.
        start: a version or a time; the first version with changes from there on is taken. None: the newest version with changes, or live
            rows if there is none.
        rows: change rows at most. Both images of an update count, and there is one more row if they would end between the two.
        as_json: whether to return JSON.
        sink: one of several sinks; None: the only one.

    Raises:
        ConfigError: the configuration is invalid, or has no such table or sink.
        CdfdError: the table cannot be read, or its rows cannot be encoded.
    """
    config, table = table_of(path, name, sink)
    source = open_table(config, table)
    table_id, batch, snapshot = asyncio.run(_rows(config, source, table, start, rows))
    sample = connector(config).sample(table, table_id, batch, snapshot=snapshot)
    return json_of(_document(sample), indent=2) + "\n" if as_json else "\n".join(_lines(sample)) + "\n"


async def _rows(
    config: Settings, source: Table, table: settings.Table, start: str | None, count: int
) -> tuple[str, pa.RecordBatch, bool]:
    """The table's id, change rows, and whether they are live rows."""
    header = await source.log.header()
    newest, table_id = header.version, header.metadata.id
    if start is not None:
        first = await start_version(source.log, start)
        await check_range(source.log, first, newest)
        batch = await _first(config, source, table, range(first, newest + 1), count)
        if batch is None:
            raise ConfigError(f"no row changed from {start} on", hint="Leave --from out, or choose another version")
        return table_id, batch, False
    for version in range(newest, max(-1, newest - _NEWEST), -1):
        try:
            batch = await _first(config, source, table, range(version, version + 1), count)
        except (ConfigError, MissingColumnError):
            raise
        except CdfdError:
            # Older files may be gone, and live rows do.
            break
        if batch is not None:
            return table_id, batch, False
    with source.tailer() as tailer:
        live = await source.stream(table.rows).snapshot(await source.log.latest_version(), tailer)
    for changes in execution(config, source, table).batches([live.plan]):
        if changes.rows.num_rows:
            return table_id, changes.rows.slice(0, count), True
    raise ConfigError("the table has no rows", hint="Repeat the command when it has some")


async def _first(
    config: Settings, source: Table, table: settings.Table, versions: range, count: int
) -> pa.RecordBatch | None:
    """The first rows of the first version that has any, and one more if they end between the images of an update; None if none has."""
    if not versions:
        return None
    await check_rows_from(source.log, table.rows, versions.start)
    rows = execution(config, source, table)
    with source.tailer() as tailer:
        planned = source.stream(table.rows).versions(tailer, versions.start, versions.stop - 1)
        async with contextlib.aclosing(planned):
            async for version in planned:
                for changes in rows.batches([version.plan]):
                    if changes.rows.num_rows:
                        types = changes.rows.column(CHANGE_TYPE).slice(0, count).to_pylist()
                        return changes.rows.slice(0, count + (types[-1] == "update_preimage"))
    return None


def _document(sample: Sample) -> dict[str, Any]:
    records = [
        {
            "key": _text(each.key),
            "headers": {name: _text(value) for name, value in each.headers},
            "value": _text(each.value),
            "size": each.size,
        }
        for each in sample.records
    ]
    schemas = [
        {"subject": each.subject, "kind": each.kind, "state": each.state, "schema": each.text}
        for each in sample.schemas
    ]
    return {"topic": sample.topic, "records": records, "schemas": schemas}


def _lines(sample: Sample) -> Iterator[str]:
    for number, each in enumerate(sample.records, 1):
        yield f"record {number} of topic {sample.topic}, {each.size:,} bytes"
        yield f"  key     {_show(each.key)}"
        for name, value in each.headers:
            yield f"  header  {one_line(name)}: {_show(value)}"
        yield f"  value   {_show(each.value)}"
        yield ""
    for schema in sample.schemas:
        yield f"schema of subject {one_line(schema.subject)} ({schema.kind}), {one_line(schema.state)}"
        yield from (f"  {one_line(line)}" for line in schema.text.splitlines())
        yield ""


def _show(data: bytes | None) -> str:
    return "null" if data is None else one_line(_text(data) or "")


def _text(data: bytes | None) -> str | None:
    """Text as it is; a frame before it, and other bytes, as hexadecimal digits."""
    if data is None:
        return None
    frame = 5 if data[:1] == b"\0" else 0
    try:
        text = data[frame:].decode()
    except UnicodeDecodeError:
        return "0x" + data.hex()
    if any(mark < " " for mark in text):  # JSON escapes these
        return "0x" + data.hex()
    return f"0x{data[:frame].hex()} {text}" if frame else text
