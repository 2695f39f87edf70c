"""The difference of two states: of two versions of a table, or of two tables. Equal files of one table are not read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdfd.delta.actions import Add
from cdfd.delta.files import PackedFiles
from cdfd.delta.types.schema import ColumnMappingMode, TableSchema
from cdfd.log.bounds import Start
from cdfd.log.start import state_version
from cdfd.log.table import Table
from cdfd.model.columns import CHANGE_TYPE, constant_type
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.plan.reconciliation import SchemaReconciler
from cdfd.plan.row_options import check_key_is_read
from cdfd.runtime.arrays import array_of, to_numpy
from cdfd.scan.execute import Execution
from cdfd.scan.updates.net import NetChanges
from cdfd.scan.updates.spill import SpillSpace


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
        found = await table.stream().snapshot(await state_version(table.log, version))
        return cls(table, found.plan)


@dataclass(frozen=True, slots=True)
class Difference:
    """Change rows that make one state of another.

    Attributes:
        before, after: the states.
        key: columns that identify a row. Without any, a row that differs is deleted and inserted.
        columns: the columns to compare; None: all of `after`.
        space: local disk, for rows that do not fit into memory.
    """

    before: State
    after: State
    key: tuple[str, ...]
    columns: tuple[str, ...] | None
    space: SpillSpace

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Deletes, updates and inserts.

        Raises:
            CdfdError: the states cannot be read, or have columns of types that cannot be compared.
        """
        one_table = self.before.table.uri == self.after.table.uri
        schema = self.after.plan.schema
        key = schema.select(self.key).names if self.key else ()
        check_key_is_read(self.key, self.columns)
        target = schema if self.columns is None else schema.select(self.columns)
        if not one_table:
            # Columns of two tables are the same by their names, whatever files call them.
            target = TableSchema(target.struct, (), ColumnMappingMode.NONE)
        reconciler = SchemaReconciler(target)
        net = NetChanges(target.arrow, key, self.space)
        plans = self.before.plan, self.after.plan
        if one_table and plans[0].schema == plans[1].schema:
            plans = _without_common(*plans)
        for state, plan, change_type in zip((self.before, self.after), plans, ("delete", "insert"), strict=True):
            execution = Execution(state.table.files, select=reconciler.select)
            for found in execution.batches([plan]):
                net.add(_typed(reconciler.reconcile(found), change_type))
        yield from net.batches()


def _typed(rows: pa.RecordBatch, change_type: str) -> pa.RecordBatch:
    place = rows.schema.get_field_index(CHANGE_TYPE)
    return rows.set_column(place, rows.schema.field(place), constant_type(change_type, rows.num_rows))


def _without_common(before: ChangePlan, after: ChangePlan) -> tuple[ChangePlan, ChangePlan]:
    """The plans without the files that both have, with the same deletion vector."""
    assert isinstance(before.scans, LiveScans)
    assert isinstance(after.scans, LiveScans)
    mine, theirs = before.scans.files, after.scans.files
    paths = [
        pc.is_in(one.paths, value_set=other.paths.combine_chunks()) for one, other in ((mine, theirs), (theirs, mine))
    ]
    keys = [{add.key for add in _chosen(files, found)} for files, found in zip((mine, theirs), paths, strict=True)]
    common = keys[0] & keys[1]
    made = (
        replace(plan, scans=LiveScans(_left(files, found, common)))
        for plan, files, found in zip((before, after), (mine, theirs), paths, strict=True)
    )
    one, two = made
    return one, two


def _chosen(files: PackedFiles[Add], found: pa.ChunkedArray) -> PackedFiles[Add]:
    return PackedFiles(Add, files.table.filter(found))


def _left(
    files: PackedFiles[Add], found: pa.ChunkedArray, common: Sequence[object] | set[tuple[str, str | None]]
) -> PackedFiles[Add]:
    keep = np.ones(len(files), np.bool_)
    places = np.flatnonzero(to_numpy(found))
    for place, add in zip(places, _chosen(files, found), strict=True):
        keep[place] = add.key not in common
    return PackedFiles(Add, files.table.filter(array_of(keep)))
