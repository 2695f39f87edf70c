"""Random Parquet files of real writers, each with every option that it has, and the table that was written."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import ColumnProperties, WriterProperties, write_deltalake

from cdfd.scan.parquet import reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001
WORDS = ["", "a", "word", "word of twelve", "a text that is longer than a view can have inside", "ü€😀", "x" * 300]


def text(chance: Random) -> str:
    return chance.choice(WORDS) + str(chance.randrange(5))


def time_of(chance: Random) -> datetime:
    return EPOCH + timedelta(seconds=chance.randrange(-3 * 10**9, 5 * 10**9), microseconds=chance.randrange(10**6))


def whole(bits: int) -> Callable[[Random], int]:
    return lambda chance: chance.choice([0, 1, -1, chance.getrandbits(bits - 1), -chance.getrandbits(bits - 1)])


SCALARS: dict[pa.DataType, Callable[[Random], Any]] = {
    pa.bool_(): lambda chance: chance.random() < 0.5,
    pa.int8(): whole(8),
    pa.int16(): whole(16),
    pa.int32(): whole(32),
    pa.int64(): whole(64),
    pa.float32(): lambda chance: float(chance.randrange(-(1 << 20), 1 << 20)) / 64,
    pa.float64(): lambda chance: chance.choice([0.0, -0.0, float("inf"), chance.random(), 1e300]),
    pa.string(): text,
    pa.binary(): lambda chance: chance.randbytes(chance.choice([0, 1, 12, 13, 200])),
    pa.date32(): lambda chance: date(1970, 1, 1) + timedelta(days=chance.randrange(-200_000, 200_000)),
    pa.timestamp("us", "UTC"): lambda chance: time_of(chance).replace(tzinfo=UTC),
    pa.timestamp("us"): time_of,
    pa.decimal128(9, 2): lambda chance: Decimal(chance.randrange(-(10**9) + 1, 10**9)).scaleb(-2),
    pa.decimal128(18, 0): lambda chance: Decimal(chance.randrange(-(10**18) + 1, 10**18)),
    pa.decimal128(38, 5): lambda chance: Decimal(chance.randrange(-(10**27), 10**27)).scaleb(-5),
}
"""Types that Delta has."""
OTHERS: dict[pa.DataType, Callable[[Random], Any]] = {
    pa.uint8(): lambda chance: chance.randrange(1 << 8),
    pa.uint32(): lambda chance: chance.randrange(1 << 32),
    pa.uint64(): lambda chance: chance.randrange(1 << 64),
    pa.time32("ms"): lambda chance: (time_of(chance).replace(microsecond=5_000)).time(),
    pa.time64("us"): lambda chance: time_of(chance).time(),
    pa.timestamp("ms"): lambda chance: time_of(chance).replace(microsecond=7_000),
    pa.binary(7): lambda chance: chance.randbytes(7),
    pa.large_string(): text,
}


def type_of(chance: Random, scalars: list[pa.DataType], depth: int = 0) -> pa.DataType:
    """A random type; the deeper, the fewer nested ones."""
    if chance.random() < 0.65 + depth / 6:
        return chance.choice(scalars)
    inner = lambda: type_of(chance, scalars, depth + 1)  # noqa: E731
    match chance.randrange(3):
        case 0:
            return pa.list_(pa.field("element", inner(), chance.random() < 0.7))
        case 1:
            return pa.map_(pa.string(), inner())
    fields = [pa.field(f"f{number}", inner(), chance.random() < 0.7) for number in range(chance.randrange(1, 4))]
    return pa.struct(fields)


def value_of(chance: Random, kind: pa.DataType, nulls: float) -> Any:
    """A random value, which is None so often."""
    if chance.random() < nulls:
        return None
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return {field.name: value_of(chance, field.type, nulls if field.nullable else 0) for field in fields}
    if pa.types.is_map(kind):
        count = chance.choice([0, 1, 3])
        return [(f"k{number}", value_of(chance, kind.item_type, nulls)) for number in range(count)]
    if pa.types.is_list(kind):
        share = nulls if kind.value_field.nullable else 0
        return [value_of(chance, kind.value_type, share) for _ in range(chance.choice([0, 1, 2, 9]))]
    return (SCALARS | OTHERS)[kind](chance)


def table_of(chance: Random, scalars: list[pa.DataType]) -> pa.Table:
    """Few columns and up to some hundred rows, which often repeat each other."""
    rows = chance.choice([0, 1, 7, 60, 300])
    fields, columns = [], []
    for number in range(chance.randrange(1, 5)):
        field = pa.field(f"c{number}", type_of(chance, scalars), chance.random() < 0.7)
        nulls = chance.choice([0, 0.2, 0.9, 1])
        values = [
            value_of(chance, field.type, nulls if field.nullable else 0)
            for _ in range(chance.choice([1, 5, rows]) or 1)
        ]
        # The nulls come at once, or everywhere.
        if chance.random() < 0.3:
            values.sort(key=lambda value: value is not None)
        fields.append(field)
        columns.append(pa.array(list(itertools.islice(itertools.cycle(values), rows)), field.type))
    return pa.table(columns, schema=pa.schema(fields))


def leaves_of(data: pa.Schema) -> list[tuple[str, str]]:
    """The leaf columns of a schema as Parquet names them, and their physical types."""
    sink = io.BytesIO()
    pq.write_table(data.empty_table(), sink)
    leaves = pq.ParquetFile(sink).schema
    return [(leaves.column(place).path, leaves.column(place).physical_type) for place in range(len(leaves))]


ENCODINGS = {
    "INT32": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
    "INT64": ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
    "FLOAT": ["PLAIN", "BYTE_STREAM_SPLIT"],
    "DOUBLE": ["PLAIN", "BYTE_STREAM_SPLIT"],
    "BYTE_ARRAY": ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"],
    "FIXED_LEN_BYTE_ARRAY": ["PLAIN", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"],
    "BOOLEAN": ["PLAIN", "RLE"],
}


def by_pyarrow(chance: Random, table: pa.Table, _: Path) -> tuple[bytes, dict[str, Any]]:
    """A file, and the options that it was written with."""
    options: dict[str, Any] = {
        "compression": chance.choice(["none", "snappy", "zstd", "gzip", "lz4", "brotli"]),
        "data_page_version": chance.choice(["1.0", "2.0"]),
        "data_page_size": chance.choice([1, 40, 500, 1 << 20]),
        "write_batch_size": chance.choice([1, 7, 64, 1_024]),
        "row_group_size": chance.choice([1, 11, 64, 1_000]),
        "max_rows_per_page": chance.choice([1, 20, 20_000]),
        "use_dictionary": chance.random() < 0.5,
        "dictionary_pagesize_limit": chance.choice([1, 100, 1 << 20]),
        "store_schema": chance.random() < 0.5,
        "store_decimal_as_integer": chance.random() < 0.5,
        "use_deprecated_int96_timestamps": chance.random() < 0.2,
        "use_content_defined_chunking": chance.random() < 0.1,
        "write_page_index": chance.random() < 0.3,
        "write_page_checksum": chance.random() < 0.3,
        "write_statistics": chance.random() < 0.7,
        "use_compliant_nested_type": chance.random() < 0.8,
    }
    if (
        not options["use_dictionary"]
        and options["use_compliant_nested_type"]
        and not options["store_decimal_as_integer"]
    ):
        options["column_encoding"] = {
            path: chance.choice(ENCODINGS[kind])
            for path, kind in leaves_of(table.schema)
            if kind in ENCODINGS and not options["use_deprecated_int96_timestamps"]
        }
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue(), options


def by_delta_rs(chance: Random, table: pa.Table, folder: Path) -> tuple[bytes, dict[str, Any]]:
    """The same by the writer of arrow-rs, if there are rows: else it writes no file."""
    if not len(table):
        return by_pyarrow(chance, table, folder)
    column = {
        "dictionary_enabled": chance.random() < 0.5,
        "statistics_enabled": chance.choice(["NONE", "CHUNK", "PAGE"]),
    }
    options: dict[str, Any] = {
        "compression": chance.choice(["UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "LZ4_RAW", "ZSTD"]),
        "data_page_size_limit": chance.choice([1, 100, 1 << 20]),
        "dictionary_page_size_limit": chance.choice([1, 100, 1 << 20]),
        "data_page_row_count_limit": chance.choice([1, 30, 20_000]),
        "write_batch_size": chance.choice([1, 7, 1_024]),
        "max_row_group_size": chance.choice([1, 64, 1_000]),
    }
    properties = WriterProperties(default_column_properties=ColumnProperties(**column), **options)  # type: ignore[arg-type]
    write_deltalake(folder, table, mode="overwrite", writer_properties=properties)
    [path] = sorted(folder.glob("*.parquet"))
    return path.read_bytes(), options | column


def by_spark(chance: Random, table: pa.Table, folder: Path, spark: SparkSession) -> tuple[bytes, dict[str, Any]]:
    """The same by parquet-mr, with pages of version 1 or 2."""
    options = {
        "compression": chance.choice(["none", "snappy", "gzip", "zstd", "lz4", "lz4_raw"]),
        "parquet.writer.version": chance.choice(["PARQUET_1_0", "PARQUET_2_0"]),
        "parquet.enable.dictionary": chance.choice(["true", "false"]),
        "parquet.page.size": chance.choice(["64", "500", "1048576"]),
        "parquet.page.row.count.limit": chance.choice(["1", "30", "20000"]),
        "parquet.block.size": chance.choice(["1024", "134217728"]),
        "parquet.page.size.row.check.min": "1",
        "parquet.block.size.row.check.min": "10",
    }
    settings = {
        "spark.sql.parquet.outputTimestampType": chance.choice(["INT96", "TIMESTAMP_MICROS"]),
        "spark.sql.parquet.writeLegacyFormat": chance.choice(["true", "false"]),
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    frame = spark.createDataFrame(table)  # type: ignore[arg-type]
    frame.coalesce(1).write.options(**options).parquet(str(folder))
    [path] = sorted(folder.glob("*.parquet"))
    return path.read_bytes(), options | settings


def read(chance: Random, data: bytes) -> pa.Table:
    """A file as cdfd reads it, in batches of some size."""
    with reader.open_parquet(pa.BufferReader(data)) as file:
        rows, threads = chance.choice([1, 9, 70, 65_536]), chance.random() < 0.5
        names = file.schema_arrow.names
        return pa.Table.from_batches(file.batches(names, rows=rows, use_threads=threads), file.schema_arrow)


def is_same(one: pa.Table, other: pa.Table) -> bool:
    """Whether the rows are the same, once their types are."""
    if len(one) != len(other) or one.column_names != other.column_names:
        return False
    for left, right in zip(one.columns, other.columns, strict=True):
        if left.type != right.type:
            try:
                right = right.cast(left.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                if left.to_pylist() != right.to_pylist():
                    return False
                continue
        if left.combine_chunks() != right.combine_chunks():
            return False
    return True


DELTA = list(SCALARS)
WITH_ZONES = [kind for kind in DELTA if kind != pa.timestamp("us")]
"""delta-rs does not write times without a zone in nested columns."""
ALL = DELTA * 2 + list(OTHERS)
Write: TypeAlias = "Callable[[Random, pa.Table, Path], tuple[bytes, dict[str, Any]]]"


def difference(write: Write, seed: int, folder: Path, types: list[pa.DataType]) -> tuple[str, bool]:
    """The difference between a random file's rows and the rows that cdfd reads, empty if none, and whether pyarrow reads the file, too.

    Args:
        write: of the writer.
        seed: of the table and of the writer's options.
        folder: for the writer.
        types: of leaf columns.
    """
    chance = Random(seed)
    table = table_of(chance, types)
    data, options = write(chance, table, folder)
    what = f"seed {seed}: {table.schema.to_string()}, {options}"
    if not is_same(read(chance, data), table):
        return f"other rows were written: {what}", False
    try:
        theirs = pq.read_table(io.BytesIO(data))
    except (pa.ArrowException, OSError):
        return "", False
    # pyarrow loses rows of files that contain pages of nulls or of no rows. It reads all other files correctly.
    if len(theirs) == len(table) and not is_same(theirs, table):
        return f"pyarrow reads other rows: {what}", True
    return "", len(theirs) == len(table)
