"""The rules for planning a version's changes one by one, numbered as in the module and the specification."""

import itertools
import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest

from cdfd.delta import commit as commits
from cdfd.delta.actions import Add, DeletionVectorDescriptor, Metadata, Protocol
from cdfd.delta.commit import Commit
from cdfd.delta.files import PACK
from cdfd.delta.header import Header, PartialHeader
from cdfd.delta.snapshot import Snapshot, first
from cdfd.errors import LogError, UnsupportedError
from cdfd.model.commit_time import commit_timestamp
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan, Changes, LiveScans
from cdfd.model.position import LATEST_MS
from cdfd.plan.planner import needs_snapshot, plan, plan_listed_snapshot, plan_snapshot, wants_snapshot

Fields = dict[str, Any]


def schema(*names: str) -> str:
    fields = [{"name": name, "type": "string", "nullable": True, "metadata": {}} for name in names]
    return orjson.dumps({"type": "struct", "fields": fields}).decode()


def header(*names: str, by: Sequence[str] = ("p",), version: int = 0, **configuration: str) -> Header:
    settings = {f"delta.{key}": value for key, value in configuration.items()}
    metadata = Metadata("i", schema(*(names or ("p", "x"))), tuple(by), settings)
    return PartialHeader(version, Protocol(1, 2), metadata).finish()


HEADER = header()
VECTORS = Protocol(3, 7, frozenset({"deletionVectors"}), frozenset({"deletionVectors"}))


def entry(*actions: Fields, version: int = 1) -> Commit:
    return commits.parse(version, b"\n".join(map(orjson.dumps, actions)))


def add(path: str, vector: str | None = None, *, change: bool = True, **more: Any) -> Fields:
    fields = {"path": path, "partitionValues": {"p": "1"}, "size": 10, "modificationTime": 1, "dataChange": change}
    return {"add": fields | described(vector) | more}


def remove(path: str, vector: str | None = None, *, change: bool = True, **more: Any) -> Fields:
    fields = {"path": path, "partitionValues": {"p": "1"}, "size": 10, "deletionTimestamp": 1, "dataChange": change}
    return {"remove": fields | described(vector) | more}


def cdc(path: str, **more: Any) -> Fields:
    return {"cdc": {"path": path, "partitionValues": {"p": "2"}, "size": 5, "dataChange": False} | more}


def described(vector: str | None) -> Fields:
    if vector is None:
        return {}
    return {"deletionVector": {"storageType": "i", "pathOrInlineDv": vector, "sizeInBytes": 4, "cardinality": 1}}


def dv(vector: str) -> DeletionVectorDescriptor:
    return DeletionVectorDescriptor("i", vector, None, 4, 1)


def scans(*actions: Fields, at: Header = HEADER, **more: Any) -> list[FileScan]:
    return list(plan(entry(*actions), at, 7, **more).scans)


def brief(files: Sequence[FileScan]) -> list[tuple[str, str | None, str | None, str | None]]:
    """(path, change type, rows to read, rows to leave out)."""
    return [
        (
            scan.path,
            scan.change_type,
            scan.only and scan.only.path_or_inline,
            scan.without and scan.without.path_or_inline,
        )
        for scan in files
    ]


class TestChangeDataFiles:
    """Rule 1: any `cdc` action, and only the change data files are read."""

    def test_nothing_else_is_read(self) -> None:
        made = plan(entry(add("a"), remove("b"), cdc("_change_data/c")), HEADER, 7)
        assert list(made.scans) == [FileScan("_change_data/c", None, {"p": "2"}, 5)]
        assert made.origin == "cdc"

    def test_whatever_the_flags_and_metrics_say(self) -> None:
        merge = {"commitInfo": {"operation": "MERGE", "operationMetrics": dict.fromkeys(MERGED, "0")}}
        assert brief(scans(merge, add("a", change=False), cdc("c"))) == [("c", None, None, None)]

    @pytest.mark.parametrize("flag", [True, False, None])
    def test_whatever_the_flag_of_the_file_itself_says(self, flag: bool | None) -> None:
        actions = (add("a"), remove("b"), cdc("c", dataChange=flag))
        assert brief(scans(*actions)) == [("c", None, None, None)]
        assert brief(scans(*actions, changes="files")) == [("b", "delete", None, None), ("a", "insert", None, None)]

    def test_the_feed_need_not_be_on(self) -> None:
        """Specification, "Add CDC File": they are read when available."""
        assert brief(scans(cdc("c"))) == [("c", None, None, None)]

    def test_partition_values_are_those_of_the_file_by_physical_name(self) -> None:
        assert scans(cdc("c", partitionValues={"col-1": None}))[0].partition_values == {"col-1": None}

    def test_images_may_be_in_files_of_several_partitions(self) -> None:
        files = [cdc("a", partitionValues={"p": "1"}), cdc("b", partitionValues={"p": "2"})]
        looked_at = plan(entry(*files), HEADER, 7).cross_partition
        assert [(scan.path, scan.image_phase) for scan in looked_at] == [("a", "early"), ("b", "early")]
        assert plan(entry(cdc("a"), cdc("b")), HEADER, 7).cross_partition == ()

    def test_unless_only_files_are_wanted(self) -> None:
        assert brief(scans(add("a"), cdc("c"), changes="files")) == [("a", "insert", None, None)]


