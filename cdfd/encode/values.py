"""Cells of any Arrow type: which module prints it, and the types that hold others.

| Arrow                       | JSON                                                                                 |
|-----------------------------|--------------------------------------------------------------------------------------|
| null                        | `null`                                                                               |
| bool, integers              | themselves; integers of 64 bits optionally as strings                                |
| floating point              | shortest text of the double; `"NaN"`, `"Infinity"`, `"-Infinity"`                    |
| decimal                     | string with all digits of its scale                                                  |
| date, timestamp, time       | ISO-8601 string, a timestamp with six digits, and `Z` where it has a zone            |
| string                      | string                                                                               |
| binary                      | base64 string                                                                        |
| struct                      | object with all fields, null ones too                                                |
| list                        | array                                                                                |
| map                         | object with the keys' texts as names; `[[key, value], ...]` for nested, binary keys  |
| dictionary, run-end encoded | as their values                                                                      |
| extension arrow.json        | the document itself                                                                  |
| other extensions            | as their storage                                                                     |
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import pyarrow as pa
from pyarrow import types

from cdfd.encode.cells import native_cells, numbers, text, times
from cdfd.encode.cells.binary import sequences, unscaled_bytes
from cdfd.encode.cells.native_rows import Cells
from cdfd.encode.cells.pieces import Column, gather, join, literal, nulls_of, parts, split_at
from cdfd.encode.cells.times import days_of, microseconds
from cdfd.encode.kinds import BYTES, HINT, LISTS, STRINGS, is_encoded
from cdfd.errors import DataError, UnsupportedError
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of, doubles, scalar_of, to_numpy

_QUOTE = b'"'
_NULL = b"null"


@dataclass(frozen=True, slots=True)
class Rules:
    """Options of the encoding.

    Attributes:
        longs_as_strings: integers of 64 bits in quotes, for readers whose numbers are doubles (JavaScript).
        keys: every value in quotes, as the name of a map's entry.
        decimal: decimals as text, as doubles, or as their unscaled bytes in base64; see `cdfd.encode.kinds.Modes`.
        time: dates and times as text, as days and milliseconds, or as days and microseconds.
        binary: bytes in base64 or in hex.
        maps: maps as objects whose names are texts of any keys; or, where there is a schema, as objects if the schema has strings as
            keys, and otherwise as pairs or as entries with the names `key` and `value`.
        no_number: whether NaN and the infinities are null, because the schema says that there are numbers.
    """

    longs_as_strings: bool = False
    keys: bool = False
    decimal: str = "string"
    time: str = "iso"
    binary: str = "base64"
    maps: Literal["names", "pairs", "entries"] = "names"
    no_number: bool = False

    @property
    def has_schema(self) -> bool:
        """Whether the types of values are those that a schema says."""
        return self.maps != "names"


def column(array: pa.Array, rules: Rules) -> Column:
    """The cells of an array.

    Raises:
        DataError: a string is not UTF-8, a time out of range, a map's key null.
        UnsupportedError: JSON has no form for a value of this type.
    """
    encode = _encoder(array.type)
    if array.null_count == len(array):
        return literal(_NULL)
    rules = replace(rules, binary="base64") if types.is_decimal(array.type) else rules
    array = in_mode(array, rules)
    encode = _encoder(array.type)
    texts = encode(array, rules)
    if texts.opening or is_encoded(array.type):  # the values of an encoded array have their quotes already
        return texts
    return replace(texts, opening=_QUOTE, closing=_QUOTE) if _has_quotes(array.type, rules) else texts


def cells(array: pa.Array, rules: Rules) -> Column | Cells:
    """The cells of an array, for `join` alone: those that a kernel prints are not texts yet. Raises as `column` does."""
    if types.is_dictionary(array.type) and len(array.dictionary) > len(array):
        return cells(array.dictionary_decode(), rules)
    rules = replace(rules, binary="base64") if types.is_decimal(array.type) else rules
    array = in_mode(array, rules)
    texts = native_cells.cells(array)
    if texts is None:
        return column(array, rules)
    return texts.quote() if not texts.opening and _has_quotes(array.type, rules) else texts


def in_mode(array: pa.Array, rules: Rules) -> pa.Array:
    """The array with numbers in place of times, decimals and what is no number, as the rules want them."""
    kind = array.type
    if rules.keys:  # texts that name entries
        return array
    if types.is_temporal(kind) and rules.time != "iso":
        numbers_of = days_of if types.is_date(kind) else microseconds if types.is_timestamp(kind) else None
        if numbers_of is not None:
            values = numbers_of(array)
            values = values // 1_000 if rules.time == "connect" and types.is_timestamp(kind) else values
            return array_of(values, mask=nulls_of(array))
    if types.is_decimal(kind) and rules.decimal != "string":
        return doubles(array) if rules.decimal == "double" else _with_nulls(unscaled_bytes(array), array)
    if rules.has_schema and isinstance(kind, pa.JsonType):
        return array.storage
    if types.is_floating(kind) and rules.no_number:
        array = array if types.is_float64(kind) else array.cast(pa.float64())
        finite = pc.is_finite(array)
        if pc.all(finite).as_py() is False:
            return pc.if_else(finite, array, scalar_of(None, pa.float64()))
    return array


def _with_nulls(texts: pa.Array, array: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), texts, scalar_of(None, pa.large_binary())) if array.null_count else texts


def _has_quotes(kind: pa.DataType, rules: Rules) -> bool:
    return rules.keys or (rules.longs_as_strings and types.is_integer(kind) and kind.bit_width == 64)


def plain_text(array: pa.Array, binary: str = "base64") -> pa.Array:
    """Values as text, without JSON's quotes and escapes: strings as they are, and bytes in base64 or hex. `large_binary`, or strings."""
    if any(matches(array.type) for matches in (*STRINGS, *(BYTES if binary == "bytes" else ()))):
        return array
    # As the name of a map's entry, NaN has no quotes of its own.
    cells = column(array, Rules(binary=binary, keys=not types.is_nested(array.type)))
    cells = replace(cells, opening=cells.opening.removeprefix(_QUOTE), closing=cells.closing.removesuffix(_QUOTE))
    texts = join([b"", b""], [cells], len(array))
    if types.is_timestamp(array.type) and array.type.tz is None:
        texts = pc.binary_slice(texts, 0, -1)  # the closing quote, which is part of these texts
    return _with_nulls(texts, array)


