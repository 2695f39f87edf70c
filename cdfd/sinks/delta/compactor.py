"""Compacts small files of a target, in versions of their own that change no data.

The small files of a table that become one file. Pure.

Files of one partition are taken in the order of their age until they are a file of the wanted size. The size of a file with a deletion
vector is that of the rows that it still has, so a large file becomes small when rows are deleted. Files outside of the table's folder are
left out, and files that are clustered: another file would not be.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from cdfd.delta.actions import Add
from cdfd.delta.file_actions import removals
from cdfd.delta.files import PackedFiles
from cdfd.delta.snapshot import Snapshot
from cdfd.delta.statistics import record_count
from cdfd.delta.types.datatypes import StructType
from cdfd.delta.types.schema import ColumnMappingMode, TableSchema
from cdfd.delta.write.writing import ROW_IDS_PRESERVED, has_type, keeps_ids
from cdfd.errors import CdfdError, DataError
from cdfd.model.file_scan import FileScan, RowIds
from cdfd.model.refinement import RowTracking
from cdfd.runtime import compute as pc
from cdfd.runtime.clock import Clock
from cdfd.scan.file_reader import BATCH_ROWS, FileReader
from cdfd.scan.parquet.writer import DataFile, DataFileWriter
from cdfd.scan.table_files import TableFiles
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


async def compact(
    storage: Storage, clock: Clock, check: Callable[[TxnState], None], how: Compaction, state: Snapshot
) -> None:
    """Compact files of the newest version. If another version comes first, the old files stay, and a later call tries again.

    An error is only logged. New files that no version names are removed by VACUUM. They are not removed here: the store may have
    written the version, although its answer was lost.

    Args:
        storage: the table's root.
        clock: the source of time.
        check: raises a `CdfdError` if this process may not write the table in a state.
        how: files are compacted.
        state: the newest version.
    """
    groups = await asyncio.to_thread(file_groups, state, how.file_bytes, how.file_bytes * 4)
    if not groups:
        return
    ids = RowTracking.of(state.metadata.configuration) if keeps_ids(state.protocol, state.metadata) else None
    tags = NO_TAGS if ids is None else ROW_IDS_PRESERVED
    log = TxnLog(storage, clock, operation="OPTIMIZE", check=check, blind=False, tags=tags)
    try:
        newest = await log.state()
        if newest is None or newest.version != state.version:
            return
        columns = columns_of(newest)
        # cdfd reads a variant as text, and would write it as such.
        if columns.mapping is ColumnMappingMode.ID or has_type(columns.struct, "variant"):
            return
        codec = columns.compression or how.compression
        removed, files = list[Action](), list[NewFile]()
        for group in groups:
            merged = await asyncio.to_thread(_merge, storage, group, columns, ids, codec)
            if merged.rows:
                path = new_path(codec)
                await storage.put(path, memoryview(merged.data))
                values = group[0].partition_values
                partition = tuple(values.get(name) for name in columns.stored_partitions)
                files.append(NewFile(path, partition, merged.data.size, merged.stats, merged.rows))
            removed += await asyncio.to_thread(removals, group, clock.now_ms(), data_change=False)
        added = add_actions(newest, columns, files, clock.now_ms(), data_change=False)
        actions = [*removed, *added]
        await log.append(lambda now: actions if now.version == state.version else [])
    except (CdfdError, pa.ArrowException) as error:
        extra = {"table": storage.uri, "version": state.version}
        logger.warning("cannot compact files of the target: %s", error, extra=extra)


def _merge(storage: Storage, group: Sequence[Add], columns: Columns, ids: RowTracking | None, codec: str) -> DataFile:
    """The rows of files that are not deleted, in the types that the table has now, and their ids in hidden columns."""
    hidden = []
    if ids is not None:
        if ids.row_id is None or ids.row_version is None:
            raise DataError("the table has row tracking, and no names for columns of row ids")
        hidden = [ids.row_id, ids.row_version]
    left_out = () if columns.materialized else columns.partition_by
    fields = {
        child.name: field
        for child, field in zip(columns.struct, columns.stored, strict=True)
        if child.name not in left_out and not pa.types.is_null(field.type)
    }
    struct = StructType(tuple(child for child in columns.struct if child.name in fields))
    table = TableSchema(struct, columns.partition_by if columns.materialized else (), columns.mapping)
    stored = pa.schema([*fields.values(), *(pa.field(name, pa.int64()) for name in hidden)])
    writer = DataFileWriter(stored, codec, hidden)
    table_files = TableFiles(storage, no_other_root)
    pending: list[pa.Table] = []
    for file in group:
        count = record_count(file.stats)
        scan = FileScan(
            file.path, "insert", file.partition_values, file.size, without=file.deletion_vector, num_records=count
        )
        with table_files.open_scan(scan) as (_, data):
            reader = FileReader.prepare(data, table, scan, table_files)
            names = data.schema_arrow.names
            unknown = set(names).difference(stored.names)
            # With a mapping by name, a column that was dropped stays in files. Without one, each column of a file is a column of the table.
            if len(set(names)) < len(names) or (unknown and columns.mapping is ColumnMappingMode.NONE):
                raise DataError("a file has columns that the table does not have")
            if ids is not None:
                if file.base_row_id is None or file.default_row_commit_version is None:
                    raise DataError("the file has no row ids")
                bases = RowIds(file.base_row_id, file.default_row_commit_version)
                reader = replace(reader, row_ids=FileRowIds.of(bases, ids, data.schema_arrow))
            for batch in reader.batches(BATCH_ROWS, use_threads=False):
                # Structs have other names inside: those are a part of the type.
                arrays = [
                    array if array.type == kind else array.view(kind)
                    for array, kind in zip(batch.columns, stored.types, strict=False)
                ]
                pending.append(pa.table(arrays, stored))
                if sum(rows.nbytes for rows in pending) >= GROUP_BYTES:
                    writer.write(pa.concat_tables(pending))
                    pending = []
    if pending:
        writer.write(pa.concat_tables(pending))
    return writer.finish()


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
    pattern = r'"numRecords":\s*(?P<rows>[0-9]{1,15})\b'
    rows = pc.struct_field(pc.extract_regex(table.column("stats"), pattern), "rows").cast(pa.float64())
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
