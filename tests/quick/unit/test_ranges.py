"""Data skipping: by its partition values and statistics, a file may contain rows that satisfy a condition, or it contains none."""

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from cdfd.delta import statistics
from cdfd.delta.types.schema import ColumnMappingMode, Primitive, StructField, StructType, TableSchema
from cdfd.model.file_scan import FileScan
from cdfd.plan.shape.predicate import Operator
from cdfd.plan.shape.ranges import Columns, Range

NAN = math.nan
LONG, INTEGER = Primitive("long"), Primitive("integer")
SOME = Range(1, 3, nulls=False)
UNKNOWN = Range()
SCHEMA = TableSchema(
    StructType(
        (
            StructField("n", Primitive("long")),
            StructField("x", Primitive("double")),
            StructField("P", Primitive("integer")),
            StructField("c", Primitive("string"), True, {"__COLLATIONS": {"c": "icu.de"}}),
        )
    ),
    ("P",),
)


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("=", [False, True, True, True, False]),
        ("<", [False, False, True, True, True]),
        ("<=", [False, True, True, True, True]),
        (">", [True, True, True, False, False]),
        (">=", [True, True, True, True, False]),
    ],
)
def test_comparison_is_possible_within_the_bounds(operator: Operator, expected: list[bool]) -> None:
    assert [SOME.may_be(operator, operand) for operand in (0, 1, 2, 3, 4)] == expected
    assert UNKNOWN.may_be(operator, 2)
    assert [SOME.may_be(operator, operand) for operand in (0.5, 9.5)] == [expected[0], expected[-1]]
    assert SOME.may_be(operator, NAN)
    assert not SOME.may_be(operator, None)
    assert not Range(nulls=True, values=False).may_be(operator, 2)


def test_one_bound_decides_alone() -> None:
    low, high = Range(1, None), Range(None, 3)
    assert [low.may_be("=", operand) for operand in (0, 1, 9)] == [False, True, True]
    assert [high.may_be("=", operand) for operand in (0, 3, 9)] == [True, True, False]
    assert [high.may_be("<", 0), high.may_be("<=", 0), low.may_be(">", 9), low.may_be(">=", 9)] == [True] * 4


def test_nan_is_above_all_numbers() -> None:
    nan = Range(1.0, 3.0, nulls=False, nan=True)
    assert [nan.may_be(">", 9), nan.may_be(">=", 9), nan.may_be("=", 9)] == [True, True, False]


@pytest.mark.parametrize(
    ("bound", "operand", "comparable"),
    [
        (2, 1, True),
        (2.5, Decimal(1), True),
        (2, "1", False),
        (True, False, True),
        (1, False, False),
        (True, 0, False),
        ("b", "a", True),
        (b"b", b"a", True),
        ("b", b"a", False),
        ("b", 1, False),
        (date(2026, 1, 2), date(2026, 1, 1), True),
        (datetime(2026, 1, 2), datetime(2026, 1, 1), True),  # noqa: DTZ001 - one without a zone
        (datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC), True),
        (datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1), False),  # noqa: DTZ001
        (datetime(2026, 1, 2), date(2026, 1, 1), False),  # noqa: DTZ001
        (date(2026, 1, 2), datetime(2026, 1, 1), False),  # noqa: DTZ001
    ],
)
def test_only_values_of_one_kind_are_compared(bound: Any, operand: Any, comparable: bool) -> None:
    """All bounds are above the operand, so what can be compared is left out."""
    assert Range(bound, bound).may_be("<", operand) is not comparable


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, Range(nulls=True, values=False)),
        (7, Range(7, 7, nulls=False)),
        ("a", Range("a", "a", nulls=False)),
        (1.5, Range(1.5, 1.5, nulls=False)),
        (NAN, Range(nulls=False, nan=True)),
    ],
)
def test_range_of_one_value(value: Any, expected: Range) -> None:
    assert Range.constant(value) == expected


def test_bounds_in_the_wrong_order_say_nothing() -> None:
    assert Range.between(3, 1, nulls=False, nan=False) == Range(nulls=False)
    assert Range.between(1, 1, nulls=None, nan=True) == Range(1, 1, None, nan=True)
    assert Range.between(None, 1, nulls=None, nan=False) == Range(None, 1)
    assert Range.between(1, None, nulls=None, nan=False) == Range(1, None)


def test_values_may_differ_unless_both_bounds_are_the_value() -> None:
    assert not Range.constant(7).may_be("<>", 7)
    assert Range.constant(7).may_be("<>", 8)
    for other in (Range(7, 8), Range(6, 7), Range(7, None), Range(None, 7), Range(7.0, 7.0, nan=True), UNKNOWN):
        assert other.may_be("<>", 7)
    assert Range.constant(7).may_be("<>", "7")
    assert not Range.constant(7).may_be("<>", None)


