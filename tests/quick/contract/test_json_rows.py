"""The two encoders of JSON rows, native code and Arrow, give the same bytes."""

from __future__ import annotations

import os
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.json_rows import orders
from cdfd.encode.cells import native_rows
from cdfd.encode.cells.pieces import Form, Nested, join, join_between, literal
from cdfd.encode.debezium import DebeziumEncoder
from cdfd.encode.json import LineEncoder
from cdfd.encode.records import Origin
from cdfd.encode.values import Rules, cells, object_separators
from cdfd.runtime import native


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    if not native.built:
        assert "CI" not in os.environ, "cdfd-native is missing: `make` builds it"
        pytest.skip("cdfd-native is missing")


def both(batch: pa.RecordBatch) -> bytes:
    """The rows of a batch, which are the same both ways."""
    actual = LineEncoder()(batch).to_pybytes()
    events = DebeziumEncoder(ORIGIN).lines(batch).to_pybytes() if "_change_type" in batch.schema.names else b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "built", False)
        assert LineEncoder()(batch).to_pybytes() == actual
        if events:
            assert DebeziumEncoder(ORIGIN).lines(batch).to_pybytes() == events
    return actual


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("prices", [False, True])
def test_rows_of_a_change_table(nulls: bool, prices: bool) -> None:
    both(orders(20_000, nulls=nulls, prices=prices))


@pytest.mark.parametrize(
    "kind",
    [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()],
    ids=str,
)
def test_integers_around_each_power_of_ten(kind: pa.DataType) -> None:
    limits = np.iinfo(kind.to_pandas_dtype())
    low, high = int(limits.min), int(limits.max)
    numbers = {
        low,
        high,
        0,
        *(sign * 10**power + step for power in range(20) for step in (-1, 0, 1) for sign in (-1, 1)),
    }
    both(pa.record_batch([pa.array(sorted(n for n in numbers if low <= n <= high), kind)], names=["n"]))


@pytest.mark.parametrize("scale", [0, 1, 2, 9, 17, 18, 19, 37, 38, -3])
def test_decimals_of_each_scale(scale: int) -> None:
    digits = [0, 1, -1, 9, 10, -10, 99, 100, 10**9, 10**18, 2**63 - 1, -(2**63)]
    unscaled = pa.array([Decimal(number) for number in digits], pa.decimal128(38, 0))
    both(
        pa.record_batch([pa.Array.from_buffers(pa.decimal128(38, scale), len(digits), unscaled.buffers())], names=["d"])
    )


def test_doubles_with_few_decimals() -> None:
    random = np.random.default_rng(3)
    whole = random.integers(-(10**14), 10**14, 5000)
    for values in (
        np.array([0.0, -0.0, 0.5, -0.5, 0.001, -0.001, 0.01, 0.1, 1.0, 999.999, 1e11, 999_999_999_999.999, -1e11]),
        random.integers(-(10**6), 10**6, 5000) / 1000,
        whole / 1000,
        whole / 100,
        np.array([0.25, np.nan, np.inf, -np.inf, 1e300, 1e-7]),
    ):
        both(
            pa.record_batch(
                [pa.array(values), pa.array(values, mask=random.random(len(values)) < 0.3)], names=["a", "b"]
            )
        )


def test_every_day_of_years_of_all_kinds() -> None:
    days = [*range(-719_528, -719_528 + 800), *range(-1000, 20_000), *range(2_932_896 - 800, 2_932_897)]
    dates = pa.array(days, pa.int32()).view(pa.date32())
    both(pa.record_batch([dates], names=["d"]))
    for zone in (None, "UTC"):
        moments = np.array(days) * 86_400_000_000 + np.arange(len(days)) * 7_919_993 % 86_400_000_000
        both(pa.record_batch([pa.array(moments).view(pa.timestamp("us", zone))], names=["t"]))
    for beyond in (-719_529, 2_932_897):
        both(pa.record_batch([pa.array([0, beyond], pa.int32()).view(pa.date32())], names=["d"]))


