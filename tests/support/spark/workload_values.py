"""Types, names and values of random tables: whatever delta-spark lets a column be.

Values are drawn with an eye on the ends of their ranges, and are Arrow before they are Spark's.
"""

import datetime
import inspect
import random
from collections.abc import Callable, Sequence
from decimal import Decimal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

# PySpark 4.2 has it as `timezone`, and 4.1 always.
_UTC = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
INSTANTS = [
    EPOCH,
    datetime.datetime(2024, 2, 29, 12, 30, 1, 123456, tzinfo=datetime.UTC),
    datetime.datetime(1, 1, 1, tzinfo=datetime.UTC),
    datetime.datetime(1582, 10, 4, 3, tzinfo=datetime.UTC),
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.UTC),
    datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.UTC),
]
DATES = [
    datetime.date(1, 1, 1),
    datetime.date(1582, 10, 4),
    datetime.date(1969, 12, 31),
    datetime.date(2024, 2, 29),
    datetime.date(9999, 12, 31),
]
TEXTS = ["", "a", "ü\u2028\n", '"quoted"\\', "x" * 300, "\U0001f600", " pad ", "null"]

# SQL types that a column may have besides the fixed ones.
TYPES = [
    "TINYINT",
    "SMALLINT",
    "INT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "BOOLEAN",
    "STRING",
    "BINARY",
    "DATE",
    "DECIMAL(4, 1)",
    "DECIMAL(12, 3)",
    "DECIMAL(38, 10)",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "ARRAY<BIGINT>",
    "ARRAY<STRUCT<a: INT, `b-c`: ARRAY<STRING>>>",
    "MAP<STRING, INT>",
    "MAP<INT, STRUCT<x: DATE, y: TIMESTAMP>>",
    "STRUCT<x: BIGINT, y: STRING>",
    "STRUCT<s: STRUCT<t: TIMESTAMP, u: BINARY>, n: DECIMAL(5, 2)>",
]
PLAIN_NAMES = [
    "Upper",
    "ünïcode",
    "dash-ed",
    "dot.ted",
    "select",
    "per%cent",
    "_metadata_",
    "0digit",
    "sl/ash",
    "plus+",
]
# Parquet's own enemies: only column mapping has them.
MAPPED_NAMES = ["a b", "c,d", "e;f", "g=h", "(i)", "{j}", "tab\there", "quo`te", "new\nline", *PLAIN_NAMES]

# Values of partition columns, by SQL type: few of each, and with names that a folder cannot have as they are.
PARTITIONS: dict[str, Sequence[object]] = {
    "STRING": ["a b", "c/d", "e=f", "g%25h", "ü", "q'r", "a:b#?", "", "tab\t", "null", None],
    "INT": [-1, 0, 7, None],
    "BIGINT": [-(2**63), 2**63 - 1, None],
    "TINYINT": [-128, 0, None],
    "BOOLEAN": [True, False, None],
    "DATE": [*DATES, None],
    "DECIMAL(6, 2)": [Decimal("1.10"), Decimal("-0.05"), Decimal("9999.99"), None],
    "DOUBLE": [1.5, -2.25, 1e300, float("inf"), None],
    "FLOAT": [0.1, -3.5, None],
    "TIMESTAMP": [*INSTANTS[:2], INSTANTS[4], None],
    "TIMESTAMP_NTZ": [instant.replace(tzinfo=None) for instant in [*INSTANTS[:2], INSTANTS[4]]] + [None],
    "BINARY": [b"ab", b"c d", None],
}

Make = Callable[[random.Random], object]


def _decimal(r: random.Random, kind: t.DecimalType) -> Decimal:
    largest = 10**kind.precision - 1
    # By text: arithmetic would round to the 28 digits of the context.
    return Decimal(f"{r.choice([largest, -largest, 0, r.randint(-largest, largest)])}E-{kind.scale}")


SIMPLE: dict[type[t.DataType], Make] = {
    t.ByteType: lambda r: r.randint(-128, 127),
    t.ShortType: lambda r: r.randint(-(2**15), 2**15 - 1),
    t.IntegerType: lambda r: r.choice([-(2**31), 2**31 - 1, r.randint(-9, 9)]),
    t.LongType: lambda r: r.choice([-(2**63), 2**63 - 1, r.randint(-9, 9)]),
    t.FloatType: lambda r: r.choice([float("nan"), float("-inf"), -0.0, r.randint(-99, 99) / 4]),
    t.DoubleType: lambda r: r.choice([float("nan"), float("inf"), 5e-324, r.random()]),
    t.BooleanType: lambda r: r.random() < 0.5,
    t.StringType: lambda r: r.choice(TEXTS),
    t.BinaryType: lambda r: r.randbytes(r.randint(0, 5)),
    t.DateType: lambda r: r.choice(DATES),
    t.TimestampType: lambda r: r.choice(INSTANTS),
    t.TimestampNTZType: lambda r: r.choice(INSTANTS).replace(tzinfo=None),
}


def value(r: random.Random, kind: t.DataType) -> object:
    """A value of a type, as pyarrow takes it; null one time in ten."""
    if r.random() < 0.1:
        return None
    if isinstance(kind, t.DecimalType):
        return _decimal(r, kind)
    if isinstance(kind, t.ArrayType):
        return [value(r, kind.elementType) for _ in range(r.randint(0, 3))]
    if isinstance(kind, t.MapType):
        keys = r.sample(range(5), r.randint(0, 2))
        texts = isinstance(kind.keyType, t.StringType)
        return [(str(key) if texts else key, value(r, kind.valueType)) for key in keys]
    if isinstance(kind, t.StructType):
        return {field.name: value(r, field.dataType) for field in kind}
    return SIMPLE[type(kind)](r)


def frame(spark: SparkSession, schema: t.StructType, columns: dict[str, list[object]]) -> DataFrame:
    """Rows for Spark, whose timestamps are in UTC."""
    arrays = [pa.array(columns[field.name], to_arrow_type(field.dataType, **_UTC)) for field in schema]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, names=schema.names), schema)


def quoted(name: str) -> str:
    """A name as SQL takes it."""
    return "`" + name.replace("`", "``") + "`"