class TestFiles:
    """Rule 2: adds are inserts and removes deletes, without what their own deletion vector hides."""

    def test_added_and_removed_files_are_inserts_and_deletes(self) -> None:
        made = plan(entry(add("a"), remove("b")), HEADER, 7)
        assert list(made.scans) == [FileScan("b", "delete", {"p": "1"}, 10), FileScan("a", "insert", {"p": "1"}, 10)]
        assert made.origin == "files"
        assert made.size == 20
        assert (made.version, made.timestamp_ms, made.schema) == (1, 7, HEADER.schema)

    def test_rows_hidden_by_a_vector_are_left_out(self) -> None:
        assert brief(scans(add("a", "x"), remove("b", "y"))) == [("b", "delete", None, "y"), ("a", "insert", None, "x")]

    def test_a_remove_that_does_not_say_its_size(self) -> None:
        assert scans(remove("a", size=None))[0].size == 0

    def test_a_remove_that_does_not_say_whether_data_changes_does_change_data(self) -> None:
        assert brief(scans({"remove": {"path": "a", "partitionValues": {"p": "1"}}})) == [("a", "delete", None, None)]


class TestVectors:
    """Rule 3: the same path in add and remove, and the vectors are diffed."""

    def test_rows_hidden_since_are_deletes(self) -> None:
        # none -> {x}: the rows of x
        assert brief(scans(remove("a"), add("a", "x"))) == [("a", "delete", "x", None)]

    def test_rows_no_longer_hidden_are_inserts(self) -> None:
        # {x} -> none, a RESTORE: the rows of x are back
        assert brief(scans(remove("a", "x"), add("a"))) == [("a", "insert", "x", None)]

    def test_the_difference_in_both_directions(self) -> None:
        # {0, 1} -> {1, 2}: row 2 is deleted, row 0 inserted; deletes come first
        actual = scans(remove("a", "old"), add("a", "new"))
        assert brief(actual) == [("a", "delete", "new", "old"), ("a", "insert", "old", "new")]

    @pytest.mark.parametrize("vector", [None, "x"])
    def test_equal_vectors_are_no_change(self, vector: str | None) -> None:
        made = plan(entry(remove("a", vector), add("a", vector, size=11)), HEADER, 7)
        assert list(made.scans) == []
        assert made.origin == "none"

    def test_one_path_in_two_spellings(self) -> None:
        assert brief(scans(remove("a%20b"), add("a b", "x"))) == [("a b", "delete", "x", None)]

    def test_another_offset_is_another_vector(self) -> None:
        there = described("x")["deletionVector"]
        old, new = ({"deletionVector": there | {"storageType": "u", "offset": offset}} for offset in (1, 9))
        actual = scans(remove("a", **old), add("a", **new))
        assert [scan.change_type for scan in actual] == ["delete", "insert"]

    def test_partition_values_come_from_the_add(self) -> None:
        actual = scans(remove("a", partitionValues=None), add("a", "x"))
        assert actual[0].partition_values == {"p": "1"}

    def test_two_adds_or_removes_of_one_path_are_illegal(self) -> None:
        """Specification, "Add File and Remove File": at most one file action of a type for any path."""
        for action in (add, remove):
            with pytest.raises(LogError, match="two actions of one kind") as caught:
                scans(action("a", "x"), action("a", "y"))
            assert caught.value.path == "a"


MERGED = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")


