"""What puts rows of text together: the kernel in machine code, and Arrow. Both give the same bytes."""

from __future__ import annotations

import os
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from bench.json_rows import orders
from cdfd import native
from cdfd.encoding import native_rows
from cdfd.encoding.debezium import DebeziumEncoder
from cdfd.encoding.json import JsonEncoder


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    if not native.built:
        assert "CI" not in os.environ, "the kernels are not built: `pip install --editable .` builds them"
        pytest.skip("the kernels are not built")


def both(batch: pa.RecordBatch) -> bytes:
    """The rows of a batch, which are the same both ways."""
    found = JsonEncoder(batch.schema).lines(batch).to_pybytes()
    events = DebeziumEncoder("orders").lines(batch).to_pybytes() if "_change_type" in batch.schema.names else b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "built", False)
        assert JsonEncoder(batch.schema).lines(batch).to_pybytes() == found
        if events:
            assert DebeziumEncoder("orders").lines(batch).to_pybytes() == events
    return found


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


def test_slices_and_many_chunks() -> None:
    batch = orders(140_000, nulls=True)
    for start, count in ((0, 140_000), (3, 1), (65_530, 20), (139_999, 1), (7, 0)):
        both(batch.slice(start, count))


def test_a_cell_of_more_pieces_than_the_kernel_knows_is_an_error() -> None:
    one = native_rows.texts(np.frombuffer(b"a", np.uint8), np.array([0, 1]), None, (b"", b""), [0] * 5)
    with pytest.raises(ValueError, match="5"):
        native_rows.written([b"", b""], [one], 1, 10)
