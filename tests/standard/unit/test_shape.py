"""Rows shaped on the way: a reader of filtered changes has the filtered table, whatever the source of changes; masks; names."""

import asyncio
import hashlib
import hmac
import itertools
import json
import pickle
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import cdfd
from cdfd.cli import app
from cdfd.config.shapes import shape_of
from cdfd.delta.types.schema import (
    ColumnMappingMode,
    Primitive,
    StructField,
    StructType,
    TableSchema,
    from_arrow,
)
from cdfd.errors import ConfigError, MissingColumnError
from cdfd.log.table import Table
from cdfd.model.batch import ChangeBatch
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.plan import refining
from cdfd.plan.row_options import RowOptions
from cdfd.plan.shape.chosen import Chosen
from cdfd.plan.shape.masks import Mask
from cdfd.plan.shape.parser import parse_filter
from cdfd.plan.shape.shape import Shape
from cdfd.scan.execute import Execution
from cdfd.scan.shaping import RowShaper
from cdfd.scan.splits import ranges
from cdfd.scan.updates.whole_pairs import whole_pairs
from tests.support.change_rows import Row as Change
from tests.support.change_rows import change_rows
from tests.support.fold import META, bag, fold, row_of
from tests.support.tracked_table import TrackedTable, values

KEY = b"sixteen bytes at least"
FILTERS = ["id > 8", "x > 0 OR v = 'a'", "v IS NULL", "NOT (id < 5 AND x IS NOT NULL)", "at.a IS NOT NULL AND id <> 3"]
SCHEMA = TableSchema(from_arrow(pa.schema([("id", pa.int64()), ("note", pa.string())])))


def batches(rows: list[Change], cuts: list[int], gaps: set[int]) -> Iterator[ChangeBatch]:
    """Rows in batches. A number is skipped before the rows in `gaps`."""
    ordinal, edges = 0, sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    numbers = []
    for place in range(len(rows)):
        ordinal += place in gaps
        numbers.append(ordinal)
        ordinal += 1
    whole = change_rows(rows)
    whole = whole.set_column(5, whole.schema.field(5), pa.array(numbers, pa.int64()))
    for start, end in itertools.pairwise(edges):
        plan = ChangePlan(1, 0, SCHEMA, (), "files")
        yield ChangeBatch(plan, SCHEMA, whole.slice(start, end - start), numbers[end - 1] + 1)


def shaped(shape: Shape, items: Iterator[ChangeBatch]) -> list[ChangeBatch]:
    return list(map(RowShaper(shape).shape_batch, whole_pairs(items)))


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["insert", "delete", "update_preimage", "update_postimage"]),
        st.integers(0, 3),
        st.sampled_from([None, "a", "b"]),
    ),
    max_size=12,
)


@given(CHANGES, st.lists(st.integers(1, 11)), st.sets(st.integers(1, 11)))
def test_fold_of_filtered_changes_is_the_filtered_fold(rows: list[Any], cuts: list[int], gaps: set[int]) -> None:
    changes = [Change(kind, 1, number, note) for kind, number, note in rows]
    actual = shaped(Shape(where=parse_filter("id > 1 OR note = 'a'")), batches(changes, cuts, gaps))
    wanted = fold([change_rows(changes)])
    kept = Counter({row: n for row, n in wanted.items() if dict(row)["id"] > 1 or dict(row).get("note") == "a"})
    assert fold([each.rows for each in actual]) == kept
    everything = list(batches(changes, cuts, gaps))
    if everything:
        assert actual[-1].following == everything[-1].following
    listed = [row for each in actual for row in each.rows.to_pylist()]
    assert [row["_change_ordinal"] for row in listed] == sorted({row["_change_ordinal"] for row in listed})
    for place, row in enumerate(listed):
        if row["_change_type"] == "update_preimage":
            following = listed[place + 1]
            assert following["_change_type"] == "update_postimage"
            assert following["_change_ordinal"] == row["_change_ordinal"] + 1