class TestNothing:
    def test_actions_without_data_change_have_no_rows(self) -> None:
        """Rule 4: rows were only moved."""
        made = plan(entry(remove("a", change=False), add("b", change=False), add("c", "x", change=False)), HEADER, 7)
        assert list(made.scans) == []

    def test_only_the_actions_without_data_change_are_left_out(self) -> None:
        assert brief(scans(remove("a", change=False), add("b", change=False), add("c"))) == [
            ("c", "insert", None, None)
        ]

    def info(self, operation: str, **metrics: Any) -> Fields:
        return {"commitInfo": {"operation": operation, "operationMetrics": metrics}}

    @pytest.mark.parametrize("zero", ["0", 0, "00"])
    def test_a_merge_that_changed_no_row(self, zero: Any) -> None:
        """Rule 5: it rewrote files, and every row is as it was."""
        merge = self.info("MERGE", **dict.fromkeys(MERGED, zero), numTargetRowsCopied="9")
        assert scans(merge, remove("a"), add("b")) == []

    def test_in_the_words_of_delta_rs(self) -> None:
        names = ["num_target_rows_inserted", "num_target_rows_updated", "num_target_rows_deleted"]
        assert scans(self.info("MERGE", **dict.fromkeys(names, 0)), remove("a"), add("b")) == []

    @pytest.mark.parametrize("changed", MERGED)
    @pytest.mark.parametrize("count", ["1", "9" * 19, "", "-1", "²", "0.0", "x", "9" * 5000, None])
    def test_a_merge_that_changed_one_or_does_not_say(self, changed: str, count: str | None) -> None:
        merge = self.info("MERGE", **(dict.fromkeys(MERGED, "0") | {changed: count}))
        assert len(scans(merge, remove("a"), add("b"))) == 2

    @pytest.mark.parametrize("counts", [{}, {"numTargetRowsInserted": "0"}])
    def test_a_merge_without_all_counts_may_have_changed_rows(self, counts: dict[str, str]) -> None:
        assert len(scans(self.info("MERGE", **counts), remove("a"), add("b"))) == 2

    def test_another_operation_with_such_counts(self) -> None:
        assert len(scans(self.info("UPDATE", **dict.fromkeys(MERGED, "0")), remove("a"), add("b"))) == 2

    def test_a_commit_without_files(self) -> None:
        """Rule 7: no rows, and still a plan, so that the position moves on."""
        txn = {"txn": {"appId": "a", "version": 1}}
        made = plan(entry(txn, {"commitInfo": {}}, {"domainMetadata": {"domain": "d"}}, version=9), HEADER, 7)
        assert (made.version, list(made.scans), made.origin, made.size) == (9, [], "none", 0)


class TestPartitionValues:
    """Rule 6: a remove without them gets them from the state of the version before."""

    BEFORE = first(
        Commit(
            0,
            (Add("a", {"p": "5"}, 1, 1, True), Add("b", {"p": "6"}, 1, 1, True, deletion_vector=dv("x"))),
            protocol=Protocol(1, 2),
            metadata=HEADER.metadata,
        )
    )

    @pytest.mark.parametrize("values", [None, {}])
    @pytest.mark.parametrize("before", [BEFORE, BEFORE.compact()])
    def test_partition_values_that_a_remove_lacks_are_those_of_the_state(
        self, values: Fields | None, before: Snapshot
    ) -> None:
        """An empty map in a partitioned table says as little as none."""
        commit = entry(remove("a", partitionValues=values), remove("b", "x", partitionValues=values))
        assert needs_snapshot(commit, HEADER)
        actual = plan(commit, HEADER, 7, before=before).scans
        assert [scan.partition_values for scan in actual] == [{"p": "5"}, {"p": "6"}]

    @pytest.mark.parametrize("before", [None, BEFORE])
    def test_remove_of_an_unknown_file_without_partition_values_is_refused(self, before: Snapshot | None) -> None:
        with pytest.raises(LogError, match="a remove without partition values") as caught:
            scans(remove("nowhere", partitionValues=None), before=before)
        assert caught.value.path == "nowhere"
        assert caught.value.hint

    def test_an_unpartitioned_table_needs_none(self) -> None:
        plain = header(by=())
        commit = entry(remove("a", partitionValues=None))
        assert not needs_snapshot(commit, plain)
        assert plan(commit, plain, 7).scans[0].partition_values == {}

    @pytest.mark.parametrize(
        ("actions", "changes"),
        [
            ([remove("a")], "auto"),
            ([remove("a", partitionValues=None, change=False)], "auto"),
            ([remove("a", partitionValues=None), add("a", "x")], "auto"),
            ([remove("a", partitionValues=None), cdc("c")], "auto"),
            ([remove("a", partitionValues=None), cdc("c")], "cdf"),
            ([{"commitInfo": {"operation": "MERGE", "operationMetrics": dict.fromkeys(MERGED, 0)}}], "auto"),
            ([add("a")], "auto"),
        ],
    )
    def test_where_no_state_is_needed_none_is_loaded(self, actions: list[Fields], changes: Changes) -> None:
        commit = entry(*actions)
        on = header(enableChangeDataFeed="true")
        assert not needs_snapshot(commit, on, changes)
        plan(commit, on, 7, changes=changes)

    def test_change_data_files_that_nobody_wants_do_not_help(self) -> None:
        assert needs_snapshot(entry(remove("a", partitionValues=None), cdc("c")), HEADER, "files")

    def test_partitioned_as_the_table_was_before(self) -> None:
        """An overwrite may change the partitioning; what it removes is partitioned as it was."""
        commit = entry(remove("a", partitionValues={}), add("b", partitionValues={"x": "1"}))
        was, now = header(by=()), header(by=("x",))
        assert not needs_snapshot(commit, was)
        actual = plan(commit, now, 7, previous=was).scans
        assert [(scan.path, scan.partition_values) for scan in actual] == [("a", {}), ("b", {"x": "1"})]


