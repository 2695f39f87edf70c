"""Arrays of Python's values and of numpy are those that pyarrow makes, and the other way round."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.runtime.arrays import array_of, scalar_of, to_numpy, type_with_views, type_without_views

KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=9),
    pa.large_string(): st.text(max_size=9),
    pa.binary(): st.binary(max_size=9),
    pa.date32(): st.dates(date(1700, 1, 1)),
    pa.decimal128(9, 2): st.decimals(-999, 999, places=2),
    pa.list_(pa.string()): st.lists(st.text(max_size=3), max_size=3),
    pa.map_(pa.string(), pa.int64()): st.lists(
        st.tuples(st.text(max_size=3), st.none() | st.integers(0, 9)), max_size=3
    ),
    pa.struct([("a", pa.int32()), ("b", pa.string())]): st.fixed_dictionaries(
        {}, optional={"a": st.integers(0, 9), "b": st.text(max_size=3)}
    ),
}


@given(st.data())
def test_values_of_every_type(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(KINDS)))
    values = data.draw(st.lists(st.none() | KINDS[kind], max_size=9))
    made = array_of(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))
    assert array_of([*pa.array(values, kind)], kind).equals(made)  # of scalars


@pytest.mark.parametrize(
    "values", [["a", None], [b"a"], [1, None], [True, None], [1.5], [date(2026, 1, 1)], [None], []]
)
def test_the_type_is_that_of_the_values(values: list[Any]) -> None:
    assert array_of(values).equals(pa.array(values))


@pytest.mark.parametrize("dtype", ["?", "i1", "i4", "i8", "u1", "f4", "f8"])
def test_numbers_of_numpy_and_back(dtype: str) -> None:
    numbers = np.arange(20).astype(dtype)
    assert array_of(numbers).equals(pa.array(numbers))
    assert array_of(numbers[::3]).equals(pa.array(numbers[::3]))
    mask = np.arange(20) % 3 == 0
    assert array_of(numbers, mask=mask).equals(pa.array(numbers, mask=mask))
    assert (to_numpy(array_of(numbers).slice(3, 9)) == numbers[3:12]).all()
    assert (to_numpy(pa.chunked_array([array_of(numbers)] * 2)) == np.tile(numbers, 2)).all()
    assert len(to_numpy(array_of(numbers).slice(3, 0))) == 0
    with_nulls = pa.array([1, None, 3], pa.int64())
    assert to_numpy(with_nulls).tolist()[::2] == [1, 3]


def test_numbers_that_do_not_fit_are_an_error() -> None:
    for value, kind in ((300, pa.int8()), (2**63, pa.int64()), ("x", pa.int64())):
        with pytest.raises((pa.ArrowException, OverflowError, TypeError)):
            array_of([value], kind)


def test_scalars_have_the_type_that_is_asked_for() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    for value, kind in (("a", None), (7, pa.int32()), (None, pa.string()), (Decimal("1.50"), pa.decimal128(5, 2))):
        assert scalar_of(value, kind).equals(pa.scalar(value, kind))
    assert scalar_of(moment, pa.timestamp("us", "UTC")).as_py() == moment


@given(st.data())
def test_views_have_the_same_values(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([each for each in KINDS if each != pa.large_string()]))
    made = array_of(data.draw(st.lists(st.none() | KINDS[kind], max_size=9)), kind)
    views = made.cast(type_with_views(kind))
    views.validate(full=True)
    assert views.to_pylist() == made.to_pylist()
    assert views.cast(type_without_views(views.type)).equals(made)
    text = str(views.type).replace("string_view", "").replace("binary_view", "")
    assert "string" not in text
    assert "binary" not in text
