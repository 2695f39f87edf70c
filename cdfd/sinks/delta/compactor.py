"""Compacts small files of a target, in versions of their own that change no data."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdfd.changes.read import TableFiles
from cdfd.delta import compaction
from cdfd.delta.actions import Add
from cdfd.delta.file_actions import removals
from cdfd.delta.row_tracking import gives_ids
from cdfd.delta.schema import ColumnMappingMode
from cdfd.delta.snapshot import Snapshot
from cdfd.errors import CdfdError, DataError
from cdfd.parquet.writer import DataFile, DataFileWriter
from cdfd.progress.txn_log import TxnLog
from cdfd.progress.txn_state import Action, TxnState
from cdfd.sinks.delta.columns import Columns, columns_of
from cdfd.sinks.delta.data_files import GROUP_BYTES, NewFile, new_path, no_other_root
from cdfd.sinks.delta.log_actions import add_fields
from cdfd.storage.base import Storage
from cdfd.tail.clock import Clock

logger = logging.getLogger("cdfd.sink")


class Compactor:
    """Compacts files of a table that one process writes.

    Args:
        storage: the table's root.
        clock: the source of time.
        check: raises a `CdfdError` if this process may not write the table in a state.
        compression: of the new files.
        file_bytes: a new file ends at about this size.
    """

    def __init__(
        self, storage: Storage, clock: Clock, check: Callable[[TxnState], None], compression: str, file_bytes: int
    ) -> None:
        self._storage = storage
        self._files = TableFiles(storage, no_other_root)
        self._clock = clock
        self._check = check
        self._compression = compression
        self._file_bytes = file_bytes

    async def compact(self, state: Snapshot) -> None:
        """Compact files of the newest version. If another version comes first, the old files stay, and a later call tries again.

        An error is only logged. New files that no version names are removed by VACUUM. They are not removed here: the store may have
        written the version, although its answer was lost.
        """
        groups = compaction.groups(state, self._file_bytes, self._file_bytes * 4)
        # Rows keep their ids only in files that have these as columns.
        if not groups or gives_ids(state.protocol, state.metadata):
            return
        log = TxnLog(self._storage, self._clock, operation="OPTIMIZE", check=self._check, blind=False)
        try:
            found = await log.state()
            if found is None or found.version != state.version:
                return
            columns = columns_of(found)
            if columns.mapping is ColumnMappingMode.ID:
                return
            actions: list[Action] = []
            for group in groups:
                actions += await self._replaced(group, columns)
            await log.append(lambda now: actions if now.version == state.version else [])
        except (CdfdError, pa.ArrowException) as error:
            extra = {"table": self._storage.uri, "version": state.version}
            logger.warning("cannot compact files of the target: %s", error, extra=extra)

    async def _replaced(self, files: Sequence[Add], columns: Columns) -> list[Action]:
        """Write the rows of files into a new one; the actions that replace them."""
        partitions = () if columns.materialized else columns.stored_partitions
        fields = [
            field for field in columns.stored if field.name not in partitions and not pa.types.is_null(field.type)
        ]
        written = await asyncio.to_thread(self._merge, files, pa.schema(fields), columns.mapping)
        now = self._clock.now_ms()
        removed = removals(files, now, data_change=False)
        if not written.rows:
            return removed
        path = new_path(self._compression)
        await self._storage.put(path, memoryview(written.data))
        values = files[0].partition_values
        file = NewFile(path, tuple(values.values()), written.data.size, written.stats, written.rows)
        return [*removed, ("add", add_fields(file, tuple(values), now, data_change=False))]

    def _merge(self, files: Sequence[Add], schema: pa.Schema, mapping: ColumnMappingMode) -> DataFile:
        writer = DataFileWriter(schema, self._compression)
        pending: list[pa.Table] = []
        for file in files:
            pending.append(self._read(file, schema, mapping))
            if sum(rows.nbytes for rows in pending) >= GROUP_BYTES:
                writer.write(pa.concat_tables(pending))
                pending = []
        if pending:
            writer.write(pa.concat_tables(pending))
        return writer.finish()

    def _read(self, file: Add, schema: pa.Schema, mapping: ColumnMappingMode) -> pa.Table:
        """The rows of a file that are not deleted, in the types that the table has now."""
        with self._storage.open_input_file(file.path, file.size) as source:
            rows = pq.ParquetFile(source, coerce_int96_timestamp_unit="us").read()
        deleted = self._files.vector_rows(file.deletion_vector, len(rows))
        unknown = set(rows.schema.names) - set(schema.names)
        # With a mapping by name, a column that was dropped stays in files. Without one, each column of a file is a column of the table.
        if len(set(rows.schema.names)) < len(rows.schema.names) or (unknown and mapping is ColumnMappingMode.NONE):
            raise DataError("a file has columns that the table does not have", path=file.path)
        columns = [
            pc.cast(rows.column(field.name), field.type)
            if field.name in rows.schema.names
            else pa.nulls(len(rows), field.type)
            for field in schema
        ]
        table = pa.table(columns, schema)
        if deleted is None:
            return table
        kept = np.ones(len(table), np.bool_)
        places = deleted.to_array()
        if len(places) and places[-1] >= len(table):
            raise DataError("the deletion vector names rows that the file does not have", path=file.path)
        kept[places] = False
        return table.filter(pa.array(kept))