class TestSchemas:
    """Rule 9: a version is read in the schema in force at it."""

    def test_what_an_overwrite_deletes_is_read_in_the_schema_before(self) -> None:
        was, now = header("p", "x"), header("p", "y", version=1)
        made = plan(entry(remove("a"), add("b")), now, 7, previous=was)
        assert made.schema == now.schema
        assert [(scan.path, scan.schema) for scan in made.scans] == [("a", was.schema), ("b", None)]

    def test_where_the_schema_stays_nothing_is_special(self) -> None:
        assert scans(remove("a"), previous=header(version=5))[0].schema is None
        assert scans(remove("a"))[0].schema is None

    def test_metadata_alone_changes_no_row(self) -> None:
        now = header("p", "x", "y")
        made = plan(entry(), now, 7, previous=HEADER)
        assert (made.schema, list(made.scans)) == (now.schema, [])


class TestWhichChanges:
    def test_cdf_refuses_a_table_without_a_feed(self) -> None:
        with pytest.raises(UnsupportedError, match="does not record a change data feed") as caught:
            plan(entry(add("a"), version=4), HEADER, 7, changes="cdf")
        assert caught.value.version == 4
        assert caught.value.hint

    def test_cdf_takes_files_where_a_version_has_no_change_data(self) -> None:
        """Specification, "Change Data Files": a writer may leave them out where it only adds or removes."""
        on = header(enableChangeDataFeed="true")
        assert brief(scans(add("a"), at=on, changes="cdf")) == [("a", "insert", None, None)]
        assert brief(scans(add("a"), cdc("c"), at=on, changes="cdf")) == [("c", None, None, None)]


class TestSnapshot:
    """Rule 4: a first snapshot's files are inserts whatever their flag says."""

    STATE = first(
        Commit(
            0,
            (
                Add("b", {"p": "1"}, 2, 1, False, deletion_vector=dv("x")),
                Add("a", {"p": None}, 3, 1, True),
            ),
            protocol=Protocol(1, 2),
            metadata=HEADER.metadata,
        )
    )

    def test_every_live_row_is_an_insert(self) -> None:
        made = plan_snapshot(self.STATE, 7)
        assert list(made.scans) == [
            FileScan("a", "insert", {"p": None}, 3),
            FileScan("b", "insert", {"p": "1"}, 2, without=dv("x")),
        ]
        assert (made.version, made.timestamp_ms, made.origin, made.size) == (0, 7, "snapshot", 5)
        assert made.schema == HEADER.schema

    def test_its_scans_are_a_sequence(self) -> None:
        actual = plan_snapshot(self.STATE, 7).scans
        plain = tuple(actual)
        assert isinstance(actual, LiveScans)
        assert (len(actual), actual[0], actual[-1], tuple(actual[1:]), tuple(reversed(actual))) == (
            2,
            plain[0],
            plain[1],
            plain[1:],
            plain[::-1],
        )
        assert isinstance(actual[1:], LiveScans)
        assert actual == plain
        assert actual[:1] != plain
        assert actual == plan_snapshot(self.STATE, 9).scans

    def test_an_empty_table(self) -> None:
        empty = first(Commit(0, protocol=Protocol(1, 2), metadata=HEADER.metadata))
        assert list(plan_snapshot(empty, 7).scans) == []

    def test_snapshot_that_is_listed_elsewhere_has_no_scans(self) -> None:
        whole = plan_snapshot(self.STATE, 7)
        assert len(whole.scans) > 0
        assert plan_listed_snapshot(self.STATE, 7) == replace(whole, scans=())

    def test_table_without_columns_may_have_no_files(self) -> None:
        nothing = Metadata("i", '{"type":"struct","fields":[]}', (), {})
        state = first(Commit(0, protocol=Protocol(1, 2), metadata=nothing))
        assert list(plan_snapshot(state, 7).scans) == []
        with pytest.raises(LogError, match="data files, but no columns"):
            plan_snapshot(state.apply(entry(add("a", partitionValues={}))), 7)


