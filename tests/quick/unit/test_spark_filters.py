"""Files are left out only where the log says that they hold no row that is asked for."""

import json
import operator
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql import datasource as spark

from cdfd.delta.actions import DeletionVectorDescriptor
from cdfd.delta.types.schema import PHYSICAL_NAME, ColumnMappingMode, Primitive, StructField, StructType, TableSchema
from cdfd.delta.types.schema import Decimal as DecimalType
from cdfd.model.file_scan import ChangeType, FileScan
from cdfd.model.plan import ChangePlan
from cdfd.spark.source.filters import Filters

SCHEMA = TableSchema(
    StructType(
        (
            StructField("n", Primitive("long")),
            StructField("x", Primitive("double")),
            StructField("s", Primitive("string")),
            StructField("d", Primitive("date")),
            StructField("t", Primitive("timestamp")),
            StructField("m", DecimalType(12, 2)),
            StructField("b", Primitive("boolean")),
            StructField("p", Primitive("integer")),
        )
    ),
    ("p",),
)
NAMES = {name: name for name in (*SCHEMA.names, "_change_type", "_commit_version", "_commit_timestamp")}
STATS = {
    "numRecords": 10,
    "minValues": {
        "n": 5,
        "x": 0.5,
        "s": "bcd",
        "d": "2026-01-05",
        "t": "2026-01-05T00:00:00.000Z",
        "m": 1.50,
        "b": False,
    },
    "maxValues": {
        "n": 9,
        "x": 2.5,
        "s": "yz",
        "d": "2026-01-09",
        "t": "2026-01-09T00:00:00.001Z",
        "m": 7.25,
        "b": False,
    },
    "nullCount": {"n": 0, "x": 0, "s": 10, "d": 2, "t": 0, "m": 0, "b": 0},
}
SOME_STRINGS = STATS | {"nullCount": {"s": 0}}


def kept(
    *filters: spark.Filter,
    stats: Mapping[str, Any] | None = None,
    scan: FileScan | None = None,
    time_ms: int = 1_767_225_600_000,
) -> bool:
    scan = scan or FileScan("f", "insert", {"p": "3"}, 0)
    plan = ChangePlan(7, time_ms, SCHEMA, (scan,), "files")
    text = json.dumps(STATS if stats is None else stats)
    found = Filters.of(filters, NAMES).kept(plan, plan, {"f": text})
    return True if found is None else bool(found[0])


def at(day: int, hour: int = 0, minute: int = 0, second: int = 0, microsecond: int = 0) -> datetime:
    return datetime(2026, 1, day, hour, minute, second, microsecond, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "low", "inside", "high"),
    [
        ("n", 4, 7, 10),
        ("x", 0.25, 1.0, 3.0),
        ("d", date(2026, 1, 4), date(2026, 1, 7), date(2026, 1, 10)),
        ("t", at(4), at(7), at(10)),
        ("m", Decimal("1.49"), Decimal("2"), Decimal("7.26")),
        ("p", 2, 3, 4),
    ],
)
def test_file_is_kept_by_its_bounds(column: str, low: Any, inside: Any, high: Any) -> None:
    path = (column,)
    for operand, equal, less, more in (
        (low, False, False, True),
        (inside, True, True, True),
        (high, False, True, False),
    ):
        strict = column == "p" and operand == inside
        assert kept(spark.EqualTo(path, operand)) is equal
        assert kept(spark.LessThan(path, operand)) is (less and not strict)
        assert kept(spark.LessThanOrEqual(path, operand)) is less
        # NaN is above all numbers, and no statistics have it.
        assert kept(spark.GreaterThan(path, operand)) is ((more and not strict) or column == "x")
        assert kept(spark.GreaterThanOrEqual(path, operand)) is (more or column == "x")
    assert not kept(spark.In(path, (low, high)))
    assert kept(spark.In(path, (low, inside)))


def test_file_is_kept_if_all_filters_keep_it() -> None:
    assert kept(spark.GreaterThan(("n",), 6), spark.LessThan(("p",), 4))
    assert not kept(spark.GreaterThan(("n",), 6), spark.LessThan(("p",), 3))


def test_ends_are_inside() -> None:
    assert kept(spark.EqualTo(("n",), 5))
    assert kept(spark.EqualTo(("n",), 9))
    assert not kept(spark.LessThan(("n",), 5))
    assert not kept(spark.GreaterThan(("n",), 9))


def test_times_are_rounded() -> None:
    assert kept(spark.EqualTo(("t",), at(9, 0, 0, 0, 1_999)))
    assert not kept(spark.EqualTo(("t",), at(9, 0, 0, 0, 2_000)))
    assert kept(spark.LessThan(("t",), at(4, 23, 59, 59, 999_500)))


