"""`cdfd diff`: the rows that differ between two versions of a table, or between two tables."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cdfd.cli.commands.tail import Writer, open_output
from cdfd.delta.actions import Add
from cdfd.delta.files import PackedFiles
from cdfd.delta.types.schema import ColumnMappingMode, TableSchema
from cdfd.encode.side import RowCounts
from cdfd.errors import ConfigError, SchemaChangedError, Within
from cdfd.log.bounds import Start
from cdfd.log.range_schema import schemas_between
from cdfd.log.start import state_version
from cdfd.log.table import Table
from cdfd.model.columns import CHANGE_TYPE, constant_type
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.plan.reconciliation import SchemaReconciler, with_replaced
from cdfd.plan.row_options import check_key_is_read
from cdfd.runtime import allocator
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of, to_numpy
from cdfd.scan.execute import Execution
from cdfd.scan.updates.net import NetChanges
from cdfd.scan.updates.spill import spill_space


def run(
    uri: str,
    start: str | None,
    end: str | None,
    other_uri: str | None,
    *,
    key: tuple[str, ...],
    columns: tuple[str, ...] | None,
    only_summary: bool,
    output: Path | None,
    access: Mapping[str, Any],
) -> None:
    """Print the rows that differ, and a summary to standard error.

    Args:
        uri: the table.
        start: the version before; None: that of `end`, if there is another table.
        end: the version after; None: the newest.
        other_uri: another table, which is the state after.
        key: columns that identify a row.
        columns: the columns to compare; None: all.
        only_summary: print the summary alone, as JSON on standard output.
        output: file for the rows.
        access: other arguments of `Table.open`. The storage options are those of catalogs.

    Raises:
        CdfdError: with table, version and file.
    """
    if start is None and other_uri is None:
        raise ConfigError("diff needs two states", hint="Give --from VERSION, or --other TABLE")
    allocator.settle()
    table = _open(uri, access)
    other = table if other_uri is None else _open(other_uri, access)
    before, after = asyncio.run(State.at(table, start)), asyncio.run(State.at(other, end))
    counts = RowCounts()
    with open_output(output, "refuse") as out:
        writer = Writer(uri, "flat", out)
        for batch in difference(before, after, key, columns):
            counts.add(batch)
            if not only_summary:
                writer.write_rows([batch])
        rows = counts.by_type()
        total = {"insert": rows["insert"], "update": rows["update_postimage"], "delete": rows["delete"]}
        if only_summary:
            states = {
                name: {"table": state.table.uri, "version": state.plan.version}
                for name, state in (("before", before), ("after", after))
            }
            document = {**states, **total, "equal": not any(total.values())}
            out.write(json.dumps(document).encode() + b"\n")
            out.flush()
    if not only_summary:
        where = f"version {before.plan.version} and version {after.plan.version}"
        if before.table.uri != after.table.uri:
            where = f"{before.table.uri} ({before.plan.version}) and {after.table.uri} ({after.plan.version})"
        if not any(total.values()):
            summary = f"{where} have the same rows"
        else:
            summary = (
                f"{where} differ: {total['insert']} inserted, {total['update']} updated, {total['delete']} deleted"
            )
        print(summary, file=sys.stderr)  # noqa: T201 - a summary for people, beside the rows


def _open(uri: str, access: Mapping[str, Any]) -> Table:
    by_name = uri.startswith(("uc://", "glue://"))
    return Table.open(uri, **access if by_name else {**access, "storage_options": None})


@dataclass(frozen=True, slots=True)
class State:
    """The live rows of a table at a version."""

    table: Table
    plan: ChangePlan

    @classmethod
    async def at(cls, table: Table, version: Start | None) -> State:
        """The state at a version or a time; None: the newest.

        Raises:
            CdfdError: there is no such version, or it cannot be read.
        """
        planned = await table.stream().snapshot(await state_version(table.log, version))
        return cls(table, planned.plan)


def difference(
    before: State, after: State, key: tuple[str, ...], columns: tuple[str, ...] | None
) -> Iterator[pa.RecordBatch]:
    """Change rows that make one state of another: deletes, updates and inserts.

    Args:
        before: the first state.
        after: the other one.
        key: columns that identify a row. Without any, a row that differs is deleted and inserted.
        columns: the columns to compare; None: all of `after`.

    Raises:
        CdfdError: the states cannot be read, or have columns of types that cannot be compared.
    """
    one_table = before.table.uri == after.table.uri
    schema = after.plan.schema
    check_key_is_read(key, columns)
    with Within(after.table.uri, after.plan.version):
        key_names = schema.select(key).names if key else ()
        if one_table and before.plan.schema != schema:
            schema = asyncio.run(_with_replaced(after.table, before.plan, after.plan))
        target = schema if columns is None else schema.select(columns)
    if not one_table:
        # Columns of two tables are the same by their names, whatever files call them.
        target = TableSchema(target.struct, (), ColumnMappingMode.NONE)
    reconciler = SchemaReconciler(target)
    try:
        reconciler.select(before.plan.schema)
    except SchemaChangedError as error:
        error.hint = "Compare the other columns, with --columns"
        raise error.within(table=before.table.uri, version=before.plan.version) from None
    net = NetChanges(target.arrow, key_names, spill_space())
    plans = before.plan, after.plan
    if one_table and plans[0].schema == plans[1].schema:
        plans = _without_common(*plans)
    for state, plan, change_type in zip((before, after), plans, ("delete", "insert"), strict=True):
        execution = Execution(state.table.files, select=reconciler.select)
        for batch in execution.batches([plan]):
            rows = reconciler.reconcile(batch)
            place = rows.schema.get_field_index(CHANGE_TYPE)
            types = constant_type(change_type, rows.num_rows)
            net.add(rows.set_column(place, rows.schema.field(place), types))
    yield from net.batches()


async def _with_replaced(table: Table, before: ChangePlan, after: ChangePlan) -> TableSchema:
    first, last = sorted((before.version, after.version))
    schemas = await schemas_between(table.log, first + 1, await table.log.header(last))
    return with_replaced([*(schemas if last == after.version else schemas[::-1]), after.schema])


def _without_common(before: ChangePlan, after: ChangePlan) -> tuple[ChangePlan, ChangePlan]:
    """The plans without the files that both have, with the same deletion vector."""
    assert isinstance(before.scans, LiveScans)
    assert isinstance(after.scans, LiveScans)
    mine, theirs = before.scans.files, after.scans.files
    in_both = [
        pc.is_in(one.paths, value_set=other.paths.combine_chunks()) for one, other in ((mine, theirs), (theirs, mine))
    ]
    candidates = [
        PackedFiles(Add, files.table.filter(paths)) for files, paths in zip((mine, theirs), in_both, strict=True)
    ]
    common = {add.key for add in candidates[0]} & {add.key for add in candidates[1]}
    scans = []
    for files, paths, adds in zip((mine, theirs), in_both, candidates, strict=True):
        keep = np.ones(len(files), np.bool_)
        keep[np.flatnonzero(to_numpy(paths))] = [add.key not in common for add in adds]
        scans.append(LiveScans(PackedFiles(Add, files.table.filter(array_of(keep)))))
    return replace(before, scans=scans[0]), replace(after, scans=scans[1])
