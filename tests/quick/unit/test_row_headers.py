"""Record headers with values of columns: in every format, for every type, next to the formats' own headers."""

import datetime as dt
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from cdfd.encode.formats import EncoderOptions, record_format
from cdfd.encode.headers import RowHeaders
from cdfd.encode.records import Origin
from cdfd.errors import MissingColumnError, UnsupportedError
from tests.support.change_rows import Row, change_rows, flattened

ORIGIN = Origin("shop", "orders", "T", "shop.orders")
ROWS = [
    Row("insert", 1, 1, "a"),
    Row("update_preimage", 1, 1, "a"),
    Row("update_postimage", 1, 1, "b"),
    Row("delete", 1, 2, None),
]


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("flat", ["a", "a", "b", None, None]),
        ("cloudevents", ["a", "a", "b", None, None]),
        ("debezium", ["a", "b", None, None]),
    ],
)
def test_each_record_of_a_row_has_its_value(form: str, wanted: list[str | None]) -> None:
    headers: Mapping[str, str] = {"x-note": "NOTE", "x-id": "id"}
    encoder = record_format(form).encoder(EncoderOptions(ORIGIN, ("id",), tombstones=True, headers=headers))
    records = flattened(encoder.encode(change_rows(ROWS)))
    actual = [record.headers.get("x-note") for record in records]
    assert actual == [None if text is None else text.encode() for text in wanted]
    for record in records:
        assert (record.value is None) == ("x-id" not in record.headers)
    assert records[0].headers["x-id"] == b"1"


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        (["größe", None], pa.string(), "größe".encode()),
        ([b"\xff\x00", None], pa.binary(), b"\xff\x00"),
        ([7, None], pa.int64(), b"7"),
        ([True, None], pa.bool_(), b"true"),
        ([1.5, None], pa.float64(), b"1.5"),
        ([math.nan, None], pa.float64(), b"NaN"),
        ([-math.inf, None], pa.float32(), b"-Infinity"),
        (pa.array([math.inf, None]).dictionary_encode(), None, b"Infinity"),
        ([Decimal("1.50"), None], pa.decimal128(9, 2), b"1.50"),
        ([dt.date(2026, 1, 31), None], pa.date32(), b"2026-01-31"),
        ([0, None], pa.timestamp("us", "UTC"), b"1970-01-01T00:00:00.000000Z"),
        ([None, None], pa.int32(), None),
    ],
)
def test_header_is_the_value_of_its_column_as_bytes(
    values: list[Any], kind: pa.DataType | None, wanted: bytes | None
) -> None:
    rows = change_rows(ROWS[:1] * 2).set_column(1, "note", pa.array(values, kind))
    [header] = RowHeaders({"h": "note"})(rows)
    header.values.validate(full=True)
    assert (header.name, header.values.type, header.whole_values) == ("h", pa.large_binary(), [wanted, None])


def test_columns_that_cannot_be_headers() -> None:
    rows = change_rows(ROWS[:1])
    with pytest.raises(MissingColumnError, match="`headers`"):
        RowHeaders({"h": "nota"})(rows)
    with pytest.raises(UnsupportedError, match="header"):
        RowHeaders({"h": "note"})(rows.set_column(1, "note", pa.array([[1]])))