@given(CHANGES, st.lists(st.integers(1, 11)))
def test_batches_do_not_matter(rows: list[Any], cuts: list[int]) -> None:
    changes = [Change(kind, 1, number, note) for kind, number, note in rows]
    shape = Shape(where=parse_filter("note = 'a'"), excluded=("insert",))
    one, many = (shaped(shape, batches(changes, each, set())) for each in ([], cuts))
    listed = [[row for each in several for row in each.rows.to_pylist()] for several in (one, many)]
    assert listed[0] == listed[1]


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ("a", "a", ["update_preimage", "update_postimage"]),
        ("a", "b", ["delete"]),
        ("b", "a", ["insert"]),
        ("b", "b", []),
        (None, "a", ["insert"]),
    ],
)
@pytest.mark.parametrize("cuts", [[], [1]])
def test_updates_that_enter_or_leave_the_filter(
    before: str | None, after: str, wanted: list[str], cuts: list[int]
) -> None:
    rows = [Change("update_preimage", 1, 1, before), Change("update_postimage", 1, 1, after)]
    actual = shaped(Shape(where=parse_filter("note = 'a'")), batches(rows, cuts, set()))
    assert [kind for each in actual for kind in each.rows["_change_type"].to_pylist()] == wanted
    apart = shaped(Shape(where=parse_filter("TRUE")), batches(rows, cuts, {1}))
    assert [kind for each in apart for kind in each.rows["_change_type"].to_pylist()] == ["delete", "insert"]


def test_excluded_change_types_are_those_after_the_filter() -> None:
    rows = [
        Change("update_preimage", 1, 1, "a"),
        Change("update_postimage", 1, 1, "b"),
        Change("update_preimage", 1, 2, "a"),
        Change("update_postimage", 1, 2, "a"),
    ]
    shape = Shape(where=parse_filter("note = 'a'"), excluded=("delete", "update_preimage"))
    [actual] = shaped(shape, batches(rows, [], set()))
    assert actual.rows.select(["id", "_change_type"]).to_pylist() == [{"id": 2, "_change_type": "update_postimage"}]


def life(folder: Path, seed: int, *, tracked: bool) -> TrackedTable:
    chance = random.Random(seed)
    table = TrackedTable(folder / "table", tracked)
    table.insert([values(chance, number) for number in range(12)])
    for _ in range(5):
        live = {row.row_id: row for row in table.rows}
        chosen = chance.sample(sorted(live), chance.randint(0, min(8, len(live))))
        deletes = set(chosen[: chance.randint(0, 3)])
        updates = {row: values(chance, live[row].values["id"]) for row in chosen if row not in deletes}
        fresh = [values(chance, 100 * table.version + number) for number in range(chance.randint(0, 3))]
        table.change(chance, updates, deletes, fresh, vectors=chance.random() < 0.4)
    return table


@pytest.mark.parametrize("refine", ["off", "rows", "key"])
@pytest.mark.parametrize("where", FILTERS)
@pytest.mark.parametrize("seed", range(3))
def test_a_reader_of_filtered_changes_has_the_filtered_table(
    tmp_path: Path, refine: Any, where: str, seed: int
) -> None:
    table = life(tmp_path, seed, tracked=refine == "rows")
    uri = str(table.folder)
    more: Any = {"refine": refine, "key": "id" if refine == "key" else None}
    actual = cdfd.changes(uri, where=where, **more).read_all()
    live = cdfd.snapshot(uri, where=where).read_all()
    everything = cdfd.changes(uri, **more).read_all()
    assert fold(actual.to_batches()) == bag(live.to_batches(), META)
    # Each row has the number that it has without the filter.
    numbers = {(row["_commit_version"], row["_change_ordinal"]): row for row in everything.to_pylist()}
    for row in actual.to_pylist():
        whole = numbers[row["_commit_version"], row["_change_ordinal"]]
        assert row_of(row, META) == row_of(whole, META)
    # Columns that only the filter needs are not returned, nor updates of them.
    some = cdfd.changes(uri, where=where, columns=["id", {"name": "v", "as": "value"}], **more).read_all()
    assert some.column_names[:2] == ["id", "value"]
    assert len(some.column_names) == 6
    less = bag(live.select(["id", "v"]).rename_columns(["id", "value"]).to_batches())
    assert fold(some.to_batches()) == less


