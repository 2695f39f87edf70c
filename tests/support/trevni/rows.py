"""Tables of random rows, with all types that a Delta table can have."""

import datetime as dt
import decimal
import random
from typing import Any

import pyarrow as pa
from pyarrow import types

INNER = pa.struct(
    [
        pa.field("x", pa.int32()),
        pa.field("y y", pa.list_(pa.string())),
        pa.field("z", pa.int64(), nullable=False),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("string", pa.string()),
        pa.field("long", pa.int64(), nullable=False),
        pa.field("integer", pa.int32()),
        pa.field("short", pa.int16()),
        pa.field("byte", pa.int8()),
        pa.field("float", pa.float32()),
        pa.field("double", pa.float64(), nullable=False),
        pa.field("flag", pa.bool_()),
        pa.field("bit", pa.bool_(), nullable=False),
        pa.field("binary", pa.binary()),
        pa.field("date", pa.date32()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestamp_ntz", pa.timestamp("us")),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("exact", pa.decimal128(38, 10), nullable=False),
        pa.field("struct", INNER),
        pa.field("flat", INNER, nullable=False),
        pa.field("list", pa.list_(pa.field("element", INNER))),
        pa.field("bits", pa.list_(pa.list_(pa.bool_()))),
        pa.field("texts", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
        pa.field("map", pa.map_(pa.string(), pa.int32())),
        pa.field("maps", pa.map_(pa.int32(), pa.map_(pa.string(), pa.list_(pa.decimal128(5, 1))))),
        pa.field("places", pa.map_(INNER, pa.map_(pa.list_(pa.int32()), pa.string()))),
        pa.field("variant", pa.json_(pa.string())),
        pa.field("a b.c#", pa.int32()),
        pa.field("void", pa.null()),
        pa.field("nothing", pa.struct([]), nullable=False),
        pa.field("perhaps", pa.struct([])),
    ]
)
"""Every type, nullable or not, and nested."""


def table(rows: int, schema: pa.Schema = SCHEMA, seed: int = 1, nulls: float = 0.3) -> pa.Table:
    """Random rows. `nulls` is the share of nulls in nullable columns."""
    chance = random.Random(seed)
    columns = [
        pa.array([_value(field.type, field.nullable, chance, nulls) for _ in range(rows)], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _value(kind: Any, nullable: bool, chance: random.Random, nulls: float) -> Any:
    if types.is_null(kind) or (nullable and chance.random() < nulls):
        return None
    if types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return {each.name: _value(each.type, each.nullable, chance, nulls) for each in fields}
    if types.is_map(kind):
        keys = [_value(kind.key_type, False, chance, nulls) for _ in range(chance.randrange(4))]
        unique = {repr(key): key for key in keys}.values()
        return [(key, _value(kind.item_type, True, chance, nulls)) for key in unique]
    if types.is_list(kind):
        nullable = kind.value_field.nullable
        return [_value(kind.value_type, nullable, chance, nulls) for _ in range(chance.randrange(4))]
    return _simple(kind, chance)


def _simple(kind: Any, chance: random.Random) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        return '{"a": [1, "é"]}'
    if types.is_string(kind):
        return "".join(chance.choice("abcé🍖") for _ in range(chance.choice([0, 1, 3, 10, 100])))
    if types.is_binary(kind):
        return chance.randbytes(chance.randrange(20))
    if types.is_boolean(kind):
        return chance.random() < 0.5
    if types.is_integer(kind):
        bits = chance.randrange(1, kind.bit_width)
        return chance.randrange(-(2**bits), 2**bits)
    if types.is_floating(kind):
        return chance.choice([float("inf"), -0.0, chance.randrange(-1000, 1000) / 8])
    if types.is_date(kind):
        return dt.date(1970, 1, 1) + dt.timedelta(days=chance.randrange(-10_000, 10_000))
    if types.is_timestamp(kind):
        zone = dt.UTC if kind.tz else None
        return dt.datetime(1970, 1, 1, tzinfo=zone) + dt.timedelta(microseconds=chance.randrange(-(10**15), 10**15))
    digits = chance.randrange(-(10**kind.precision) + 1, 10**kind.precision)
    return decimal.Decimal(digits).scaleb(-kind.scale, decimal.Context(prec=50))