def test_escapes_at_every_place() -> None:
    plain = "abcdefghijklmnopqrstuvwxyz0123456789\u20ac\U0001f600\x7f"
    for special in ('"', "\\", "\n", "\0", "\x1f", "\t"):
        texts = [
            plain[:size][:at] + special + plain[:size][at:]
            for size in (0, 1, 7, 8, 9, 31, 33)
            for at in range(size + 1)
        ]
        both(pa.record_batch([pa.array([*texts, None, ""])], names=["s"]))
    both(pa.record_batch([pa.array(["\n" * 5000, "a" * 5000, '"' * 40])], names=["s"]))


def test_the_room_grows_until_all_rows_have_some() -> None:
    """The first guess is too small where texts of a pool are not used equally often, or most bytes are escaped."""
    longest = "\x01" * 30_000
    codes = pa.array([1] * 50 + [0] * 50, pa.int8())
    dictionary = pa.DictionaryArray.from_arrays(codes, pa.array(["a", longest, *map(str, range(90))]))
    data = both(pa.record_batch([dictionary, pa.array(["x", longest] * 50)], names=["d", "s"]))
    assert len(data) > 50 * 6 * 30_000 * 2


def test_rows_within_rows() -> None:
    """Objects that are looked up row by row, whose length stands before them or does not, are the same both ways."""
    batch = orders(300, nulls=True)
    names = tuple(batch.schema.names)
    index = np.random.default_rng(1).integers(0, len(batch), 1_000)
    nulls = index % 7 == 0
    expected = None
    for built in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "built", built)
            inner = [cells(column, Rules()) for column in batch.columns]
            for length in (0, Form.ZIGZAG, Form.PLAIN):
                nested = Nested(object_separators(names), inner, len(batch), index, nulls, b"-", b"+", length)
                actual = join([b"<", b"|", b">"], [nested, nested], len(index))
                assert len(set(actual.to_pylist())) > 200
                expected = actual if expected is None else pa.concat_arrays([expected, actual])
    assert expected is not None
    assert expected[: len(expected) // 2].equals(expected[len(expected) // 2 :])


def test_slices_and_many_chunks() -> None:
    batch = orders(140_000, nulls=True)
    for start, count in ((0, 140_000), (3, 1), (65_530, 20), (139_999, 1), (7, 0)):
        both(batch.slice(start, count))


def test_arrays_at_any_address_of_memory() -> None:
    """Buffers of a message can be at an odd address."""
    batch = orders(50, nulls=True)
    expected = both(batch)
    moved = [
        pa.Array.from_buffers(column.type, len(column), list(map(at_odd_address, column.buffers())), column.null_count)
        for column in batch.columns
        if not pa.types.is_dictionary(column.type)
    ]
    names = [field.name for field in batch.schema if not pa.types.is_dictionary(field.type)]
    assert both(pa.record_batch(moved, names=names)) == both(batch.select(names))
    assert len(expected) > 50


def at_odd_address(buffer: pa.Buffer | None) -> pa.Buffer | None:
    return None if buffer is None else pa.py_buffer(b"\0" + bytes(buffer)).slice(1)


CELL = np.frombuffer(b"abc", np.uint8)
ORIGIN = Origin("shop", "orders", "", "orders")
MARKS = b"", b"", b"null"
DAYS = np.array([0, 2_932_897])


def texts(ends: list[int], *places: int | list[int]) -> Any:
    index = [place if isinstance(place, int) else np.array(place) for place in places]
    return native_rows.TEXTS, CELL, np.array(ends), None, MARKS, 0, index, None


def strings(ends: list[int]) -> Any:
    return native_rows.STRINGS, CELL, np.array(ends), None, MARKS, 0, (), None


def rows_of_integers(index: list[int]) -> Any:
    integers: Any = native_rows.INTEGERS, np.zeros(2, np.int64), None, None, MARKS, 0, (), None
    nothing, rows = np.empty(0, np.uint8), ([b"", b""], [integers])
    return native_rows.ROWS, nothing, None, None, MARKS, 0, [np.array(index)], rows


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (texts([0, 3], 0, 0, 0, 0, 0), "at most 4 pieces, not 5"),
        (texts([0, 3], 1), "out of its array"),
        (texts([0, 3], [0, -1]), "out of its array"),
        (texts([0, 4], 0), "out of its array"),
        (strings([0, 3]), "out of its array"),
        (strings([0, 3, 4]), "out of its array"),
        (strings([0, 3, 2]), "out of its array"),
        (strings([-1, 3, 3]), "out of its array"),
        ((native_rows.INTEGERS, np.zeros(1, np.int64), None, None, MARKS, 0, (), None), "out of its array"),
        ((native_rows.INTEGERS, np.zeros(2, np.int64), None, CELL[:1], MARKS, 0, (), None), "out of its array"),
        ((native_rows.BOOLEANS, CELL, None, None, MARKS, 23, (), None), "out of its array"),
        ((native_rows.DECIMALS, np.zeros(2, np.int64), None, None, MARKS, 39, (), None), "scale 39"),
        ((native_rows.DATES, DAYS, None, None, MARKS, 0, (), None), "years 0 to 9999"),
        ((native_rows.TIMESTAMPS, DAYS * 86_400_000_000, None, None, MARKS, 0, (), None), "years 0 to 9999"),
        ((14, CELL, None, None, MARKS, 0, (), None), "no kind 14"),
        (rows_of_integers([0, 2]), "out of its array"),
        (rows_of_integers([0, -1]), "out of its array"),
        ((native_rows.ROWS, CELL, None, None, MARKS, 0, (), None), "no columns"),
        ((native_rows.ROWS, CELL, None, None, MARKS, 0, (), ([b""], [strings([0, 3])])), "one gap more"),
        ((native_rows.FIXED, CELL, None, None, MARKS, 2, (), None), "out of its array"),
        ((native_rows.FIXED, CELL, None, None, MARKS, 2**62, (), None), "out of its array"),
        ((native_rows.BYTES, CELL, np.array([0, 3, 9]), None, MARKS, 1, (), None), "out of its array"),
        ((native_rows.VARINTS, np.zeros(2, np.int64), None, None, MARKS, 3, (), None), "no form 3"),
    ],
)
def test_columns_that_are_wrong_are_errors(column: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native_rows.write_rows([b"", b""], [column], 2, 10)


def test_arrays_that_are_not_contiguous_are_errors() -> None:
    column: Any = native_rows.INTEGERS, np.zeros(4, np.int64)[::2], None, None, MARKS, 0, (), None
    with pytest.raises(TypeError, match="not contiguous"):
        native_rows.write_rows([b"", b""], [column], 2, 10)


@pytest.mark.parametrize("built", [True, False])
def test_what_all_rows_begin_and_end_with_is_apart(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "built", built)
    same, numbers = literal(b"x"), cells(pa.array([7, 8]), Rules())
    texts, around = join_between([b"<", b",", b",", b">"], [same, numbers, same], 2)
    assert (texts.to_pylist(), around) == ([b"7", b"8"], (b"<x,", b",x>"))
    texts, around = join_between([b"<", b">"], [same], 2)
    assert (texts.to_pylist(), around) == ([b"", b""], (b"<x>", b""))


def test_gaps_and_offsets_that_are_wrong_are_errors() -> None:
    data, offsets = np.zeros(9, np.uint8), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="one gap more than columns"):
        native.json_rows.write([b""], [strings([0, 3])], 0, data, offsets)
    with pytest.raises(ValueError, match="out of its array"):
        native.json_rows.write([b""], [], 2, data, offsets)
    with pytest.raises(ValueError, match="out of its array"):
        native.json_rows.write([b""], [], 0, data, offsets - 1)
    assert native.json_rows.write([b"x"], [], 0, data, offsets + 9) == 0
    data.flags.writeable = False
    with pytest.raises(TypeError, match="not writeable"):
        native.json_rows.write([b""], [], 0, data, offsets)