def check_type(kind: pa.DataType) -> None:
    """`UnsupportedError` where JSON has no form for the type, or for one inside it."""
    _encoder(kind)
    if is_encoded(kind):
        check_type(kind.value_type)
    elif isinstance(kind, pa.BaseExtensionType):
        check_type(kind.storage_type)
    else:
        for number in range(kind.num_fields):
            check_type(kind.field(number).type)


@lru_cache(maxsize=1024)
def object_separators(names: tuple[str, ...]) -> Sequence[bytes]:
    """The text before, between and after the values of an object with these names: quoted once, not for each batch."""
    quoted = [json.dumps(name, ensure_ascii=False).encode() + b":" for name in names]
    return (*((b"," if number else b"{") + name for number, name in enumerate(quoted)), b"}" if names else b"{}")


def _encoder(kind: pa.DataType) -> Callable[[pa.Array, Rules], Column]:
    for matches, encode in _ENCODERS:
        if matches(kind):
            return encode
    raise UnsupportedError(f"values of the type {kind} have no JSON form", hint=HINT)


def _structs(array: pa.Array, rules: Rules) -> Column:
    names = tuple(array.type.field(number).name for number in range(array.type.num_fields))
    # `flatten` hides what lies beneath a null struct; it may be anything.
    fields = [cells(field, rules) for field in array.flatten()]
    return Column(join(object_separators(names), fields, len(array)), (np.arange(len(array)),), nulls_of(array))


def _lists(array: pa.Array, rules: Rules) -> Column:
    items = pc.list_flatten(array)
    texts = join([b"", b","], [cells(items, rules)], len(items))
    return _sequences(texts, array, b"[", b"]")


