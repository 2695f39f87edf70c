"""Partition values: text in the log <-> typed values (specification, "Partition Value Serialization").

The specification's formats are read, and what deployed writers put there besides: timestamps in ISO 8601 with `T` and a
zone, numbers in Java's spellings, bytes as `\\u0001` spelled out. Any other text is an error, never a null.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from cdfd.delta.types.arrow_types import arrow_type
from cdfd.delta.types.datatypes import ByName, DataType
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import LogError
from cdfd.runtime.arrays import scalar_of

_WHOLE = re.compile(r"[+-]?[0-9]{1,100}")
# A digit matches in one way only: otherwise a text of a million digits and a letter would take days.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_NOT_FINITE = re.compile(r"([+-]?)(nan|inf|infinity)", re.IGNORECASE)
_ESCAPES = re.compile(r"(?:\\u00[0-9a-fA-F]{2})+")


def parse(text: str | None, kind: DataType, column: str = "") -> pa.Scalar[Any]:
    """The value that a text in the log stands for; None and the empty text are null, whatever the type.

    A timestamp without a zone is in UTC. A binary value's characters are its bytes; where one of them is above 255 the
    value is the text in UTF-8, as Spark writes it.

    Args:
        text: as in `partitionValues`.
        kind: type of the column.
        column: name of the column, for the message.

    Raises:
        LogError: a text that is not a value of that type, a number out of range, a decimal with too many digits.
    """
    arrow = arrow_type(kind)
    if not text:
        return scalar_of(None, arrow)
    try:
        if isinstance(arrow, pa.Decimal128Type):
            if not _NUMBER.fullmatch(stripped := text.strip()):
                raise ValueError(text)
            # Twice the digits that can be stored; trapping Inexact makes digits that would be cut off an error.
            context = decimal.Context(prec=76, traps=[decimal.Inexact, decimal.InvalidOperation])
            value = decimal.Decimal(stripped).quantize(decimal.Decimal(1).scaleb(-arrow.scale), context=context)
            return scalar_of(value, arrow)
        # Arrow casts no Python integer to a day or a time.
        scalar = scalar_of(_read(text, str(kind)), _INTEGERS.get(str(kind), arrow))
        return scalar if scalar.type == arrow else scalar.cast(arrow)
    except (ValueError, KeyError, decimal.DecimalException, OverflowError) as error:
        where = f"column {column!r:.200}: " if column else ""
        raise LogError(
            f"{where}{text!r:.200} is not a value of type {kind!s:.80}",
            hint="the partition values in the log are broken",
        ) from error


def as_python(scalar: pa.Scalar[Any] | None) -> Any:
    """A value as a Python object; None for null, and for times outside of the years 1 to 9999."""
    try:
        return None if scalar is None else scalar.as_py()
    except (ValueError, OverflowError):
        return None


def parse_partition(values: Mapping[str, str | None], schema: TableSchema) -> dict[str, pa.Scalar[Any]]:
    """The typed partition values of a file, by logical name of the column.

    A column that the log has no value for is left out; for readers it is null. The empty text is null too, but not in a string or binary
    column that cannot be null: it is the empty string there, which delta-spark reads in all columns.

    Raises:
        LogError: as `parse`, or a key that fits two spellings that differ in case.
    """
    find = ByName({key: key for key in values})
    parsed = {}
    for child in schema.partition_fields:
        keys = find(schema.physical_name(child))
        if len(keys) > 1:
            raise LogError(f"partition values {keys[0]!r:.80} and {keys[1]!r:.80} both fit column {child.name!r:.80}")
        if keys:
            text = values[keys[0]]
            empty = text == "" and not child.nullable and str(child.type) in ("string", "binary")
            parsed[child.name] = scalar_of("", arrow_type(child.type)) if empty else parse(text, child.type, child.name)
    return parsed


def serialize(scalar: pa.Scalar[Any]) -> str | None:
    """The text for a value; `parse` gives the value back. An empty string or binary has no text of its own: it is null.

    Timestamps are ISO 8601 in UTC with `Z`, which no session's time zone can shift.

    Raises:
        LogError: a value of a type that cannot partition a table.
    """
    if not scalar.is_valid:
        return None
    kind: Any = scalar.type
    if pa.types.is_date32(kind):
        return format_date(scalar.cast(pa.int32()).as_py())
    if pa.types.is_timestamp(kind):
        microseconds = scalar.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).as_py()
        return format_timestamp(microseconds) if kind.tz is None else format_timestamp(microseconds, "T") + "Z"
    value: Any = scalar.as_py()
    if pa.types.is_string(kind):
        return value or None
    if pa.types.is_integer(kind):
        return str(value)
    if pa.types.is_floating(kind):
        # Java's spelling, as Spark writes it: NaN, Infinity, 1.0E20.
        text = str(np.float32(value) if pa.types.is_float32(kind) else value)
        mantissa, _, exponent = text.replace("nan", "NaN").replace("inf", "Infinity").partition("e")
        return mantissa if not exponent else f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"
    if pa.types.is_decimal(kind):
        return format(value, "f")
    if pa.types.is_boolean(kind):
        return str(value).lower()
    if pa.types.is_binary(kind):
        try:
            decoded = value.decode()
        except UnicodeDecodeError:
            decoded = None
        # Bytes that are not text are escaped, and so are bytes that look like escapes.
        if decoded is None or _ESCAPES.fullmatch(decoded):
            return "".join(f"\\u{byte:04x}" for byte in value)
        return decoded or None
    raise LogError(f"a value of type {scalar.type} cannot be a partition value")


def _read(text: str, kind: str) -> Any:
    """The value of a text as Arrow takes it: a day or a time as an integer. ValueError or KeyError for a text that is no such value."""
    stripped = text.strip()
    match kind:
        case "string":
            return text
        case "long" | "integer" | "short" | "byte":
            if not _WHOLE.fullmatch(stripped):
                raise ValueError(text)
            return int(stripped)
        case "float" | "double":
            if not (_NUMBER.fullmatch(stripped) or _NOT_FINITE.fullmatch(stripped)):
                raise ValueError(text)
            number = float(stripped)
            (bits,) = struct.unpack("<q", struct.pack("<d", number))
            if (
                kind == "double"
                or bits & 1
                or not math.isfinite(number)
                or number == (exact := decimal.Decimal(stripped))
            ):
                return number
            # Of the doubles on both sides of the number, the one with an odd mantissa: it rounds to the float that the number itself
            # rounds to.
            return math.nextafter(number, math.inf if exact > number else -math.inf)
        case "boolean":
            return {"true": True, "false": False}[stripped.lower()]
        case "binary":
            if _ESCAPES.fullmatch(text):
                return bytes.fromhex(text.replace("\\u00", ""))
            # Deployed writers cast between string and binary, which is UTF-8; bytes that are none they cannot write but escaped.
            return text.encode()
        case "date":
            # A midnight after the day is ignored.
            if (match := _DAY_ONLY.fullmatch(stripped)) is None:
                raise ValueError(text)
            return _days(match)
        case "timestamp" | "timestamp_ntz":
            return parse_timestamp(stripped, wall_clock=kind == "timestamp_ntz")
    raise ValueError(text)


_INTEGERS = {"date": pa.int32(), "timestamp": pa.int64(), "timestamp_ntz": pa.int64()}
"""Of which type the numbers of days and times are."""


_EPOCH = datetime.date(1970, 1, 1).toordinal()
_CYCLE_YEARS = 400
_CYCLE_DAYS = 146_097
_DAY_US = 86_400_000_000

_DATE = r"(?P<year>[+-]?[0-9]{1,7})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})"
_TIME = r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})(?:\.(?P<fraction>[0-9]{1,9}))?)?"
_ZONE = r"(?P<zone>Z|UTC|GMT|(?:UTC|GMT)?(?P<sign>[+-])(?P<hours>[0-9]{1,2}):?(?P<minutes>[0-9]{2})?)"
_DAY_ONLY = re.compile(_DATE + r"(?:[ T]00:00:00(?:\.0{1,9})?)?")
_INSTANT = re.compile(_DATE + rf"(?:[ T]{_TIME} ?{_ZONE}?)?", re.IGNORECASE)


def parse_timestamp(text: str, *, wall_clock: bool = False) -> int:
    """Microseconds since the epoch of `date[(space|T)time[zone]]`; without a zone in UTC, further digits are cut off.

    ValueError for anything else; names of regions are not zones here, as what they mean depends on a database. With `wall_clock`, for a
    timestamp without time zone, also for zones other than UTC.
    """
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise ValueError(text)
    hour, minute, second = (int(match[unit] or 0) for unit in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(text)
    fraction = int((match["fraction"] or "").ljust(6, "0")[:6])
    offset = 0
    if match["sign"] is not None:
        hours, minutes = int(match["hours"]), int(match["minutes"] or 0)
        if hours > 18 or minutes > 59:
            raise ValueError(text)
        offset = (-1 if match["sign"] == "-" else 1) * (hours * 60 + minutes)
    if wall_clock and offset:
        raise ValueError(text)
    return _days(match) * _DAY_US + ((hour * 60 + minute - offset) * 60 + second) * 1_000_000 + fraction


def format_date(days: int) -> str:
    """`year-month-day`; a year of more than four digits or before 0 has its sign."""
    cycles, day_of_cycle = divmod(days + _EPOCH - 1, _CYCLE_DAYS)
    day = datetime.date.fromordinal(day_of_cycle + 1)
    year = day.year + cycles * _CYCLE_YEARS
    return f"{year:04d}-{day:%m-%d}" if 0 <= year <= 9999 else f"{year:+05d}-{day:%m-%d}"


def format_row_date(days: int) -> str:
    """The same in rows: a year with a sign has six digits, at least."""
    text = format_date(days)
    return f"{int(text[:-6]):+07}{text[-6:]}" if text[0] in "+-" else text


def format_timestamp(microseconds: int, separator: str = " ") -> str:
    """`date time`, with six digits of a second where it is not a whole one."""
    days, microseconds_of_day = divmod(microseconds, _DAY_US)
    seconds, fraction = divmod(microseconds_of_day, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return format_date(days) + separator + clock + (f".{fraction:06d}" if fraction else "")


def _days(match: re.Match[str]) -> int:
    """Days since 1970-01-01 of `[+-]year-month-day`."""
    # The calendar repeats every 400 years: the day is looked up in the cycle that `datetime` has, and moved.
    cycles, year_of_cycle = divmod(int(match["year"]) - 1, _CYCLE_YEARS)
    day = datetime.date(year_of_cycle + 1, int(match["month"]), int(match["day"]))
    return day.toordinal() - _EPOCH + cycles * _CYCLE_DAYS
