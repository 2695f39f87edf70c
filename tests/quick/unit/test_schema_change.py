from typing import Any

import pytest

from cdfd.delta.types.datatypes import DataType
from cdfd.delta.types.schema import (
    ArrayType,
    ColumnMappingMode,
    Decimal,
    MapType,
    Primitive,
    StructField,
    StructType,
    TableSchema,
)
from cdfd.delta.types.schema_change import (
    CommentChange,
    NullabilityChange,
    Rename,
    SchemaChange,
    TypeChange,
    as_returning,
    compare,
    widens,
    with_returning,
)

LONG, STRING, INTEGER = Primitive("long"), Primitive("string"), Primitive("integer")


def table(*fields: StructField, mapping: str = "none", by: tuple[str, ...] = ()) -> TableSchema:
    return TableSchema(StructType(fields), by, ColumnMappingMode(mapping))


def mapped(name: str, kind: DataType, physical: str, **metadata: Any) -> StructField:
    return StructField(name, kind, metadata={"delta.columnMapping.physicalName": physical, **metadata})


def test_equal_schemas_are_no_change() -> None:
    schema = table(StructField("a", LONG), StructField("b", ArrayType(STRING)))
    change = compare(schema, schema)
    assert not change
    assert change == SchemaChange()
    assert change.additive
    assert change.describe() == ()


def test_added_columns_are_additive() -> None:
    old = table(StructField("a", LONG), StructField("s", StructType((StructField("x", LONG),))))
    new = table(
        StructField("z", STRING),
        StructField("a", LONG),
        StructField("s", StructType((StructField("x", LONG), StructField("y", LONG)))),
    )
    change = compare(old, new)
    assert change == SchemaChange(added=(("z",), ("s", "y")))
    assert change
    assert change.additive
    assert change.describe() == ("added z", "added s.y")


def test_a_rename_is_known_by_the_physical_name() -> None:
    old = table(mapped("a", StructType((mapped("x", LONG, "p2"),)), "p1"), mapped("b", LONG, "p3"), mapping="name")
    new = table(mapped("c", StructType((mapped("y", LONG, "p2"),)), "p1"), mapped("b", LONG, "p3"), mapping="name")
    change = compare(old, new)
    assert change == SchemaChange(renamed=(Rename(("a",), ("c",)), Rename(("a", "x"), ("c", "y"))))
    assert not change.additive
    assert change.describe() == ("renamed a to c", "renamed a.x to c.y")


def test_what_is_lost_for_a_reader_of_some_columns() -> None:
    change = SchemaChange(
        dropped=(("a",), ("s", "x")),
        renamed=(Rename(("b",), ("c",)),),
        type_changed=(TypeChange(("d",), "long", "string", False), TypeChange(("e",), "int", "long", True)),
    )
    assert change.lost(None) == (("a",), ("s", "x"), ("b",), ("d",))
    assert change.lost(["E", "other"]) == ()
    assert change.lost(["A", "e"]) == (("a",),)
    assert change.lost(["s"]) == (("s", "x"),)
    assert change.lost(["b"]) == change.lost(["C"]) == (("b",),)
    assert change.lost(["d"]) == (("d",),)


def test_two_columns_swap_names() -> None:
    old = table(mapped("a", LONG, "p1"), mapped("b", STRING, "p2"), mapping="id")
    new = table(mapped("b", LONG, "p1"), mapped("a", STRING, "p2"), mapping="id")
    assert compare(old, new).renamed == (Rename(("a",), ("b",)), Rename(("b",), ("a",)))


def test_without_mapping_a_new_name_is_another_column() -> None:
    change = compare(table(StructField("a", LONG)), table(StructField("b", LONG)))
    assert change == SchemaChange(added=(("b",),), dropped=(("a",),))
    assert not change.additive
    assert change.describe() == ("added b", "dropped a")


def test_switching_mapping_on_changes_nothing() -> None:
    old = table(StructField("a", LONG), StructField("b", LONG))
    new = table(mapped("a", LONG, "a"), mapped("b", LONG, "b"), mapping="name")
    assert not compare(old, new)


def test_switching_mapping_off_goes_by_names() -> None:
    """The physical name of a renamed column may be the name of a column that was added later."""
    old = table(mapped("b", LONG, "a"), mapped("a", STRING, "p2"), mapping="name")
    new = table(StructField("b", LONG), StructField("a", STRING))
    assert compare(old, new) == SchemaChange()
    assert compare(table(mapped("b", LONG, "a"), mapping="name"), table(StructField("a", LONG))).renamed == (
        Rename(("b",), ("a",)),
    )


def test_an_overwrite_with_new_physical_names_keeps_columns_of_the_same_name() -> None:
    old = table(mapped("a", INTEGER, "p1"), mapped("b", LONG, "p2"), mapping="name")
    new = table(mapped("a", STRING, "p3"), mapped("B", LONG, "p4"), mapping="name")
    assert compare(old, new) == SchemaChange(
        renamed=(Rename(("b",), ("B",)),), type_changed=(TypeChange(("a",), "integer", "string", widening=False),)
    )


