"""Writes Arrow record batches as one file."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cdfd.errors import ConfigError, DataError
from cdfd.runtime.arrays import type_without_views
from cdfd.trevni import avro_schema
from cdfd.trevni.arrow_schema import avro_schema as to_avro
from cdfd.trevni.checksums import Checksum
from cdfd.trevni.codecs import Codec
from cdfd.trevni.column_writer import BLOCK_BYTES, LARGEST_BLOCK
from cdfd.trevni.file_writer import BlockStore, FileWriter
from cdfd.trevni.metadata import RESERVED, Kind
from cdfd.trevni.rows import Run, run_all
from cdfd.trevni.shredding import shred

CHUNK_BYTES = 16 << 20
"""Bytes of rows that are encoded together, about."""
MOST_COLUMNS = 100_000
"""Columns of a file that is written, at most."""


class TableWriter:
    """Writes the rows of one file.

    Args:
        schema: of the rows. Its metadata is written as that of the file.
        store: keeps blocks until the file is complete.
        codec: of all columns, or by name of the physical column; the file's default has the name "".
        checksum: as `codec`.
        first_values: physical columns whose blocks have their first values in their descriptors.
        metadata: of the file, besides that of the schema.
        block_bytes: size from which a block ends.

    Raises:
        UnsupportedError: a column is of a type that files cannot have.
        ConfigError: an unknown codec, checksum or column, first values of an array column, or an argument of a wrong type.
    """

    def __init__(
        self,
        schema: pa.Schema,
        store: BlockStore,
        *,
        codec: str | Mapping[str, str] = "snappy",
        checksum: str | Mapping[str, str] = "crc32",
        first_values: Collection[str] = (),
        metadata: Mapping[str, str | bytes] | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.schema = schema
        # First, because it refuses types that are nested too deeply to walk over.
        text = to_avro(schema)
        fields = [field.with_type(type_without_views(field.type)) for field in schema]
        self._stored = pa.schema(fields, schema.metadata)
        columns, self._shape = avro_schema.parse(text, MOST_COLUMNS)
        codecs = codec if isinstance(codec, Mapping) else {"": codec}
        checksums = checksum if isinstance(checksum, Mapping) else {"": checksum}
        if not isinstance(block_bytes, int | np.integer) or not 0 <= block_bytes <= LARGEST_BLOCK:
            raise ConfigError(f"block_bytes is {block_bytes!r:.100}", hint=f"Give a number up to {LARGEST_BLOCK}")
        by_name = {column.name: column for column in columns}
        for name in (*({*codecs, *checksums} - {""}), *first_values):
            if name not in by_name:
                hint = f"The columns are {', '.join(by_name)[:300]}"
                raise ConfigError(f"there is no physical column {name!r:.100}", hint=hint)
        for name in first_values:
            if not by_name[name].plain:
                hint = "Declare the column as not nullable: a nullable one is an array column"
                raise ConfigError(f"the array column {name!r:.100} cannot have first values", hint=hint)
        by_default = _choice(Codec, codecs.get("", "snappy")), _choice(Checksum, checksums.get("", "crc32"))
        chosen = [
            replace(
                column,
                codec=_choice(Codec, codecs[column.name]) if column.name in codecs else by_default[0],
                checksum=_choice(Checksum, checksums[column.name]) if column.name in checksums else by_default[1],
                values=column.name in first_values,
            )
            for column in columns
        ]
        self._writer = FileWriter(
            chosen,
            store,
            codec=by_default[0],
            checksum=by_default[1],
            metadata=_metadata(schema, metadata or {}) | {avro_schema.KEY: text},
            block_bytes=block_bytes,
        )
        self._pending: list[pa.RecordBatch] = []
        self._bytes = 0
        self._writing = False

    def write(self, batch: pa.RecordBatch, run: Run = run_all) -> None:
        """Append rows.

        Args:
            batch: of the schema.
            run: encodes columns in parallel.

        Raises:
            ConfigError: the batch has another schema.
            DataError: a column has nulls and must not, or a row is too large; or an earlier call did not complete.
        """
        if not batch.schema.equals(self.schema):
            raise ConfigError("the rows have another schema than the file", hint="Write them to another file")
        if self._stored != self.schema:
            # Arrow neither filters views nor, in older releases, knows how many bytes they take.
            try:
                batch = batch.cast(self._stored)
            except pa.ArrowInvalid as error:
                raise DataError(f"the rows are not of their schema: {error}") from None
        self._pending.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= CHUNK_BYTES:
            self._flush(run)

    def _flush(self, run: Run) -> None:
        if self._writing:  # some columns may have rows that others lack
            what = "an earlier write did not complete, so the file would lack rows"
            raise DataError(what, hint="Write the file again")
        if not self._pending:
            return
        self._writing = True
        table = pa.Table.from_batches(self._pending).combine_chunks()
        rows = max(1, table.num_rows * CHUNK_BYTES // max(self._bytes, 1))
        self._pending, self._bytes = [], 0
        for batch in table.to_batches(max_chunksize=rows):
            count = batch.num_rows
            struct = pa.Array.from_buffers(pa.struct(list(batch.schema)), count, [None], children=batch.columns)
            self._writer.write(count, shred(self._shape, struct), run)
        self._writing = False

    def finish(self, run: Run = run_all) -> Iterable[bytes | memoryview]:
        """The bytes of the file, in parts.

        Raises:
            DataError: as `write`.
        """
        self._flush(run)
        return self._writer.finish(run)


def _metadata(schema: pa.Schema, own: Mapping[str, str | bytes]) -> dict[str, bytes]:
    metadata = {
        key.decode(errors="replace"): value
        for key, value in (schema.metadata or {}).items()
        if not key.startswith(RESERVED.encode())
    }
    for key, value in own.items():
        try:
            key.encode()
            metadata[key] = value.encode() if isinstance(value, str) else memoryview(value).tobytes()
        except (AttributeError, TypeError, UnicodeEncodeError):
            what = f"the metadata has {key!r:.100}: {value!r:.100}"
            raise ConfigError(what, hint="Give keys as text, and values as text or bytes") from None
        if key.startswith(RESERVED) or key == avro_schema.KEY:
            raise ConfigError(f"the metadata has {key!r:.100}, which the format uses itself", hint="Choose another key")
    return metadata


def _choice(kind: type[Kind], name: str) -> Kind:
    try:
        return kind(name)
    except ValueError:
        what = f"there is no {kind.__name__.lower()} {name!r:.100}"
        raise ConfigError(what, hint=f"Choose one of {', '.join(kind)}") from None