class TestDeterminism:
    """Rule 13: files by path, so that a scan's index means the same after a restart."""

    ACTIONS = (
        add("ü"),
        remove("b", "old"),
        add("b", "new"),
        remove("c"),
        add("a/z"),
        add("a b"),
        add("A"),
        add("\U00010000"),
    )

    def test_the_order_of_the_log_does_not_count(self) -> None:
        expected = scans(*self.ACTIONS)
        chance = random.Random(0)
        for _ in range(50):
            assert scans(*chance.sample(self.ACTIONS, len(self.ACTIONS))) == expected

    def test_deletes_come_before_inserts_and_each_by_path(self) -> None:
        actual = scans(*self.ACTIONS)
        # A row that moved to another file is gone before it is back: all deletes, then all inserts, each by path.
        assert [scan.change_type for scan in actual] == sorted(scan.change_type or "" for scan in actual)
        for kind in ("delete", "insert"):
            names = [scan.path for scan in actual if scan.change_type == kind]
            assert names == sorted(names, key=str.encode)

    def test_change_data_files_too(self) -> None:
        for order in itertools.permutations(["c", "a", "b"]):
            actual = scans(*map(cdc, order))
            assert [(scan.path, scan.image_phase) for scan in actual] == [
                (path, half) for half in ("early", "late") for path in "abc"
            ]
            # Read in halves, a file counts once.
            assert [scan.share for scan in actual] == [3, 3, 3, 2, 2, 2]
            assert plan(entry(*map(cdc, order)), HEADER, 7).size == 15

    def test_of_one_change_data_file_both_halves_are_read_at_once(self) -> None:
        (actual,) = scans(cdc("a"))
        assert actual.image_phase is None
        assert actual.share == actual.size == 5

    def test_many_files_are_planned_like_few(self) -> None:
        names = [f"{number:05}" for number in range(PACK + 5)]
        random.Random(0).shuffle(names)
        moved = [add("moved", change=False), remove("moved2", change=False)]
        many = plan(entry(*map(add, names), *moved), HEADER, 7)
        assert isinstance(many.scans, LiveScans)
        assert many.origin == "files"
        assert tuple(many.scans) == tuple(FileScan(name, "insert", {"p": "1"}, 10) for name in sorted(names))
        with_remove = scans(*map(add, names), remove("z"))
        assert with_remove[1:] == list(many.scans)
        assert with_remove[0].change_type == "delete"

    def test_many_files_without_data_change(self) -> None:
        made = plan(entry(*(add(str(number), change=False) for number in range(PACK + 5))), HEADER, 7)
        assert (list(made.scans), made.origin) == ([], "none")

    def test_of_many_files_none_may_be_added_twice(self) -> None:
        names = [f"{number:05}" for number in range(PACK + 5)]
        with pytest.raises(LogError, match="two actions of one kind"):
            scans(*map(add, names), add(names[7], "x"))