def test_net_changes_of_filtered_rows(tmp_path: Path) -> None:
    table = life(tmp_path, 4, tracked=False)
    uri = str(table.folder)
    actual = cdfd.changes(uri, 3, net=True, key="id", where="id > 8", columns=[{"name": "id", "as": "n"}]).read_all()
    before = bag(
        cdfd.snapshot(uri, 2, where="id > 8", columns="id").read_all().rename_columns(["n", *META]).to_batches(), META
    )
    after = bag(
        cdfd.snapshot(uri, where="id > 8", columns="id").read_all().rename_columns(["n", *META]).to_batches(), META
    )
    net = fold(actual.to_batches())
    assert {row: after[row] - before[row] for row in before | after if after[row] != before[row]} == dict(net)
    with pytest.raises(ConfigError, match="all change types"):
        cdfd.changes(uri, net=True, key="id", exclude_change_types="insert")


MASKED = pa.record_batch(
    {
        "s": pa.array(["größe", "a", None, "a"]),
        "x": pa.array([b"\xff\x00\x01", b"", None, b""], pa.binary()),
        "i": pa.array([1, -2, None, 1], pa.int32()),
        "d": pa.array([Decimal(0), Decimal("-2.5E-9"), None, Decimal("12.5")], pa.decimal128(38, 10)),
        "l": pa.array([[1], [], None, [1]], pa.list_(pa.int64())),
        "f": pa.array([1.5, 2, None, 1], pa.float64()),
    }
)
FIELDS = {child.name: child for child in from_arrow(MASKED.schema)}


def masked(name: str, mask: Mask) -> list[Any]:
    actual = mask.applied(FIELDS[name])(MASKED[name])
    assert (
        TableSchema(from_arrow(pa.schema([(name, actual.type)]))).struct.fields[0].type == mask.field(FIELDS[name]).type
    )
    return list(actual.to_pylist())


def digest(data: bytes) -> str:
    return hmac.new(KEY, data, hashlib.sha256).hexdigest()


def test_masks() -> None:
    assert masked("l", Mask("nullify")) == [None] * 4
    assert masked("s", Mask("constant", "?")) == ["?"] * 4
    assert masked("i", Mask("constant", "7")) == [7] * 4
    assert masked("s", Mask("truncate", length=3)) == ["grö", "a", None, "a"]
    assert masked("x", Mask("truncate", length=2)) == [b"\xff\x00", b"", None, b""]
    hashed = Mask("hmac_sha256", key=KEY)
    assert masked("s", hashed) == [digest("größe".encode()), digest(b"a"), None, digest(b"a")]
    assert masked("x", hashed) == [digest(b"\xff\x00\x01"), digest(b""), None, digest(b"")]
    assert masked("i", hashed) == [digest(b"1"), digest(b"-2"), None, digest(b"1")]
    assert masked("d", hashed) == [digest(b"0.0000000000"), digest(b"-0.0000000025"), None, digest(b"12.5000000000")]


