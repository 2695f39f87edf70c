"""Columns of every type with extreme values, filters with literals near them, and the bounds that writers keep of such columns."""

import decimal
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from cdfd.delta.types.arrow_types import arrow_type
from cdfd.delta.types.schema import Decimal, Primitive, StructField, StructType, TableSchema
from cdfd.delta.types.values import format_date, format_timestamp

EXACT = decimal.Context(prec=2000)
DAY = 86_400_000_000
DAYS = [-719_162, -354_285, -141_437, -141_428, -141_427, -40_000, -1, 0, 736, 737, 738, 20_000, 2_932_896]
"""The first days of the years 1 and 1000, the change of the calendar, the time before zones, 1970, 1972, and the end of the year 9999."""


@dataclass(frozen=True)
class Column:
    """A column `x` of one file.

    Attributes:
        kind: the type that it was written in.
        raw: its values: unscaled decimals, days, microseconds, or the values themselves.
        field: in the table, whose type may be wider.
    """

    kind: Primitive | Decimal
    raw: Sequence[Any]
    field: StructField

    @property
    def stored(self) -> pa.Array:
        """The values in the type of the file."""
        kind = arrow_type(self.kind)
        if isinstance(self.kind, Decimal):
            return pa.array([None if each is None else number(each, self.kind.scale) for each in self.raw], kind)
        if pa.types.is_temporal(kind):
            return pa.array(self.raw, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)
        return pa.array(self.raw, kind)

    @property
    def rows(self) -> pa.RecordBatch:
        """The rows in the type of the table."""
        return pa.record_batch([self.stored.cast(arrow_type(self.field.type))], ["x"])

    def schema(self, *partition_by: str) -> TableSchema:
        """The schema of the table."""
        return TableSchema(StructType((self.field,)), partition_by)

    @property
    def values(self) -> list[Any]:
        """The values that are not null."""
        return [each for each in self.raw if each is not None]

    def literal(self, raw: Any) -> Any:
        """A value by which literals of the column's type are made."""
        scale = self.kind.scale if isinstance(self.kind, Decimal) else 0
        kind = str(self.field.type)
        if kind == "timestamp_ntz" and str(self.kind) == "date":
            return raw * DAY
        return raw if kind in LITERALS else number(raw, scale)


def number(unscaled: int, scale: int) -> decimal.Decimal:
    """A decimal with all its digits."""
    return decimal.Decimal(f"{unscaled}E{-scale}")


def _whole(bits: int) -> st.SearchStrategy[int]:
    end = 1 << (bits - 1)
    known = [each for each in (0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1) if -end <= each < end]
    return st.sampled_from([*known, -end, 1 - end, end - 1, end - 2]) | st.integers(-end, end - 1)