class TestValues:
    def plans(self) -> list[ChangePlan]:
        return [
            plan(entry(*TestDeterminism.ACTIONS), header("p", "y"), 7, previous=HEADER),
            plan(entry(cdc("c")), HEADER, 7),
            plan(entry(*(add(str(number)) for number in range(PACK + 5))), HEADER, 7),
            plan_snapshot(TestSnapshot.STATE, 7),
            plan_snapshot(TestSnapshot.STATE.compact(), 7),
        ]

    @pytest.mark.parametrize("number", range(5))
    def test_pickled_plan_is_equal(self, number: int) -> None:
        made = self.plans()[number]
        again = pickle.loads(pickle.dumps(made))
        assert again == made
        assert tuple(again.scans) == tuple(made.scans)
        assert again.schema.arrow == made.schema.arrow

    def test_the_same_log_gives_the_same_plan(self) -> None:
        assert self.plans() == self.plans()


class TestTimestamp:
    """Rule 8: the log file's modification time made monotonic, or the commit's own time where that is switched on."""

    ON = header(enableInCommitTimestamps="true")

    @pytest.mark.parametrize(
        ("modified", "previous", "expected"),
        [
            *[(50, None, 50), (50, 40, 50), (50, 49, 50), (50, 50, 51), (50, 90, 91), (0, None, 0)],
            *[(-(2**63), None, 0), (2**62, None, LATEST_MS), (2**62, LATEST_MS, LATEST_MS), (-1, 5, 6)],
        ],
    )
    def test_commit_time_is_later_than_that_of_the_version_before(
        self, modified: int, previous: int | None, expected: int
    ) -> None:
        assert commit_timestamp(entry(), HEADER, modified, previous) == expected

    def test_is_never_that_of_the_writers_clock(self) -> None:
        commit = entry({"commitInfo": {"timestamp": 5, "inCommitTimestamp": 6}})
        assert commit_timestamp(commit, HEADER, 50, None) == 50

    def test_is_the_commits_own_where_that_is_switched_on(self) -> None:
        assert commit_timestamp(entry({"commitInfo": {"inCommitTimestamp": 6}}), self.ON, 50, 90) == 6

    @pytest.mark.parametrize("info", [[], [{"commitInfo": {}}], [{"commitInfo": {"inCommitTimestamp": "6"}}]])
    def test_which_must_be_there_then(self, info: list[Fields]) -> None:
        with pytest.raises(LogError, match="the commit has none") as caught:
            commit_timestamp(entry(*info, version=3), self.ON, 50, None)
        assert caught.value.version == 3

    @pytest.mark.parametrize("stated", [-1, LATEST_MS + 1, 2**63 - 1])
    def test_in_commit_timestamp_must_be_a_time(self, stated: int) -> None:
        with pytest.raises(LogError, match=f"timestamp {stated} is not a time"):
            commit_timestamp(entry({"commitInfo": {"inCommitTimestamp": stated}}), self.ON, 50, None)
        assert commit_timestamp(entry({"commitInfo": {"inCommitTimestamp": LATEST_MS}}), self.ON, 0, None) == LATEST_MS


@pytest.mark.parametrize(
    ("actions", "protocol", "wanted"),
    [
        ([remove("a")], VECTORS, True),
        ([remove("a"), add("a", "x")], VECTORS, False),
        ([remove("a", change=False)], VECTORS, False),
        ([add("a")], VECTORS, False),
        ([remove("a")], Protocol(1, 2), False),
    ],
)
def test_files_before_are_wanted_for_the_deletion_vectors_of_removed_ones(
    actions: list[Fields], protocol: Protocol, wanted: bool
) -> None:
    before = PartialHeader(0, protocol, HEADER.metadata).finish()
    assert wants_snapshot(entry(*actions), before) is wanted


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("vector", [None, "z"])
def test_remove_that_names_another_deletion_vector_means_the_file_as_it_was(vector: str | None, folded: bool) -> None:
    """Also if the version adds the file again: rows that were deleted before are not deleted once more."""
    live = Add("a", {"p": "1"}, 10, 1, True, deletion_vector=dv("x"))
    before = first(Commit(0, (live,), protocol=VECTORS, metadata=HEADER.metadata))
    before = before.compact() if folded else before
    assert brief(scans(remove("a", vector), before=before)) == [("a", "delete", None, "x")]
    assert brief(scans(remove("a", vector), add("a", "y"), before=before)) == [
        ("a", "delete", "y", "x"),
        ("a", "insert", "x", "y"),
    ]


def test_deletion_vector_without_rows_is_read() -> None:
    described = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 0, "cardinality": 0, "offset": 0}
    (actual,) = entry(add("a") | {"add": add("a")["add"] | {"deletionVector": described}}).adds
    assert actual.deletion_vector == DeletionVectorDescriptor("i", "x", 0, 0, 0)
