"""Change rows with a column of each type that a key may have."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa

from cdfd.model.columns import CHANGE_COLUMNS, CHANGE_TYPES

_AT = dt.datetime(2026, 1, 31, 12, 30, 15, 123456, dt.UTC)
_COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [1, -(2**63), None]),
    "int": (pa.int32(), [1, -5, None]),
    "short": (pa.int16(), [1, -5, None]),
    "byte": (pa.int8(), [1, -5, None]),
    "double": (pa.float64(), [0.1, -0.0, float("nan")]),
    "float": (pa.float32(), [0.5, 1e30, None]),
    "string": (pa.string(), ["a", 'é "\\\n\x01', None]),
    "binary": (pa.binary(), [b"\0\xff", b"", None]),
    "boolean": (pa.bool_(), [True, False, None]),
    "date": (pa.date32(), [dt.date(2026, 1, 31), dt.date(1, 1, 1), None]),
    "decimal": (pa.decimal128(10, 2), [Decimal("12.30"), Decimal("-0.01"), None]),
    "timestamp": (pa.timestamp("us", "UTC"), [_AT, dt.datetime(1969, 12, 31, tzinfo=dt.UTC), None]),
    "timestamp_ntz": (pa.timestamp("us"), [_AT.replace(tzinfo=None), dt.datetime(1969, 12, 31), None]),  # noqa: DTZ001
    "struct": (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": None}, {"a": None, "b": "x"}, None]),
}

KEYS = pa.RecordBatch.from_arrays(
    [
        *(pa.array(values, kind) for kind, values in _COLUMNS.values()),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int8()), CHANGE_TYPES),
        pa.array([1, 1, 1], pa.int64()),
        pa.array([_AT] * 3).cast(pa.timestamp("ms", "UTC"), safe=False),
        pa.array([0, 1, 2], pa.int64()),
    ],
    schema=pa.schema([*(pa.field(name, kind) for name, (kind, _) in _COLUMNS.items()), *CHANGE_COLUMNS]),
)