@pytest.mark.parametrize(
    ("column", "mask", "what"),
    [
        ("i", Mask("truncate", length=1), "cannot hide"),
        ("l", Mask("hmac_sha256", key=KEY), "cannot hide"),
        ("f", Mask("hmac_sha256", key=KEY), "cannot hide"),
        ("i", Mask("constant", "a"), "not a value of column 'i'"),
        ("l", Mask("constant", "a"), "not a value of column 'l'"),
        ("q", Mask("nullify"), "there is no column 'q'"),
    ],
)
def test_masks_that_do_not_fit(column: str, mask: Mask, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Shape(masks=((column, mask),)).check(TableSchema(from_arrow(MASKED.schema)))


def test_a_key_is_hidden_by_a_hash_alone() -> None:
    schema = TableSchema(from_arrow(MASKED.schema))
    Shape(masks=(("S", Mask("hmac_sha256", key=KEY)),)).check(schema, ["s"])
    for mask in (Mask("nullify"), Mask("constant", "a"), Mask("truncate", length=9)):
        with pytest.raises(ConfigError, match="gives different rows the same key"):
            Shape(masks=(("S", mask),)).check(schema, ["s"])


def test_the_key_of_a_mask_is_not_shown() -> None:
    shape = Shape(masks=(("s", Mask("hmac_sha256", key=KEY)),))
    assert "sixteen" not in repr(shape)
    assert pickle.loads(pickle.dumps(shape)) == shape


def test_shapes_that_users_write(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY + b"\n")
    actual = shape_of(
        "id > 1",
        ["id", {"name": "v", "as": "w"}],
        {"a": "nullify", "b": "constant:x:y", "c": " truncate :2", "d": f"hmac_sha256:{tmp_path}/key",
         "e": {"method": "truncate", "length": 1}, "f": {"method": "hmac_sha256", "hmac_key": KEY}},
        "delete",
    )  # fmt: skip
    assert actual.columns == (Chosen("id"), Chosen("v", "w"))
    assert [mask for _, mask in actual.masks] == [
        Mask("nullify"),
        Mask("constant", "x:y"),
        Mask("truncate", length=2),
        Mask("hmac_sha256", key=KEY),
        Mask("truncate", length=1),
        Mask("hmac_sha256", key=KEY),
    ]
    assert actual.excluded == ("delete",)


@pytest.mark.parametrize(
    "value",
    [
        {"where": 3},
        {"columns": [3]},
        {"columns": [{"name": "a"}]},
        {"columns": ["a", {"name": "b", "as": "A"}]},
        {"columns": [{"name": "a", "as": "_change_type"}]},
        {"columns": [{"name": "a", "as": "\udcff"}]},
        {"where": "a = '\udcff'"},
        {"mask": {"a": "constant:\udcff"}},
        {"mask": {"a": {"method": "hmac_sha256", "hmac_key": "\udcff" * 16}}},
        {"mask": {"a": {"method": "truncate", "length": 2**63}}},
        {"mask": {7: "nullify"}},
        {"mask": ["a"]},
        {"mask": {"a": "hide"}},
        {"mask": {"a": "nullify:1"}},
        {"mask": {"a": "truncate"}},
        {"mask": {"a": "truncate:-1"}},
        {"mask": {"a": "hmac_sha256:/not/there"}},
        {"mask": {"a": {"method": "hmac_sha256", "hmac_key": "short"}}},
        {"mask": {"a": {"method": "nullify", "length": 1}}},
        {"mask": {"a": "nullify", "A": "nullify"}},
        {"exclude_change_types": "updates"},
        {"exclude_change_types": ["insert", "delete", "update_preimage", "update_postimage"]},
    ],
)
def test_shapes_that_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError):
        shape_of(**value)


def test_a_filter_is_checked_before_the_first_row(tmp_path: Path) -> None:
    table = life(tmp_path, 1, tracked=False)
    for wrong in ({"where": "idd = 1"}, {"where": "v > 1"}, {"mask": {"vv": "nullify"}}, {"columns": ["id", "vv"]}):
        with pytest.raises(ConfigError):
            cdfd.changes(str(table.folder), **wrong)


@pytest.mark.parametrize("where", ["at = 1", "tags IN (1)", "at.b > 'a'", "NOT 1 < at"])
def test_values_that_cannot_be_compared_are_refused(tmp_path: Path, where: str) -> None:
    table = life(tmp_path, 1, tracked=False)
    for read in (cdfd.changes, cdfd.snapshot):
        with pytest.raises(ConfigError, match="whose values cannot be compared"):
            read(str(table.folder), where=where)