def of_column(name: str, stats: dict[str, Any] | None = None, **partition_values: str | None) -> Range:
    known = statistics.parse(None if stats is None else json.dumps(stats), SCHEMA)
    return Columns(SCHEMA, SCHEMA).range(name, FileScan("f", "insert", partition_values, 1), known)


class TestColumns:
    @pytest.mark.parametrize(
        ("nulls", "expected"),
        [
            (0, Range(1, 3, nulls=False)),
            (1, Range(1, 3, nulls=True)),
            (10, Range(nulls=True, values=False)),
            (None, Range(1, 3, nulls=None)),
        ],
    )
    def test_statistics_are_the_range(self, nulls: int | None, expected: Range) -> None:
        stats = {"numRecords": 10, "minValues": {"n": 1}, "maxValues": {"n": 3}}
        assert of_column("n", stats | ({} if nulls is None else {"nullCount": {"n": nulls}})) == expected

    def test_floats_may_be_nan(self) -> None:
        stats = {"numRecords": 10, "minValues": {"x": 1}, "maxValues": {"x": 3}, "nullCount": {"x": 0}}
        assert of_column("x", stats) == Range(1.0, 3.0, nulls=False, nan=True)

    def test_partition_value_is_that_of_all_rows(self) -> None:
        assert of_column("P", P="7") == Range.constant(7)
        assert of_column("P", P=None) == Range.constant(None)
        assert of_column("P") == Range.constant(None)
        assert of_column("P", P="x") == UNKNOWN

    def test_nothing_is_known_of_other_columns(self) -> None:
        assert of_column("n") == UNKNOWN
        assert of_column("nope", {"numRecords": 1, "minValues": {"nope": 1}}) == UNKNOWN
        bounds = {"numRecords": 1, "minValues": {"c": "a"}, "maxValues": {"c": "b"}, "nullCount": {"c": 0}}
        assert of_column("c", bounds) == UNKNOWN

    def test_column_is_found_by_its_physical_name(self) -> None:
        """`n` was renamed to `m` since: rows have the new name, and the log the old one."""
        renamed = [
            StructField(name, kind, True, {"delta.columnMapping.physicalName": physical})
            for name, kind, physical in (("m", LONG, "n"), ("q", INTEGER, "P"), ("new", LONG, "p3"))
        ]
        conformed = TableSchema(StructType(tuple(renamed)), ("q",), ColumnMappingMode.NAME)
        columns = Columns(SCHEMA, conformed)
        stats = statistics.parse('{"numRecords":1,"minValues":{"n":1},"maxValues":{"n":3}}', SCHEMA)
        scan = FileScan("f", "insert", {"P": "7"}, 1)
        assert [columns.range(name, scan, stats) for name in ("m", "q", "new", "n")] == [
            Range(1, 3),
            Range.constant(7),
            UNKNOWN,
            UNKNOWN,
        ]
        assert [columns.is_partition(name) for name in ("Q", "m", "new", "P")] == [True, False, False, False]

    def test_column_is_found_by_its_name_once_the_mapping_is_off(self) -> None:
        """Column `P` was renamed to `q`, which kept its physical name, and another `P` was added."""
        fields = [
            StructField(name, INTEGER, True, {"delta.columnMapping.physicalName": physical})
            for name, physical in (("q", "P"), ("P", "p2"))
        ]
        schema = TableSchema(StructType(tuple(fields)), ("q",), ColumnMappingMode.NAME)
        conformed = TableSchema(StructType((StructField("q", INTEGER), StructField("P", INTEGER))), ("q",))
        columns, scan = Columns(schema, conformed), FileScan("f", "insert", {"P": "7"}, 1)
        assert [columns.is_partition(name) for name in ("q", "P")] == [True, False]
        ranges = [columns.range(name, scan, statistics.parse(None, schema)) for name in ("q", "P")]
        assert ranges == [Range.constant(7), UNKNOWN]

    def test_nothing_is_known_of_columns_whose_ids_have_other_physical_names(self) -> None:
        """The mapping was off meanwhile."""
        schema, conformed = (
            TableSchema(
                StructType(
                    tuple(
                        StructField(
                            name,
                            INTEGER,
                            True,
                            {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": id},
                        )
                        for id, (name, physical) in enumerate(columns)
                    )
                ),
                ("q",),
                ColumnMappingMode.NAME,
            )
            for columns in ((("q", "P"), ("P", "p2")), (("q", "q"), ("P", "P")))
        )
        columns = Columns(schema, conformed)
        assert not any(map(columns.is_partition, ("q", "P")))
        scan = FileScan("f", "insert", {"P": "7"}, 1)
        assert columns.range("P", scan, statistics.parse(None, schema)) == UNKNOWN
