"""Net changes and differences: multisets, whatever happened between; in memory and on disk; composed of parts."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import cdfd
from cdfd.cli import app
from cdfd.cli.commands.tail import Request, Writer, _write_net
from cdfd.errors import ConfigError
from cdfd.plan.row_options import RowOptions
from cdfd.scan import file_reader
from cdfd.scan.updates import net
from cdfd.scan.updates.net import NetChanges
from cdfd.scan.updates.spill import SpillSpace
from tests.support.change_rows import SCHEMA, change_rows
from tests.support.change_rows import Row as Change
from tests.support.fold import META, fold, row_of
from tests.support.tracked_table import TrackedTable, values

COLUMNS = pa.schema(list(SCHEMA)[:2])
CHANGES = st.lists(
    st.tuples(st.sampled_from(["insert", "delete"]), st.sampled_from([None, 1, 2]), st.sampled_from(["a", "b", None]))
)


def net_of(*batches: pa.RecordBatch, key: tuple[str, ...] = ("id",)) -> pa.Table:
    changes = NetChanges(COLUMNS, key, SpillSpace())
    for batch in batches:
        changes.add(batch)
    return pa.Table.from_batches(changes.batches(), changes.schema)


def batch(rows: list[Any], version: int = 1) -> pa.RecordBatch:
    return change_rows([Change(kind, version, number, note) for kind, number, note in rows])


def folded(*tables: pa.Table) -> Counter[Any]:
    return fold([each for table in tables for each in table.to_batches()])


@given(CHANGES, CHANGES)
def test_net_of_nets_is_the_net_of_the_whole(first: list[Any], second: list[Any]) -> None:
    one, two = batch(first), batch(second, 2)
    whole, parts = net_of(one, two), net_of(*net_of(one).to_batches(), *net_of(two).to_batches())
    kinds = [
        Counter((row["_change_type"], row["id"], row["note"]) for row in changed.to_pylist())
        for changed in (whole, parts)
    ]
    # Where keys repeat, images may be paired otherwise; the rows are the same.
    assert folded(whole) == folded(parts) == fold([one, two])
    assert sum(kinds[0].values()) == sum(kinds[1].values())
    assert folded(whole) == folded(net_of(*whole.to_batches()))


def test_a_key_has_its_first_image_and_its_last() -> None:
    rows = [
        batch([("insert", 1, "a"), ("insert", 2, "a")], 1),
        batch([("delete", 1, "a"), ("insert", 1, "b")], 2),
        batch([("delete", 1, "b"), ("insert", 1, "c"), ("delete", 2, "a")], 3),
    ]
    assert brief(net_of(*rows)) == [("insert", 3, 0, 1, "c")]
    assert brief(net_of(*rows[1:])) == [
        ("delete", 3, 0, 2, "a"),
        ("update_preimage", 3, 1, 1, "a"),
        ("update_postimage", 3, 2, 1, "c"),
    ]
    assert brief(net_of(rows[1], batch([("delete", 1, "b"), ("insert", 1, "a")], 4))) == []
    assert brief(net_of(*rows[1:], key=())) == [
        ("delete", 2, 0, 1, "a"),
        ("delete", 3, 1, 2, "a"),
        ("insert", 3, 2, 1, "c"),
    ]


def brief(rows: pa.Table) -> list[tuple[Any, ...]]:
    names = ("_change_type", "_commit_version", "_change_ordinal", "id", "note")
    return [tuple(row[name] for name in names) for row in rows.to_pylist()]


def test_many_rows_are_matched_in_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    rows = [batch([("insert", number, chance.choice("abc")) for number in range(500)], 1)]
    rows += [batch([("delete", n, rows[0]["note"][n].as_py()), ("insert", n, "z")], 2) for n in range(0, 500, 7)]
    expected = sorted(brief(net_of(*rows, key=key)) for key in (("id",), ()))
    monkeypatch.setattr(net, "SMALL_BYTES", 1000)
    actual = [brief(net_of(*rows, key=key)) for key in (("id",), ())]
    assert [Counter((kind, *row) for kind, _, _, *row in each) for each in sorted(actual)] == [
        Counter((kind, *row) for kind, _, _, *row in each) for each in expected
    ]
    assert [row[2] for row in actual[0]] == list(range(len(actual[0])))


@pytest.mark.parametrize("kind", ["insert", "delete", "update"])
def test_batches_of_large_rows_are_bounded(kind: str) -> None:
    kinds = ["delete", "insert"] if kind == "update" else [kind]
    rows = [batch([(each, n, each[:1] * 100_000) for n in range(200)], at) for at, each in enumerate(kinds)]
    changes = net_of(*rows)
    assert changes.num_rows == 200 * len(kinds)
    assert max(each.nbytes for each in changes.to_batches()) < 2 * file_reader.BATCH_BYTES + (1 << 20)
    assert folded(changes) == fold(rows)


@pytest.fixture
def table(tmp_path: Path) -> TrackedTable:
    chance = random.Random(4)
    made = TrackedTable(tmp_path / "table")
    made.insert([values(chance, number) for number in range(12)])
    for _ in range(3):
        ids = [row.row_id for row in made.rows]
        chosen = chance.sample(ids, 4)
        updates = {row.row_id: values(chance, row.values["id"]) for row in made.rows if row.row_id in chosen[:3]}
        made.change(chance, updates, set(chosen[3:]), [values(chance, 50 + made.version)])
    return made


def contents(table: TrackedTable, version: int) -> dict[int, Any]:
    rows = cdfd.snapshot(str(table.folder), version).read_all().to_pylist()
    return {row["id"]: row_of(row, META) for row in rows}


def expected(before: dict[int, Any], after: dict[int, Any]) -> Counter[Any]:
    changes: Counter[Any] = Counter()
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old != new and old is not None:
            changes["delete" if new is None else "update_preimage", old] += 1
        if old != new and new is not None:
            changes["insert" if old is None else "update_postimage", new] += 1
    return changes


class TestTables:
    @pytest.mark.parametrize("refine", ["off", "rows", "key"])
    def test_net_changes_are_the_difference_of_snapshots(self, table: TrackedTable, refine: Any) -> None:
        actual = cdfd.changes(str(table.folder), 2, net=True, key="id", refine=refine).read_all()
        rows = Counter((row["_change_type"], row_of(row, META)) for row in actual.to_pylist())
        assert rows == expected(contents(table, 1), contents(table, table.version - 1))

    @pytest.mark.parametrize("until", [(), ("--until", "now")])
    def test_tail_prints_net_changes(self, table: TrackedTable, until: tuple[str, ...]) -> None:
        result = CliRunner().invoke(app, ["tail", str(table.folder), "--net", "--key", "id", "--from", "2", *until])
        assert result.exit_code == 0
        actual = [json.loads(line) for line in result.stdout.splitlines()]
        wanted = expected(contents(table, 1), contents(table, table.version - 1))
        assert Counter(row["_change_type"] for row in actual) == Counter(kind for kind, _ in wanted.elements())

    def test_a_signal_ends_the_search_for_net_changes(
        self, table: TrackedTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not only once all rows of the range are read."""
        out, batches, add = io.BytesIO(), list[pa.RecordBatch](), NetChanges.add
        writer = Writer(str(table.folder), "flat", out)

        def add_and_stop(self: NetChanges, batch: pa.RecordBatch) -> None:
            batches.append(batch)
            add(self, batch)
            writer.stopped = True

        monkeypatch.setattr(NetChanges, "add", add_and_stop)
        _write_net(Request(str(table.folder), "0", rows=RowOptions(key=("id",)), net=True), writer)
        assert len(batches) == 1
        assert out.getvalue() == b""

    def test_diff_prints_what_differs_and_a_summary(self, table: TrackedTable, tmp_path: Path) -> None:
        wanted = expected(contents(table, 1), contents(table, 3))
        command = ["diff", str(table.folder), "--from", "1", "--to", "3", "--key", "id"]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0
        actual = [json.loads(line) for line in result.stdout.splitlines()]
        assert Counter(row["_change_type"] for row in actual) == Counter(kind for kind, _ in wanted.elements())
        summary = json.loads(CliRunner().invoke(app, [*command, "--summary"]).stdout)
        assert summary["before"]["version"], summary["after"]["version"] == (1, 3)
        assert summary["update"] == sum(kind == "update_postimage" for kind, _ in wanted.elements()) > 0
        same = CliRunner().invoke(app, ["diff", str(table.folder), "--from", "3", "--to", "3"])
        assert (same.stdout, same.stderr) == ("", "version 3 and version 3 have the same rows\n")

    def test_diff_of_two_tables(self, table: TrackedTable, tmp_path: Path) -> None:
        copy = TrackedTable(tmp_path / "copy", tracked=False)
        rows = [row.values for row in table.rows]
        copy.insert([*rows[1:], rows[0] | {"v": "changed"}])
        result = CliRunner().invoke(app, ["diff", str(table.folder), "--other", str(copy.folder), "--key", "id"])
        assert [json.loads(line)["v"] for line in result.stdout.splitlines()] == [rows[0]["v"], "changed"]
        assert result.stderr.endswith("differ: 0 inserted, 1 updated, 0 deleted\n")

    def test_diff_of_tables_whose_types_differ(self, tmp_path: Path) -> None:
        """The hint of other commands is about a range of versions."""
        folders = [tmp_path / "a", tmp_path / "b"]
        for folder, kind in zip(folders, (pa.int64(), pa.string()), strict=True):
            deltalake.write_deltalake(folder, pa.table({"id": pa.array([1]).cast(kind), "v": ["a"]}))
        command = ["diff", str(folders[0]), "--other", str(folders[1])]
        assert str(CliRunner().invoke(app, command).exception) == (
            f"column id has type long at this version, and cannot be read as string (table {folders[0]}, version 0). "
            "Compare the other columns, with --columns"
        )
        assert "have the same rows" in CliRunner().invoke(app, [*command, "--columns", "v"]).stderr
        missing = str(CliRunner().invoke(app, [*command, "--columns", "w"]).exception)
        assert missing == f"there is no column 'w' (table {folders[1]}, version 0). The columns are: id, v"


class TestBadInput:
    def test_net_changes_without_a_key(self, table: TrackedTable) -> None:
        with pytest.raises(ConfigError, match="net changes need a key"):
            cdfd.changes(str(table.folder), net=True)

    def test_a_key_that_columns_leave_out(self, table: TrackedTable) -> None:
        with pytest.raises(ConfigError, match="`columns` leaves out id of the key"):
            cdfd.changes(str(table.folder), net=True, key="id", columns=["v"])
        result = CliRunner().invoke(app, ["diff", str(table.folder), "--from", "1", "--key", "id", "--columns", "v"])
        assert "leaves out id" in str(result.exception)

    def test_net_changes_of_a_snapshot(self, table: TrackedTable) -> None:
        result = CliRunner().invoke(app, ["tail", str(table.folder), "--net", "--key", "id", "--snapshot"])
        assert "--net excludes --snapshot" in str(result.exception)

    def test_diff_of_a_state_with_itself(self, table: TrackedTable) -> None:
        result = CliRunner().invoke(app, ["diff", str(table.folder), "--to", "3"])
        assert "diff needs two states" in str(result.exception)
