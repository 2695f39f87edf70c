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
    by_id: Images = {}
    for row in rows:
        image = {field.name: value(row.get(field.name), field.type) for field in schema}
        assert image["id"] not in by_id, f"two rows with the id {image['id']}"
        by_id[image["id"]] = image
    return by_id


def value(raw: Any, kind: pa.DataType) -> Any:
    """One value. A NaN is the text, times are texts in UTC with microseconds, numbers and bytes are Python's.

    Times may be given as microseconds since 1970, dates as days, bytes in hex.
    """
    if raw is None:
        return None
    if types.is_boolean(kind):
        return raw if isinstance(raw, bool) else {"true": True, "false": False}[raw]
    if types.is_integer(kind):
        return int(raw)
    if types.is_floating(kind):
        number = float(raw)
        return number if number == number else "NaN"
    if types.is_decimal(kind):
        return Decimal(raw)
    if types.is_binary(kind) and not isinstance(raw, bytes):
        return bytes.fromhex(raw.removeprefix("\\x"))
    if types.is_date(kind):
        return str(dt.date(1970, 1, 1) + dt.timedelta(raw) if isinstance(raw, int) else raw)
    if types.is_timestamp(kind):
        return _time(raw)
    if types.is_struct(kind):
        return {field.name: value(raw.get(field.name), field.type) for field in kind}
    if types.is_map(kind):
        return {value(key, kind.key_type): value(item, kind.item_type) for key, item in raw.items()}
    if types.is_nested(kind):
        return [value(item, kind.value_type) for item in raw]
    return raw


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


def _number(raw: Any) -> Any:
    is_none = raw == "NaN" or (isinstance(raw, float) and math.isinf(raw))
    return None if is_none else raw


def _time(raw: Any) -> str:
    if isinstance(raw, int) or re.fullmatch(r"-?\d+", str(raw)):
        return (dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=int(raw))).isoformat(timespec="microseconds")  # noqa: DTZ001
    time = raw if isinstance(raw, dt.datetime) else dt.datetime.fromisoformat(raw)
    utc = time if time.tzinfo is None else time.astimezone(dt.UTC)
    return utc.replace(tzinfo=None).isoformat(timespec="microseconds")


def difference(actual: Images, expected: Images) -> str:
    """The first differences, for people; empty if there are none."""
    lines = [f"{number}: not in the table" for number in actual.keys() - expected.keys()]
    lines += [f"{number}: missing" for number in expected.keys() - actual.keys()]
    for number in sorted(actual.keys() & expected.keys()):
        lines += [
            f"{number}.{name}: {actual[number][name]!r}, and {wanted!r} in the table"
            for name, wanted in expected[number].items()
            if actual[number][name] != wanted
        ]
    return "\n".join(lines[:20])