def test_a_struct_whose_fields_are_never_null_becomes_null() -> None:
    kind = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    plain = change_rows([Change("insert", 1, 1, "a")])
    rows = plain.set_column(1, pa.field("note", kind), pa.array([{"a": 1}], kind))
    schema = TableSchema(from_arrow(rows.schema.empty_table().select(["id", "note"]).schema))
    shaper = RowShaper(Shape(masks=(("note", Mask("nullify")),)))
    batch = shaper.shape_batch(ChangeBatch(ChangePlan(1, 0, schema, (), "files"), schema, rows, 1))
    assert batch.rows.select(["id", "note"]).to_pylist() == [{"id": 1, "note": None}]


def test_rows_have_the_schema_of_their_version() -> None:
    """Also if two of them differ in what Arrow does not know: the next version may go back to the first one."""
    shaper, rows = RowShaper(Shape(where=parse_filter("id > 0"))), change_rows([Change("insert", 1, 1, "a")])
    for comment in ("first", "second", "first", "third"):
        fields = tuple(replace(field, metadata={"comment": comment}) for field in SCHEMA.struct)
        schema = TableSchema(StructType(fields))
        batch = shaper.shape_batch(ChangeBatch(ChangePlan(1, 0, schema, (), "files"), schema, rows, 1))
        assert batch.schema == schema


def test_a_column_that_is_gone_ends_the_stream() -> None:
    before = TableSchema(from_arrow(pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int64())]))])))
    for names in ([("id", pa.int64())], [("id", pa.int64()), ("s", pa.struct([("b", pa.int64())]))]):
        with pytest.raises(MissingColumnError, match="is gone"):
            Shape(where=parse_filter("s.a = 1")).check_change(before, TableSchema(from_arrow(pa.schema(names))))
    masked = Shape(masks=(("s", Mask("nullify")), ("later", Mask("nullify"))))
    with pytest.raises(MissingColumnError, match="column 's' is gone"):
        masked.check_change(before, TableSchema(from_arrow(pa.schema([("id", pa.int64())]))))
    masked.check_change(before, before)
    # A column that is not there yet is null.
    Shape(where=parse_filter("s.a = 1")).check_change(TableSchema(from_arrow(pa.schema([("id", pa.int64())]))), before)


def mapped(*names: tuple[str, str], nested: bool = False) -> TableSchema:
    """A schema of columns with these names and physical names, or of a struct `s` with such fields."""
    fields = tuple(
        StructField(name, Primitive("string"), metadata={"delta.columnMapping.physicalName": physical})
        for name, physical in names
    )
    if nested:
        fields = (StructField("s", StructType(fields), metadata={"delta.columnMapping.physicalName": "p"}),)
    return TableSchema(StructType(fields), (), ColumnMappingMode.NAME)


BEFORE = (("id", "p0"), ("secret", "p1"), ("other", "p2"))
"""Columns, with their physical names."""


@pytest.mark.parametrize(
    "after",
    [
        (("id", "p0"), ("old", "p1"), ("other", "p2"), ("secret", "p3")),
        (("id", "p0"), ("other", "p1"), ("Secret", "p2")),
        (("id", "p0"), ("old", "p1"), ("secret", "p2")),
    ],
    ids=["a new one has its name", "two exchange their names", "another one has its name"],
)
def test_a_column_that_is_renamed_is_gone_although_there_is_one_of_its_name(after: Any) -> None:
    for nested, name in ((False, "secret"), (True, "s.secret")):
        with pytest.raises(MissingColumnError, match=f"column '{name}' is gone"):
            Shape(where=parse_filter(f"{name} = 'a'")).check_change(
                mapped(*BEFORE, nested=nested), mapped(*after, nested=nested)
            )
    hidden = Mask("nullify")
    with pytest.raises(MissingColumnError, match="column 'secret' is gone"):
        Shape(masks=(("secret", hidden),)).check_change(mapped(*BEFORE), mapped(*after))
    # With masks of the new names, it continues.
    Shape(masks=tuple((name, hidden) for name, _ in after[1:])).check_change(mapped(*BEFORE), mapped(*after))


