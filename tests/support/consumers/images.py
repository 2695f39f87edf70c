"""Rows as values that are equal where the data is equal, whatever consumer wrote them as text or JSON."""

import datetime as dt
import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types

Images = dict[int, dict[str, Any]]
"""Rows by `id`."""


def images(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> Images:
    """Rows of a consumer, with values as text, or as its JSON has them. Further columns are left out; a missing one is null."""
    found: Images = {}
    for row in rows:
        image = {field.name: value(row.get(field.name), field.type) for field in schema}
        assert image["id"] not in found, f"two rows with the id {image['id']}"
        found[image["id"]] = image
    return found


def value(given: Any, kind: pa.DataType) -> Any:
    """One value. A NaN is the text, times are texts in UTC with microseconds, numbers and bytes are Python's.

    Times may be given as microseconds since 1970, dates as days, bytes in hex.
    """
    if given is None:
        return None
    if types.is_boolean(kind):
        return given if isinstance(given, bool) else {"true": True, "false": False}[given]
    if types.is_integer(kind):
        return int(given)
    if types.is_floating(kind):
        number = float(given)
        return number if number == number else "NaN"
    if types.is_decimal(kind):
        return Decimal(given)
    if types.is_binary(kind) and not isinstance(given, bytes):
        return bytes.fromhex(given.removeprefix("\\x"))
    if types.is_date(kind):
        return str(dt.date(1970, 1, 1) + dt.timedelta(given) if isinstance(given, int) else given)
    if types.is_timestamp(kind):
        return _time(given)
    if types.is_struct(kind):
        return {field.name: value(given.get(field.name), field.type) for field in kind}
    if types.is_map(kind):
        return {value(key, kind.key_type): value(item, kind.item_type) for key, item in given.items()}
    if types.is_nested(kind):
        return [value(item, kind.value_type) for item in given]
    return given


def as_numbers(rows: Images) -> Images:
    """The rows as JSON with a schema has them: NaN and the infinities are null."""
    return {number: {name: _number(each) for name, each in row.items()} for number, row in rows.items()}


def as_milliseconds(rows: Images) -> Images:
    """The rows with timestamps that are cut to milliseconds."""
    times = ("timestamp", "timestamp_ntz")
    return {
        number: {name: each and each[:-3] + "000" if name in times else each for name, each in row.items()}
        for number, row in rows.items()
    }


def _number(given: Any) -> Any:
    is_none = given == "NaN" or (isinstance(given, float) and math.isinf(given))
    return None if is_none else given


def _time(given: Any) -> str:
    if isinstance(given, int) or re.fullmatch(r"-?\d+", str(given)):
        return (dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=int(given))).isoformat(timespec="microseconds")  # noqa: DTZ001
    time = given if isinstance(given, dt.datetime) else dt.datetime.fromisoformat(given)
    utc = time if time.tzinfo is None else time.astimezone(dt.UTC)
    return utc.replace(tzinfo=None).isoformat(timespec="microseconds")


def difference(found: Images, expected: Images) -> str:
    """The first differences, for people; empty if there are none."""
    lines = [f"{number}: not in the table" for number in found.keys() - expected.keys()]
    lines += [f"{number}: missing" for number in expected.keys() - found.keys()]
    for number in sorted(found.keys() & expected.keys()):
        lines += [
            f"{number}.{name}: {found[number][name]!r}, and {wanted!r} in the table"
            for name, wanted in expected[number].items()
            if found[number][name] != wanted
        ]
    return "\n".join(lines[:20])
