"""Strategies for columns of every type that records can have, and their values."""

import datetime as dt
import struct
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import types


def comparable(value: Any) -> Any:
    """Floats as their bytes, so that NaN equals NaN and 0 is not -0."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    return [comparable(item) for item in value] if isinstance(value, list) else value


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), st.integers(-70, 70))


def decimals(kind: pa.DataType) -> st.SearchStrategy[Decimal]:
    def scaled(number: int) -> Decimal:
        with localcontext(prec=100):
            return Decimal(number).scaleb(-kind.scale)

    limit = 10**kind.precision - 1
    return st.one_of(st.integers(-limit, limit), st.integers(-min(limit, 300), min(limit, 300))).map(scaled)


TEXT = st.text(st.characters(codec="utf-8"), max_size=80)
NAIVE = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))  # noqa: DTZ001 - Arrow's type without zone
SCALARS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **{getattr(pa, f"int{bits}")(): integers(bits) for bits in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{bits}")(): st.integers(0, 2**bits - 1) for bits in (8, 16, 32)},
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(),
    pa.timestamp("us"): NAIVE,
    pa.timestamp("us", "UTC"): NAIVE.map(lambda moment: moment.replace(tzinfo=dt.UTC)),
    pa.timestamp("s"): NAIVE.map(lambda moment: moment.replace(microsecond=0)),
    **{
        kind: decimals(kind)
        for kind in (
            *(pa.decimal128(*sizes) for sizes in ((1, 0), (9, 2), (18, 18), (19, 4), (38, 0), (38, 38))),
            *(pa.decimal256(60, 3), pa.decimal32(7, 2), pa.decimal64(18, 3)),
        )
    },
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), TEXT),
    **{kind: st.binary(max_size=80) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())},
    pa.binary(5): st.binary(min_size=5, max_size=5),
    pa.null(): st.none(),
}
DICTIONARIES = {pa.string(), pa.large_binary(), pa.int32(), pa.float64(), pa.decimal128(9, 2), pa.timestamp("us")}
NAMES = st.lists(st.from_regex("[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True), max_size=3, unique=True)
MAP_KEYS = st.sampled_from([pa.string(), pa.int64(), pa.date32(), pa.binary(), pa.decimal128(9, 2)])


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        st.tuples(st.sampled_from([pa.list_, pa.large_list, pa.list_view]), inner).map(lambda pair: pair[0](pair[1])),
        st.tuples(inner, st.integers(0, 3)).map(lambda pair: pa.list_(pair[0], pair[1])),
        st.tuples(NAMES, st.lists(inner, min_size=3, max_size=3)).map(
            lambda pair: pa.struct([pa.field(name, kind) for name, kind in zip(pair[0], pair[1], strict=False)])
        ),
        st.tuples(MAP_KEYS, inner).map(lambda pair: pa.map_(*pair)),
    )


KINDS = st.recursive(st.sampled_from(sorted(SCALARS, key=str)), nested, max_leaves=4)


def values(kind: pa.DataType, *, nulls: bool = True) -> st.SearchStrategy[Any]:
    if kind in SCALARS:
        strategy = SCALARS[kind]
    elif types.is_struct(kind):
        strategy = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    elif types.is_map(kind):
        pairs = st.tuples(values(kind.key_type, nulls=False), values(kind.item_type))
        strategy = st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
    elif types.is_fixed_size_list(kind):
        strategy = st.lists(values(kind.value_type), min_size=kind.list_size, max_size=kind.list_size)
    else:
        strategy = st.lists(values(kind.value_type), max_size=4)
    return st.one_of(strategy, st.none()) if nulls else strategy


@st.composite
def arrays(draw: st.DrawFn) -> pa.Array:
    kind = draw(KINDS)
    listed = draw(st.lists(values(kind, nulls=draw(st.booleans())), max_size=12))
    array = pa.array(listed * draw(st.sampled_from([1, 1, 1, 30])), kind)
    if draw(st.booleans()) and kind in DICTIONARIES:
        array = array.dictionary_encode()
    start = draw(st.integers(0, len(array)))
    return array.slice(start, draw(st.integers(0, len(array) - start)))