def _unscaled(digits: int) -> st.SearchStrategy[int]:
    end = 10**digits - 1
    known = [0, 1, -1, end, -end, end - 1, 1 - end, end // 2, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1]
    return st.sampled_from([each for each in known if abs(each) <= end]) | st.integers(-end, end)


def _floats(width: Any) -> st.SearchStrategy[float]:
    known = [
        0.0,
        -0.0,
        math.nan,
        math.inf,
        -math.inf,
        1.5,
        *(float(np.float32(each)) for each in (0.1, -0.3, 16777217)),
    ]
    return st.sampled_from(known) | st.floats(width=width) | st.floats(-1, 1, width=width)


def _times(unit: int, *steps: int) -> st.SearchStrategy[int]:
    days = st.sampled_from(DAYS) | st.integers(-(10**5), 10**5)
    return st.builds(lambda day, step: day * (DAY // unit) + step, days, st.sampled_from([0, 1, -1, *steps]))


_LETTERS = st.sampled_from("aAz~é\ud7ff\ufffd\uffff\U0001f600\U0010ffff'")
_TEXTS = st.builds(
    lambda start, end: start + end,
    st.sampled_from(["", "aaa", "aaaa", "a" * 31, "a" * 32, "a" + "\U0001f600" * 2]),
    st.text(_LETTERS, max_size=4),
)
_SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "byte": _whole(8),
    "short": _whole(16),
    "integer": _whole(32),
    "long": _whole(64),
    "float": _floats(32),
    "double": _floats(64),
    "string": _TEXTS,
    "binary": st.binary(max_size=3) | st.sampled_from([b"\n", b"\\n", b"\\x0a", b"\xff" * 40]),
    "boolean": st.booleans(),
    "date": _times(DAY),
    "timestamp": _times(1, 500, -500, 999, -999, 60_000_000),
    "timestamp_ntz": _times(1, 500, -500, 999, -999),
}
_WIDER: dict[str, list[Primitive | Decimal]] = {
    "byte": [Primitive("short"), Primitive("long"), Decimal(38, 5)],
    "short": [Primitive("integer"), Primitive("double"), Decimal(10, 0)],
    "integer": [Primitive("long"), Primitive("double"), Decimal(20, 10)],
    "long": [Decimal(38, 0), Decimal(20, 0)],
    "float": [Primitive("double")],
    "date": [Primitive("timestamp_ntz")],
}
_MAYBE_NULL: st.SearchStrategy[list[Any]] = st.sampled_from([[], [], [None]])
KINDS: dict[str, Sequence[str]] = {
    "decimals": ["decimal"],
    "whole numbers": ["byte", "short", "integer", "long"],
    "floats": ["float", "double"],
    "texts": ["string", "binary", "boolean"],
    "dates": ["date"],
    "timestamps": ["timestamp", "timestamp_ntz"],
}


@st.composite
def columns(draw: Any, names: Sequence[str]) -> Column:
    """A column of one of these types. It may have been written before its type became wider."""
    name: Any = draw(st.sampled_from(names))
    if name == "decimal":
        digits = draw(st.sampled_from([1, 9, 15, 16, 18, 19, 28, 29, 30, 38]) | st.integers(1, 38))
        kind: Any = Decimal(digits, draw(st.sampled_from([0, digits]) | st.integers(0, digits)))
        values: Any = _unscaled(digits)
        more = draw(st.integers(0, 38 - digits))
        wider: list[Any] = [Decimal(digits + more, kind.scale + draw(st.integers(0, more)))]
    else:
        kind, values, wider = Primitive(name), _SIMPLE[name], _WIDER.get(name, [])
    raw = draw(st.lists(values, min_size=1, max_size=3))
    raw += (
        draw(st.sampled_from([[], [], [None], [None, math.nan]])) if name in ("float", "double") else draw(_MAYBE_NULL)
    )
    if not wider or draw(st.booleans()):
        return Column(kind, raw, StructField("x", kind))
    wide = draw(st.sampled_from(wider))
    changes = [{"fromType": str(kind), "toType": str(wide)}]
    return Column(kind, raw, StructField("x", wide, True, {"delta.typeChanges": changes}))


@st.composite
def filters(draw: Any, column: Column) -> list[str]:
    """Filters of the column, whose literals are values of it or near one."""
    name = str(column.field.type)
    near = LITERALS.get(name, _numbers)
    one, other = (draw(near(column.literal(draw(st.sampled_from(column.values))))) for _ in range(2))
    terms = [f"x {operator} {one}" for operator in ("=", "<>", "<", "<=", ">", ">=")]
    terms += [f"{one} < x", f"x BETWEEN {one} AND {other}", f"x IN ({one}, {other})", "x IS NULL"]
    return [*terms, *(f"NOT ({term})" for term in terms)]


@st.composite
def _numbers(draw: Any, value: decimal.Decimal) -> str:
    """An exact number, or one that differs from it in some digit; in any spelling."""
    step = decimal.Decimal((draw(st.integers(0, 1)), (draw(st.integers(0, 1)),), draw(st.integers(-60, 40))))
    near = EXACT.add(value, step)
    text = format(near, draw(st.sampled_from("fE")))
    if "E" not in text and draw(st.booleans()):
        text += ("" if "." in text else ".") + "0" * draw(st.integers(0, 90))
    return text if text.startswith("-") or draw(st.booleans()) else "+" + text


@st.composite
def _doubles(draw: Any, value: float | decimal.Decimal) -> str:
    value = float(value)
    if not math.isfinite(value):
        return draw(st.sampled_from(["'NaN'", "'Infinity'", "'-Infinity'", "1e308", "1e999", "-1E+999", "0"]))  # type: ignore[no-any-return]
    near = draw(st.sampled_from([value, -value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf)]))
    if not math.isfinite(near):
        return "'Infinity'"
    return repr(near) if draw(st.booleans()) else format(decimal.Decimal(near), "f")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


LITERALS: dict[str, Callable[[Any], st.SearchStrategy[str]]] = {
    "float": _doubles,
    "double": _doubles,
    "boolean": lambda value: st.sampled_from(["TRUE", "FALSE"]),
    "string": lambda value: st.sampled_from(
        [value, value[:-1], value + "a", value[:32], value[:31] + "\U0010ffff"]
    ).map(_quoted),
    "binary": lambda value: st.sampled_from([value, value + b"\0", value[:-1]]).map(lambda each: f"X'{each.hex()}'"),
    "date": lambda value: st.integers(value - 1, value + 1).map(lambda day: f"'{format_date(day)}'"),
    "timestamp": lambda value: _instants(value).map(lambda each: f"'{format_timestamp(each, 'T')}Z'"),
    "timestamp_ntz": lambda value: _instants(value).map(lambda each: f"'{format_timestamp(each)}'"),
}


def _instants(value: int) -> st.SearchStrategy[int]:
    return st.sampled_from([0, 1, -1, 999, -999, 1000, -1000]).map(lambda step: value + step)


def spark(column: Column) -> str:
    """The statistics that Spark writes in UTC."""
    return _statistics(column, _with_nan, _SPARK)


def old_spark(column: Column) -> str:
    """Those of Spark 2 in Los Angeles, by an older Delta that is set to keep four characters of a string."""
    return _statistics(column, _with_nan, _SPARK | _OLD_SPARK)


def delta_rs(column: Column) -> str:
    """Those of delta-rs."""
    return _statistics(column, _without_nan, _SPARK | _DELTA_RS)


WRITERS = [spark, old_spark, delta_rs]


def _statistics(column: Column, order: Callable[[list[Any]], list[Any]], texts: dict[str, Any]) -> str:
    values = order(column.values)
    name = "decimal" if isinstance(column.kind, Decimal) else str(column.kind)
    entries = {"numRecords": str(len(column.raw)), "nullCount": f'{{"x":{len(column.raw) - len(column.values)}}}'}
    if values and name in texts:
        for key, value, upper in (("minValues", values[0], False), ("maxValues", values[-1], True)):
            entries[key] = f'{{"x":{texts[name](value, upper, column.kind)}}}'
    return "{" + ",".join(f'"{key}":{entry}' for key, entry in entries.items()) + "}"


def _with_nan(values: list[Any]) -> list[Any]:
    return sorted(values, key=lambda each: (each != each, each if each == each else 0))


def _without_nan(values: list[Any]) -> list[Any]:
    return sorted(each for each in values if each == each)


def _shortest(value: float, _: bool, kind: Any) -> str:
    if not math.isfinite(value):
        return json.dumps("NaN" if value != value else "Infinity" if value > 0 else "-Infinity")
    return str(np.float32(value) if str(kind) == "float" else value)


def _time(value: int, zone: str = "", local: int = 0) -> str:
    text = format_timestamp((value + local) // 1000 * 1000, "T")
    milliseconds = (value + local) // 1000 % 1000
    return f'"{text.split(".")[0]}.{milliseconds:03d}{zone}"'


def _in_los_angeles(value: int, *_: Any) -> str:
    # Local mean time is 7:52:58 behind. The seconds are not in the text.
    return _time(value, "-07:52", -28_378_000_000) if value < -31_000 * DAY else _time(value, "Z")


def _julian(day: int, *_: Any) -> str:
    """The day in the calendar that ended on 1582-10-04, as the text of its proleptic twin."""
    if day >= -141_427:
        return f'"{format_date(day)}"'
    # The algorithm of Richards, from the Julian day number.
    f = day + 2_440_588 + 1401
    e = 4 * f + 3
    h = 5 * (e % 1461 // 4) + 2
    month = (h // 153 + 2) % 12 + 1
    year = e // 1461 - 4716 + (14 - month) // 12
    return f'"{year:04d}-{month:02d}-{h % 153 // 5 + 1:02d}"' if year > 0 else "null"


def _cut(text: str, upper: bool, _: Any) -> str:
    if len(text) <= 32:
        return json.dumps(text)
    # Characters of four bytes are above U+007F.
    return json.dumps(text[:32] + ("\U0010ffff" * (1 + text[32:].count("\U0010ffff")) if upper else ""))


def _cut_in_utf16(text: str, upper: bool, _: Any) -> str:
    units = text.encode("utf-16-be")
    if len(units) <= 8:
        return json.dumps(text)
    # Java writes half of a character as a question mark.
    start = units[:8].decode("utf-16-be", "surrogatepass").encode("utf-8", "replace").decode()
    if not upper:
        return json.dumps(start)
    more = b""
    for place in range(8, len(units), 2):
        if units[place : place + 2] < b"\xff\xfd":
            break
        more += units[place : place + 2]
    return json.dumps(start + more.decode("utf-16-be") + "\ufffd")


def _as_double(unscaled: int, _: bool, kind: Any) -> str:
    value = float(unscaled) / 10.0**kind.scale
    if kind.scale:
        if abs(int(value)) >= 10 ** (kind.precision - kind.scale) and value:
            value = math.nextafter(value, 0)
        return repr(value)
    return str(max(-(2**63), min(2**63 - 1, int(value))))


_SPARK: dict[str, Any] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), lambda value, upper, kind: str(value)),
    "decimal": lambda value, upper, kind: format(number(value, kind.scale), "f"),
    "float": _shortest,
    "double": _shortest,
    "string": _cut,
    "date": lambda value, upper, kind: f'"{format_date(value)}"',
    "timestamp": lambda value, upper, kind: _time(value, "Z"),
    "timestamp_ntz": lambda value, upper, kind: _time(value),
}
_OLD_SPARK = {"string": _cut_in_utf16, "date": _julian, "timestamp": _in_los_angeles}
_DELTA_RS: dict[str, Any] = {
    "decimal": _as_double,
    "float": lambda value, upper, kind: repr(value) if math.isfinite(value) else "null",
    "double": lambda value, upper, kind: repr(value) if math.isfinite(value) else "null",
    "boolean": lambda value, upper, kind: str(value).lower(),
    "binary": lambda value, upper, kind: json.dumps("".join(_escaped(byte) for byte in value)),
}


def _escaped(byte: int) -> str:
    known = {9: "\\t", 10: "\\n", 13: "\\r", 34: '\\"', 39: "\\'", 92: "\\\\"}
    return known.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}")