@pytest.mark.parametrize("nested", [False, True])
def test_a_column_with_another_case_is_not_gone(nested: bool) -> None:
    before, after = (
        mapped(("id", "p0"), (name, "p1"), ("other", "p2"), nested=nested) for name in ("secret", "Secret")
    )
    where = parse_filter("s.secret = 'a'" if nested else "secret = 'a'")
    Shape(where=where).check_change(before, after)
    Shape(where=where).check_change(after, before)


def test_a_column_that_an_overwrite_replaces_is_not_gone() -> None:
    after = mapped(("id", "p0"), ("secret", "p4"), ("other", "p2"))
    Shape(where=parse_filter("secret = 'a'"), masks=(("secret", Mask("nullify")),)).check_change(mapped(*BEFORE), after)


@pytest.mark.parametrize("refine", ["off", "rows", "key"])
@pytest.mark.parametrize("where", FILTERS[:3])
def test_parts_of_a_version_have_the_ordinals_of_the_whole(
    tmp_path: Path, refine: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part begins at the position that the one before it left, also if the filter leaves nothing of that one."""
    monkeypatch.setattr(refining, "BUCKET_BYTES", 3_000)
    table = life(tmp_path, 2, tracked=refine == "rows")
    tracked = Table.open(str(table.folder))
    rows = RowOptions(refine=refine, key=("id",) if refine == "key" else (), shape=shape_of(where))

    async def plans() -> list[ChangePlan]:
        stream = tracked.stream(rows)
        with tracked.tailer() as tailer:
            return [version.plan async for version in stream.versions(tailer, 0, table.version - 1)]

    for plan in asyncio.run(plans()):
        execution = Execution(tracked.files, rows)
        whole = [row for batch in execution.batches([plan]) for row in batch.rows.to_pylist()]
        position, actual = Position("tracked", plan.version), []
        for start, end in ranges(plan, 0, 1):
            assert start == position.part
            execution = Execution(tracked.files, rows)
            following = position.ordinal
            for batch in execution.batches([replace(plan, scans=plan.scans[:end])], position):
                actual += batch.rows.to_pylist()
                following = batch.following
            position = position.at_part(end, following, None)
        assert repr(actual) == repr(whole)


def test_the_command(tmp_path: Path) -> None:
    table = life(tmp_path, 1, tracked=False)
    uri = str(table.folder)
    (tmp_path / "key").write_bytes(KEY)
    command = [
        "tail",
        uri,
        "--until",
        "now",
        "--where",
        "id > 8",
        "--columns",
        "id, v as w, x",
        "--mask",
        "v=constant:q",
    ]
    command += ["--mask", f"id=hmac_sha256:{tmp_path}/key", "--exclude-change-types", "delete"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    actual = [json.loads(line) for line in result.stdout.splitlines()]
    wanted = cdfd.changes(uri, where="id > 8", exclude_change_types="delete").read_all()
    assert [row["id"] for row in actual] == [digest(str(number).encode()) for number in wanted["id"].to_pylist()]
    assert {(row["w"], row["_change_type"]) for row in actual} == {("q", "insert")}
    twice = ["--mask", "v =nullify", "--mask", "v =truncate:2"]
    for wrong in (["--mask", "v"], twice, ["--where", "idd = 1"], ["--mask", "v=hide"], ["--columns", "id,v as id"]):
        failed = CliRunner().invoke(app, ["tail", uri, "--until", "now", *wrong])
        assert isinstance(failed.exception, ConfigError)