def test_a_column_dropped_and_added_again_under_its_name_pairs_with_what_is_left() -> None:
    old = table(mapped("a", LONG, "p1"), mapped("b", LONG, "p2"), mapping="name")
    new = table(mapped("b", LONG, "p1"), mapping="name")
    assert compare(old, new) == SchemaChange(dropped=(("b",),), renamed=(Rename(("a",), ("b",)),))


def test_type_changes_inside_collections() -> None:
    old = table(StructField("m", MapType(STRING, ArrayType(INTEGER))), StructField("a", ArrayType(LONG)))
    new = table(StructField("m", MapType(STRING, ArrayType(LONG))), StructField("a", STRING))
    change = compare(old, new)
    assert change.type_changed == (
        TypeChange(("m", "value", "element"), "integer", "long", widening=True),
        TypeChange(("a",), "array<long>", "string", widening=False),
    )
    assert not change.additive
    assert change.describe() == (
        "widened m.value.element from integer to long",
        "changed a from array<long> to string",
    )


def test_nullability_comments_order_and_partitioning_are_additive() -> None:
    old = table(
        StructField("a", LONG, nullable=False),
        StructField("b", ArrayType(LONG)),
        StructField("c", STRING),
        StructField("d", MapType(STRING, LONG, value_contains_null=False)),
    )
    new = table(
        StructField("a", LONG, metadata={"comment": "amount"}),
        StructField("c", STRING),
        StructField("b", ArrayType(LONG, contains_null=False)),
        StructField("d", MapType(STRING, LONG)),
        by=("c",),
    )
    change = compare(old, new)
    assert change == SchemaChange(
        nullability=(
            NullabilityChange(("a",), nullable=True),
            NullabilityChange(("b", "element"), nullable=False),
            NullabilityChange(("d", "value"), nullable=True),
        ),
        comment=(CommentChange(("a",), None, "amount"),),
        reordered_structs=((),),
        repartitioned=True,
    )
    assert change.additive
    assert change.describe() == (
        "a may be null",
        "b.element may no longer be null",
        "d.value may be null",
        "changed the comment of a",
        "reordered columns",
        "changed the partition columns",
    )


class TestColumnsThatComeBack:
    OLD = table(
        mapped("a", LONG, "p1"),
        mapped("s", ArrayType(StructType((mapped("x", LONG, "p3"),))), "p2"),
        mapping="name",
    )
    NEW = table(
        mapped("b", STRING, "p4"),
        mapped("a", LONG, "p1"),
        mapped("s", ArrayType(StructType((mapped("y", STRING, "p5"), mapped("x", LONG, "p3")))), "p2"),
        mapping="name",
    )

    def test_they_follow_the_old_ones_at_every_depth(self) -> None:
        actual = with_returning(self.OLD, self.NEW)
        inside = StructType((mapped("x", LONG, "p3"), as_returning(mapped("y", STRING, "p5"))))
        back = as_returning(mapped("b", STRING, "p4"))
        assert actual == table(mapped("a", LONG, "p1"), mapped("s", ArrayType(inside), "p2"), back, mapping="name")

    def test_one_whose_name_is_taken_stays_away(self) -> None:
        new = table(mapped("A", STRING, "p9"), mapping="name")
        assert with_returning(self.OLD, new) == self.OLD

    def test_a_partition_column_has_no_value_in_the_old_files(self) -> None:
        new = table(mapped("a", LONG, "p1"), mapped("b", STRING, "p4"), mapping="name", by=("b",))
        assert with_returning(self.OLD, new) == self.OLD

    @pytest.mark.parametrize(("old", "new"), [("none", "none"), ("none", "name"), ("name", "none"), ("id", "name")])
    def test_names_alone_do_not_show_that_it_is_the_same_column(self, old: str, new: str) -> None:
        before, after = table(StructField("a", LONG), mapping=old), table(StructField("b", LONG), mapping=new)
        assert with_returning(before, after) == before


WIDENINGS = [
    ("byte", "short"), ("byte", "long"), ("short", "integer"), ("integer", "long"), ("float", "double"),
    ("byte", "double"), ("integer", "double"), ("date", "timestamp_ntz"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), WIDENINGS)
def test_each_widening_goes_one_way(old: Any, new: Any) -> None:
    assert widens(Primitive(old), Primitive(new))
    assert not widens(Primitive(new), Primitive(old))


def test_widenings_to_decimals() -> None:
    assert widens(INTEGER, Decimal(10, 0))
    assert widens(Primitive("byte"), Decimal(12, 2))
    assert widens(LONG, Decimal(20, 0))
    assert widens(Decimal(10, 2), Decimal(12, 4))
    assert not widens(INTEGER, Decimal(10, 1))
    assert not widens(LONG, Decimal(19, 0))
    assert not widens(Decimal(10, 2), Decimal(10, 3))
    assert not widens(Decimal(10, 2), LONG)
    assert not widens(LONG, Primitive("double"))
    assert not widens(INTEGER, Primitive("float"))
    assert not widens(STRING, ArrayType(STRING))