def test_file_is_kept_by_its_count_of_nulls() -> None:
    assert not kept(spark.IsNull(("n",)))
    assert kept(spark.IsNotNull(("n",)))
    assert not kept(spark.IsNotNull(("s",)))
    assert not kept(spark.Not(spark.IsNull(("s",))))
    assert not kept(spark.EqualTo(("s",), "bcd"))
    assert kept(spark.IsNull(("s",)))
    assert kept(spark.EqualNullSafe(("s",), None))
    assert not kept(spark.EqualNullSafe(("n",), None))
    assert kept(spark.IsNull(("d",)))
    null = FileScan("f", "insert", {"p": None}, 0)
    assert kept(spark.IsNull(("p",)), scan=null)
    assert not kept(spark.EqualTo(("p",), 3), scan=null)


def test_bound_that_was_cut_keeps_greater_strings() -> None:
    assert not kept(spark.EqualTo(("s",), "a"), stats=SOME_STRINGS)
    assert kept(spark.EqualTo(("s",), "c"), stats=SOME_STRINGS)
    assert not kept(spark.EqualTo(("s",), "z"), stats=SOME_STRINGS)
    cut = SOME_STRINGS | {"maxValues": {"s": "y" * 32}}
    assert kept(spark.EqualTo(("s",), "z"), stats=cut)
    assert kept(spark.StringStartsWith(("s",), "a"), stats=SOME_STRINGS)


@pytest.mark.parametrize("time_ms", [2**62, -(2**62), 253_402_300_800_000])
def test_a_commit_at_a_time_that_python_has_not(time_ms: int) -> None:
    assert kept(spark.GreaterThan(("_commit_timestamp",), at(1)), time_ms=time_ms)
    assert kept(spark.LessThan(("_commit_timestamp",), at(1)), spark.EqualTo(("_commit_version",), 7), time_ms=time_ms)
    assert not kept(spark.IsNull(("_commit_timestamp",)), time_ms=time_ms)


def test_filters_of_change_columns_are_compared_with_the_version() -> None:
    assert kept(spark.EqualTo(("_change_type",), "insert"))
    assert not kept(spark.EqualTo(("_change_type",), "delete"))
    assert not kept(spark.EqualTo(("_commit_version",), 8))
    assert kept(spark.GreaterThanOrEqual(("_commit_version",), 7))
    assert not kept(spark.GreaterThan(("_commit_timestamp",), at(1)))
    assert kept(spark.GreaterThanOrEqual(("_commit_timestamp",), at(1)))
    images = FileScan("f", None, {"p": "3"}, 0)
    assert kept(spark.EqualTo(("_change_type",), "delete"), spark.EqualTo(("n",), 1), scan=images)
    assert not kept(spark.EqualTo(("p",), 1), scan=images)


def test_range_of_versions_is_narrowed_by_filters() -> None:
    filters = Filters.of(
        [spark.GreaterThan(("_commit_version",), 3), spark.In(("_commit_version",), (1, 5, 6, 9))], NAMES
    )
    assert filters.versions(0, 100) == (5, 9)
    assert filters.versions(7, 8) == (9, 8)
    assert Filters().versions(2, 4) == (2, 4)


@pytest.mark.parametrize(
    "scan",
    [
        FileScan("f", "delete", {"p": "3"}, 0),
        FileScan("f", "insert", {"p": "3"}, 0, only=DeletionVectorDescriptor("i", "", None, 0, 0)),
        FileScan("f", "insert", {"p": "3"}, 0, schema=SCHEMA),
        FileScan("g", "insert", {"p": "3"}, 0),
    ],
)
def test_what_the_log_says_nothing_of(scan: FileScan) -> None:
    assert kept(spark.EqualTo(("n",), 1), scan=scan)


def test_what_is_not_understood() -> None:
    assert kept(spark.StringContains(("s",), "q"))
    assert kept(spark.EqualTo(("place", "lat"), 1.0))
    assert kept(spark.EqualTo(("n",), "one"))
    assert kept(spark.Not(spark.StringContains(("s",), "q")))
    assert kept(spark.EqualTo(("b",), 1))
    assert kept(spark.EqualTo(("n",), float("nan")))
    assert not kept(spark.EqualTo(("n",), None))
    assert kept(spark.EqualTo(("n",), 1), stats={"minValues": {"n": "x"}, "maxValues": 3})
    assert kept(spark.EqualTo(("t",), at(1)), stats={"minValues": {"t": "+10000-01-02T00:00:00Z"}})
    assert kept(spark.EqualTo(("p",), 1), scan=FileScan("f", "insert", {"p": "three"}, 0))


