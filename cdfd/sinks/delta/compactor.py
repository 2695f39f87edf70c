"""Compacts small files of a target, in versions of their own that change no data.

The small files of a table that become one file. Pure.

Files of one partition are taken in the order of their age until they are a file of the wanted size. The size of a file with a deletion
vector is that of the rows that it still has, so a large file becomes small when rows are deleted. Files outside of the table's folder are
left out, and files that are clustered: another file would not be.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cdfd.delta.actions import Add
from cdfd.delta.file_actions import removals
from cdfd.delta.files import PackedFiles
from cdfd.delta.snapshot import Snapshot
from cdfd.delta.statistics import record_count
from cdfd.delta.types.schema import ColumnMappingMode, TableSchema
from cdfd.delta.types.values import parse_partition
from cdfd.delta.write.writing import ROW_IDS_PRESERVED, has_type, keeps_ids
from cdfd.errors import CdfdError, DataError
from cdfd.model.file_scan import FileScan, RowIds
from cdfd.model.refinement import RowTracking
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of
from cdfd.runtime.clock import Clock
from cdfd.scan.file_reader import BATCH_ROWS, selection_of
from cdfd.scan.parquet.reader import open_parquet
from cdfd.scan.parquet.writer import DataFile, DataFileWriter
from cdfd.scan.table_files import TableFiles, naming_file
from cdfd.scan.updates.row_ids import FileRowIds
from cdfd.sinks.delta.columns import Columns, columns_of
from cdfd.sinks.delta.data_files import GROUP_BYTES, NewFile, new_path, no_other_root
from cdfd.sinks.delta.log_actions import add_actions
from cdfd.sinks.ledger.txn_log import TxnLog
from cdfd.sinks.ledger.txn_state import NO_TAGS, Action, TxnState
from cdfd.storage.base import Storage

logger = logging.getLogger("cdfd.sink")


@dataclass(frozen=True, slots=True)
class Compaction:
    """How small files are compacted.

    Attributes:
        compression: of the new files, unless the table says another one.
        file_bytes: a new file ends at about this size.
    """

    compression: str
    file_bytes: int


@dataclass(eq=False)
class Compactor:
    """Compacts files of a table that one process writes.

    Attributes:
        storage: the table's root.
        clock: the source of time.
        check: raises a `CdfdError` if this process may not write the table in a state.
        how: files are compacted.
    """

    storage: Storage
    clock: Clock
    check: Callable[[TxnState], None]
    how: Compaction

    async def compact(self, state: Snapshot) -> None:
        """Compact files of the newest version. If another version comes first, the old files stay, and a later call tries again.

        An error is only logged. New files that no version names are removed by VACUUM. They are not removed here: the store may have
        written the version, although its answer was lost.
        """
        groups = await asyncio.to_thread(file_groups, state, self.how.file_bytes, self.how.file_bytes * 4)
        if not groups:
            return
        ids = RowTracking.of(state.metadata.configuration) if keeps_ids(state.protocol, state.metadata) else None
        tags = NO_TAGS if ids is None else ROW_IDS_PRESERVED
        log = TxnLog(self.storage, self.clock, operation="OPTIMIZE", check=self.check, blind=False, tags=tags)
        try:
            newest = await log.state()
            if newest is None or newest.version != state.version:
                return
            columns = columns_of(newest)
            # cdfd reads a variant as text, and would write it as such.
            if columns.mapping is ColumnMappingMode.ID or has_type(columns.struct, "variant"):
                return
            removed, files = list[Action](), list[NewFile]()
            for group in groups:
                files += await self._merge_files(group, columns, ids)
                removed += await asyncio.to_thread(removals, group, self.clock.now_ms(), data_change=False)
            added = add_actions(newest, columns, files, self.clock.now_ms(), data_change=False)
            actions = [*removed, *added]
            await log.append(lambda now: actions if now.version == state.version else [])
        except (CdfdError, pa.ArrowException) as error:
            extra = {"table": self.storage.uri, "version": state.version}
            logger.warning("cannot compact files of the target: %s", error, extra=extra)

    async def _merge_files(self, files: Sequence[Add], columns: Columns, ids: RowTracking | None) -> list[NewFile]:
        """Write the rows of files into a new one, with their ids; no file if all rows are deleted."""
        partitions = () if columns.materialized else columns.stored_partitions
        fields = [
            field for field in columns.stored if field.name not in partitions and not pa.types.is_null(field.type)
        ]
        codec = columns.compression or self.how.compression
        # A file may be older than the rule that files have the partition columns too.
        table = TableSchema(columns.struct, columns.partition_by, columns.mapping)
        parsed = parse_partition(files[0].partition_values, table) if columns.materialized else {}
        constants = {
            table.physical_name(child): parsed[child.name] for child in table.partition_fields if child.name in parsed
        }
        written = await asyncio.to_thread(self._merge, files, pa.schema(fields), columns.mapping, constants, ids, codec)
        if not written.rows:
            return []
        path = new_path(codec)
        await self.storage.put(path, memoryview(written.data))
        values = files[0].partition_values
        partition = tuple(values.get(name) for name in columns.stored_partitions)
        return [NewFile(path, partition, written.data.size, written.stats, written.rows)]

    def _merge(
        self,
        files: Sequence[Add],
        schema: pa.Schema,
        mapping: ColumnMappingMode,
        constants: Mapping[str, pa.Scalar[Any]],
        ids: RowTracking | None,
        codec: str,
    ) -> DataFile:
        hidden = []
        if ids is not None:
            if ids.row_id is None or ids.row_version is None:
                raise DataError("the table has row tracking, and no names for columns of row ids")
            hidden = [ids.row_id, ids.row_version]
        stored = pa.schema([*schema, *(pa.field(name, pa.int64()) for name in hidden)])
        writer = DataFileWriter(stored, codec, hidden)
        pending: list[pa.Table] = []
        for file in files:
            for rows in self._batches(file, schema, hidden, mapping, constants, ids):
                pending.append(rows)
                if sum(table.nbytes for table in pending) >= GROUP_BYTES:
                    writer.write(pa.concat_tables(pending))
                    pending = []
        if pending:
            writer.write(pa.concat_tables(pending))
        return writer.finish()

    def _batches(
        self,
        file: Add,
        schema: pa.Schema,
        hidden: Sequence[str],
        mapping: ColumnMappingMode,
        constants: Mapping[str, pa.Scalar[Any]],
        ids: RowTracking | None,
    ) -> Iterator[pa.Table]:
        """The rows of a file that are not deleted, in the types that the table has now, and their ids in the hidden columns."""
        count = record_count(file.stats)
        scan = FileScan(file.path, "insert", {}, file.size, without=file.deletion_vector, num_records=count)
        with (
            naming_file(file.path),
            self.storage.open_input_file(file.path, file.size) as source,
            open_parquet(source) as data,
        ):
            selection = selection_of(scan, TableFiles(self.storage, no_other_root), data.metadata)
            names = data.schema_arrow.names
            unknown = set(names) - set(schema.names) - set(hidden)
            # With a mapping by name, a column that was dropped stays in files. Without one, each column of a file is a column of the table.
            if len(set(names)) < len(names) or (unknown and mapping is ColumnMappingMode.NONE):
                raise DataError("a file has columns that the table does not have")
            row_ids = None
            if ids is not None:
                if file.base_row_id is None or file.default_row_commit_version is None:
                    raise DataError("the file has no row ids")
                bases = RowIds(file.base_row_id, file.default_row_commit_version)
                row_ids = FileRowIds.of(bases, ids, data.schema_arrow)
            wanted = [name for name in names if name in schema.names]
            stored = pa.schema([*schema, *(pa.field(name, pa.int64()) for name in hidden)])
            row = 0
            for batch in data.batches([*wanted, *(() if row_ids is None else row_ids.names)], rows=BATCH_ROWS):
                columns = [
                    pc.cast(batch.column(field.name), field.type)
                    if field.name in wanted
                    else pa.repeat(constants[field.name], batch.num_rows)
                    if field.name in constants
                    else pa.nulls(batch.num_rows, field.type)
                    for field in schema
                ]
                if row_ids is not None:
                    columns += map(array_of, row_ids.of_batch(batch, row))
                rows = pa.RecordBatch.from_arrays(columns, schema=stored)
                yield pa.Table.from_batches([selection.filter(rows, row)])
                row += batch.num_rows


LEAST_FILES = 8
"""Fewer files are not worth a new one, unless many of their rows are deleted."""
_MOST_FILES = 10_000
"""Files that are looked at, at most."""


def file_groups(state: Snapshot, file_bytes: int, most_bytes: int) -> list[Sequence[Add]]:
    """Groups of files, each of one partition, that become one file each.

    Args:
        state: with statistics, and all fields of files.
        file_bytes: a new file ends at about this size. Files of half of it stay as they are.
        most_bytes: the size of all file_groups with their deleted rows, at most.
    """
    table = state.live().table
    # The bytes of the rows that are not deleted, about; all bytes if the number of rows is not known.
    rows = pc.struct_field(pc.extract_regex(table.column("stats"), _ROWS), "rows").cast(pa.float64())
    deleted_rows = pc.struct_field(table.column("deletion_vector"), "cardinality").cast(pa.float64())
    share = pc.subtract(1.0, pc.divide(deleted_rows, pc.max_element_wise(rows, 1.0, skip_nulls=False)))
    bytes_left = pc.multiply(table.column("size").cast(pa.float64(), safe=False), pc.fill_null(share, 1.0))
    small = pc.less(bytes_left, file_bytes // 2)
    inside = pc.invert(pc.match_substring_regex(table.column("path"), "^/|:"))
    apart = pc.is_null(table.column("clustering_provider"))
    mask = pc.and_(pc.and_(small, inside), apart)
    chosen = table.filter(mask)
    order = pc.sort_indices(chosen, [("time", "ascending")])[:_MOST_FILES]
    oldest = chosen.take(order)
    left = dict(zip(oldest.column("path").to_pylist(), bytes_left.filter(mask).take(order).to_pylist(), strict=True))
    groups: list[Sequence[Add]] = []
    budget = most_bytes
    partitions: dict[tuple[tuple[str, str | None], ...], list[Add]] = {}
    for file in PackedFiles(Add, oldest):
        partitions.setdefault(tuple(sorted(file.partition_values.items())), []).append(file)
    for files in partitions.values():
        runs: list[list[Add]] = [[]]
        size = 0
        for file in files:
            if size >= file_bytes:
                runs.append([])
                size = 0
            runs[-1].append(file)
            size += file.size
        for group in runs:
            size = sum(file.size for file in group)
            deleted = size - sum(left[file.path] for file in group)
            if (len(group) >= LEAST_FILES or deleted >= file_bytes // 2) and size <= budget:
                groups.append(group)
                budget -= size
    return groups


_ROWS = r'"numRecords":\s*(?P<rows>[0-9]{1,15})\b'