def _maps(array: pa.Array, rules: Rules) -> Column:
    named = _is_name(array.type.key_type, rules)
    key_lists, item_lists = with_items(array, array.keys), with_items(array, array.items)
    keys = cells(pc.list_flatten(key_lists), replace(rules, keys=named))
    items = pc.list_flatten(item_lists)
    entries = [keys, cells(items, rules)]
    if not named:
        gaps = [b'{"key":', b',"value":', b"},"] if rules.maps == "entries" else [b"[", b",", b"],"]
        return _sequences(join(gaps, entries, len(items)), key_lists, b"[", b"]")
    has_nulls = keys.constant == _NULL if keys.nulls is None else keys.nulls.any()
    if len(items) and has_nulls:
        raise DataError("a map has a null key", hint="JSON cannot name it, and Delta's maps do not allow it")
    return _sequences(join([b"", b":", b","], entries, len(items)), key_lists, b"{", b"}")


def with_items(array: pa.MapArray, items: pa.Array) -> pa.ListArray:
    """The map's keys or values, as lists. Arrow's cast and view of maps as lists lose items of the null type."""
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(pa.list_(items.type), len(array), buffers, array.null_count, array.offset, [items])


def _is_name(kind: pa.DataType, rules: Rules) -> bool:
    """Whether a key of that type has a text that names it, and the schema, if there is one, has it as a string."""
    if is_encoded(kind):
        return _is_name(kind.value_type, rules)
    if rules.has_schema and any(matches(kind) for matches in BYTES):
        return rules.binary != "bytes"
    if rules.has_schema and not any(matches(kind) for matches in STRINGS):
        texts = (types.is_decimal(kind) and rules.decimal == "string") or (
            types.is_temporal(kind) and rules.time == "iso"
        )
        return bool(texts)
    return not (
        types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType) or any(is_bytes(kind) for is_bytes in BYTES)
    )


def _sequences(texts: pa.Array, lists: pa.Array, opening: bytes, closing: bytes) -> Column:
    """One text per list out of those of all items, each with a comma behind it; a list's last one is cut off."""
    whole = sequences(texts, to_numpy(pc.list_value_length(lists).fill_null(0)))
    bounds, _ = parts(whole)
    without_comma = split_at(whole, np.maximum(bounds[:-1], bounds[1:] - 1))
    return Column(without_comma, (2 * np.arange(len(lists)),), nulls_of(lists), opening, closing)


def _dictionaries(array: pa.Array, rules: Rules) -> Column:
    if len(array.dictionary) > len(array):
        return column(array.dictionary_decode(), rules)
    nulls = nulls_of(array)
    codes = numbers.without_gaps(numbers.raw_values(array.indices, array.indices.type.to_pandas_dtype()), nulls)
    same = codes.min() == codes.max()
    return gather(column(array.dictionary, rules), int(codes[0]) if same else codes.astype(np.int64), nulls)


def _runs(array: pa.Array, rules: Rules) -> Column:
    first, count = array.find_physical_offset(), array.find_physical_length()
    values = column(array.values.slice(first, count), rules)
    if count == 1:
        return gather(values, 0, None)
    ends = to_numpy(array.run_ends)[first : first + count].astype(np.int64) - array.offset
    return gather(values, np.repeat(np.arange(count), np.diff(np.minimum(ends, len(array)), prepend=0)), None)


_ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, Rules], Column]], ...] = (
    (types.is_integer, lambda array, _: numbers.integers(array)),
    *((matches, lambda array, _: text.strings(array)) for matches in STRINGS),
    (types.is_dictionary, _dictionaries),
    (types.is_timestamp, lambda array, _: times.timestamps(array)),
    (types.is_decimal, lambda array, _: numbers.decimals(array)),
    (types.is_floating, lambda array, rules: numbers.floats(array, b"" if rules.keys else _QUOTE)),
    (types.is_boolean, lambda array, _: numbers.booleans(array)),
    (types.is_date, lambda array, _: times.dates(array)),
    (types.is_time, lambda array, _: times.times_of_day(array)),
    *(
        (matches, lambda array, rules: text.hexadecimal(array) if rules.binary == "hex" else text.base64(array))
        for matches in BYTES
    ),
    (types.is_struct, _structs),
    (types.is_map, _maps),
    *((matches, _lists) for matches in LISTS),
    (types.is_run_end_encoded, _runs),
    (lambda kind: isinstance(kind, pa.JsonType), lambda array, _: text.documents(array.storage)),
    (lambda kind: isinstance(kind, pa.BaseExtensionType), lambda array, rules: column(array.storage, rules)),
    (types.is_null, lambda *_: literal(_NULL)),
)