def test_negated_filters_leave_nulls_and_other_values() -> None:
    only = STATS | {"minValues": {"n": 5}, "maxValues": {"n": 5}}
    assert not kept(spark.Not(spark.EqualTo(("n",), 5)), stats=only)
    assert not kept(spark.Not(spark.EqualNullSafe(("n",), 5)), stats=only)
    assert kept(spark.Not(spark.EqualTo(("n",), 6)), stats=only)
    assert not kept(spark.Not(spark.LessThan(("n",), 10)))
    assert not kept(spark.Not(spark.EqualTo(("s",), "a")))
    # All values of `s` are null, which this comparison takes for other than "a".
    assert kept(spark.Not(spark.EqualNullSafe(("s",), "a")))


def test_a_renamed_and_widened_column() -> None:
    def mapped(name: str, kind: str) -> TableSchema:
        field = StructField(name, Primitive(kind), True, {PHYSICAL_NAME: "c"})  # type: ignore[arg-type]  # of the parameters
        return TableSchema(StructType((field,)), (), ColumnMappingMode.NAME)

    scan = FileScan("f", "insert", {}, 0)
    plan = ChangePlan(7, 0, mapped("old", "float"), (scan,), "files")
    conformed = ChangePlan(7, 0, mapped("new", "double"), (scan,), "files")
    stats = {"f": json.dumps({"minValues": {"c": 0.1}, "maxValues": {"c": 0.3}})}

    def found(value: float) -> bool:
        mask = Filters.of([spark.EqualTo(("new",), value)], {"new": "new"}).kept(plan, conformed, stats)
        assert mask is not None
        return bool(mask[0])

    assert found(0.30000001192092896)  # what 0.3 is as a float
    assert not found(0.31)
    assert not found(0.09)


NUMBERS = st.integers(-5, 5) | st.none()
OPERATORS: Mapping[type[spark.Filter], Callable[[int, int], bool]] = {
    spark.EqualTo: operator.eq,
    spark.LessThan: operator.lt,
    spark.LessThanOrEqual: operator.le,
    spark.GreaterThan: operator.gt,
    spark.GreaterThanOrEqual: operator.ge,
}


@settings(deadline=None)
@given(st.lists(NUMBERS, min_size=1), st.sampled_from(list(OPERATORS)), st.integers(-6, 6))
def test_a_file_with_a_row_that_is_asked_for_is_kept(rows: list[int | None], kind: Any, operand: int) -> None:
    present = [row for row in rows if row is not None]
    stats: dict[str, Any] = {"numRecords": len(rows), "nullCount": {"n": len(rows) - len(present)}}
    if present:
        stats |= {"minValues": {"n": min(present)}, "maxValues": {"n": max(present)}}
    if any(OPERATORS[kind](row, operand) for row in present):
        assert kept(kind(("n",), operand), stats=stats)
    if None in rows:
        assert kept(spark.IsNull(("n",)), stats=stats)
    if present:
        assert kept(spark.IsNotNull(("n",)), stats=stats)


WIDE = TableSchema(StructType((StructField("m", DecimalType(38, 10)),)))


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(-2, 2), st.sampled_from(list(OPERATORS)))
def test_a_decimal_that_pyspark_rounds_skips_no_file(unscaled: int, more: int, kind: Any) -> None:
    """PySpark multiplies the digits of an operand with a power of ten, which leaves 28 of them."""
    operand = Decimal(unscaled + more) * (Decimal(10) ** -10)
    bound = f'{{"m":{Decimal(f"{unscaled}E-10"):f}}}'
    text = f'{{"numRecords":1,"minValues":{bound},"maxValues":{bound},"nullCount":{{"m":0}}}}'
    plan = ChangePlan(7, 0, WIDE, (FileScan("f", "insert", {}, 0),), "files")
    mask = Filters.of([kind(("m",), operand)], {"m": "m"}).kept(plan, plan, {"f": text})
    assert mask is None or mask[0] or not OPERATORS[kind](unscaled, unscaled + more)


def test_change_types_are_of_scans() -> None:
    kinds: tuple[ChangeType, ...] = ("insert", "delete")
    scans = tuple(FileScan(kind, kind, {"p": "1"}, 0) for kind in kinds)
    plan = ChangePlan(7, 0, SCHEMA, scans, "files")
    mask = Filters.of([spark.EqualTo(("_change_type",), "delete")], NAMES).kept(plan, plan, {})
    assert mask is not None
    assert list(mask) == [False, True]
