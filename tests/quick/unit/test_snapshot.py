"""Reconciliation: random histories against a model of a few dictionaries, and every way to a version against the others.

Specification, "Action Reconciliation". The ways: from version 0, from a checkpoint of any layout at any version,
folded on the way or not.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdfd.delta import commit as commits
from cdfd.delta import paths, snapshot
from cdfd.delta.actions import Add, DeletionVectorDescriptor, DomainMetadata, FileKey, Metadata, Protocol, Remove, Txn
from cdfd.delta.commit import Commit
from cdfd.delta.files import FILES, PACK, pack
from cdfd.delta.header import PartialHeader
from cdfd.delta.retention import Retention, deleted_files_ms
from cdfd.delta.snapshot import Base, Snapshot, first, replay
from cdfd.errors import LogError, UnsupportedError
from cdfd.log.log import DeltaLog
from tests.support import checkpoint_layout as layout
from tests.support.memory_storage import MemoryStorage

Fields = dict[str, Any]
Step = tuple[str, int, int]
"""Kind of change, and two numbers that say to what."""

SCHEMA = '{"type":"struct","fields":[{"name":"p","type":"string","nullable":true,"metadata":{}}]}'
SPELLINGS = {
    "a b": ["a%20b", "a b", "%61%20b"],
    "p=%25/x": ["p=%2525/x"],
    "/r/ä": ["/r/%C3%A4", "file:/r/%C3%A4", "file:///r/ä"],
    "z": ["z"],
    "q/z": ["q/z"],
}
PATHS = list(SPELLINGS)
KINDS = ["add", "add", "add", "vector", "vector", "remove", "restore", "txn", "domain", "metadata", "protocol"]


def vector(number: int) -> Fields:
    where = {"storageType": "u", "pathOrInlineDv": f"ab^-aqEH.-t@S}}K{{vb[*k{number % 3}"}
    return where | {"offset": 1 + number % 2, "sizeInBytes": 34, "cardinality": 1}


class LookUps:
    """An overlay in which keys can be looked up, and that cannot be iterated."""

    def __init__(self, overlay: Mapping[FileKey, Add | Remove]) -> None:
        self.get = overlay.get

    def __contains__(self, key: FileKey) -> bool:
        return self.get(key) is not None


@dataclass
class Model:
    """A table as dictionaries, and the log entries that made it so."""

    live: dict[Any, Fields] = field(default_factory=dict)
    gone: dict[Any, Fields] = field(default_factory=dict)
    single: dict[str, Fields] = field(default_factory=dict)
    txns: dict[str, Fields] = field(default_factory=dict)
    domains: dict[str, Fields] = field(default_factory=dict)
    version: int = -1

    def commit(self, steps: Iterable[Step]) -> list[Fields]:
        """Change the table; the actions of the log entry. Nothing is touched twice, as the specification wants it."""
        self.version += 1
        actions: list[Fields] = []
        touched: set[str] = set()
        if self.version == 0:
            steps = [("metadata", 0, 0), ("protocol", 0, 0), *steps]
        for kind, number, detail in steps:
            what = self._target(kind, number)
            if what is not None and what[0] not in touched:
                touched.add(what[0])
                actions += getattr(self, f"_{kind}")(what[1], detail)
        return actions

    def _target(self, kind: str, number: int) -> tuple[str, Any] | None:
        """The target of a step, and its name, which no other step of the entry may use; None if there is no target."""
        if kind in ("metadata", "protocol"):
            return kind, None
        if kind in ("txn", "domain"):
            return f"{kind}{number % 3}", f"{kind}{number % 3}"
        live = {path: (path, dv) for path, dv in self.live}
        if kind == "add":
            path = PATHS[number % len(PATHS)]
            return path, live.get(path, (path, None))
        gone = [key for key in self.gone if key[0] not in live]
        keys = gone if kind == "restore" else list(live.values())
        return (key[0], key) if keys and (key := keys[number % len(keys)]) else None

    def _file(self, key: tuple[str, Any], detail: int) -> Fields:
        spellings = SPELLINGS[key[0]]
        fields = {"path": spellings[detail % len(spellings)], "partitionValues": {"p": None if detail % 2 else "1"}}
        return (
            fields | {"size": detail, "dataChange": bool(detail % 2)} | ({"deletionVector": key[1]} if key[1] else {})
        )

    def _add(self, key: Any, detail: int) -> list[Fields]:
        fields = self._file((key[0], _fields(key[1])), detail) | {"modificationTime": self.version}
        self.live[key] = fields
        self.gone.pop(key, None)
        return [{"add": fields}]

    _restore = _add

    def _remove(self, key: Any, detail: int) -> list[Fields]:
        fields = self._file((key[0], _fields(key[1])), detail) | {"deletionTimestamp": self.version * 1000}
        self.gone[key] = fields
        del self.live[key]
        return [{"remove": fields}]

    def _vector(self, key: Any, detail: int) -> list[Fields]:
        other = (key[0], orjson.dumps(vector(detail)).decode())
        if other == key:
            return []
        # In either order: the actions of one entry have none.
        pair = [*self._remove(key, detail), *self._add(other, detail)]
        return pair[:: 1 if detail % 2 else -1]

    def _txn(self, app: str, detail: int) -> list[Fields]:
        self.txns[app] = {"appId": app, "version": detail, "lastUpdated": self.version}
        return [{"txn": self.txns[app]}]

    def _domain(self, name: str, detail: int) -> list[Fields]:
        fields = {"domain": name, "configuration": str(detail), "removed": detail % 3 == 0}
        self.domains[name] = fields
        return [{"domainMetadata": fields}]

    def _metadata(self, _: None, detail: int) -> list[Fields]:
        fields = {"id": "i", "format": {"provider": "parquet", "options": {}}, "schemaString": SCHEMA}
        self.single["metaData"] = fields | {"partitionColumns": ["p"], "configuration": {"n": str(detail)}}
        return [{"metaData": self.single["metaData"]}]

    def _protocol(self, _: None, detail: int) -> list[Fields]:
        features = ["deletionVectors", "v2Checkpoint"]
        fields = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features}
        self.single["protocol"] = fields | {"writerFeatures": [*features, *["rowTracking"] * (detail % 2)]}
        return [{"protocol": self.single["protocol"]}]

    def checkpoint(self) -> list[Fields]:
        """The state as actions (specification, "Checkpoints")."""
        return [
            *({name: fields} for name, fields in self.single.items()),
            *({"add": fields} for fields in self.live.values()),
            *({"remove": fields} for fields in self.gone.values()),
            *({"txn": fields} for fields in self.txns.values()),
            *({"domainMetadata": fields} for fields in self.domains.values() if not fields["removed"]),
        ]

    def content(self) -> Fields:
        parsed = commits.parse(self.version, entry(self.checkpoint()))
        return {
            "version": self.version,
            "header": (parsed.protocol, parsed.metadata),
            "live": _bag(parsed.adds),
            "gone": _bag(parsed.removes),
            "txns": {txn.app_id: txn for txn in parsed.txns},
            "domains": {domain.domain: domain for domain in parsed.domains},
        }


def _fields(key: str | None) -> Fields | None:
    return None if key is None else orjson.loads(key)


def _bag(files: Iterable[Add] | Iterable[Remove]) -> list[str]:
    return sorted(map(repr, files))


def content(state: Snapshot) -> Fields:
    """All that a snapshot says, comparable."""
    return {
        "version": state.version,
        "header": (state.protocol, state.metadata),
        "live": _bag(state.live()),
        "gone": _bag(state.tombstones()),
        "txns": dict(state.txns),
        "domains": dict(state.domains),
    }


def entry(actions: Sequence[Fields]) -> bytes:
    return b"".join(orjson.dumps(action) + b"\n" for action in actions)


STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 11), st.integers(0, 11)), max_size=5)


@dataclass
class History:
    """A table's life: the actions of each version, and what the table was after it."""

    actions: list[list[Fields]]
    models: list[Model]

    @classmethod
    def of(cls, steps: Iterable[Iterable[Step]]) -> History:
        model = Model()
        history = cls([], [])
        for each in steps:
            history.actions.append(model.commit(each))
            history.models.append(copy.deepcopy(model))
        return history

    @property
    def last(self) -> int:
        return len(self.actions) - 1

    @property
    def commits(self) -> list[Commit]:
        return [commits.parse(version, entry(actions)) for version, actions in enumerate(self.actions)]


HISTORIES = st.lists(STEPS, min_size=1, max_size=9).map(History.of)
fewer = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)


class TestHistories:
    @given(HISTORIES)
    @fewer
    def test_increments_are_the_table(self, history: History) -> None:
        """And `apply` never changes the snapshot that it starts from."""
        state = first(history.commits[0])
        states = [state]
        for commit in history.commits[1:]:
            state = state.apply(commit)
            states.append(state)
        for state, model in zip(states, history.models, strict=True):
            assert content(state) == model.content()

    @given(HISTORIES, st.integers(1, 3))
    @fewer
    def test_folding_on_the_way_changes_nothing(self, history: History, at: int) -> None:
        start = first(history.commits[0])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(snapshot, "COMPACT_AT", at)
            assert content(replay(start, history.commits[1:])) == history.models[-1].content()

    @given(HISTORIES)
    @fewer
    def test_compacted_is_the_same_with_nothing_in_the_overlay(self, history: History) -> None:
        state = replay(first(history.commits[0]), history.commits[1:])
        folded = state.compact()
        assert not folded.overlay
        assert content(folded) == content(state) == history.models[-1].content()

    @given(HISTORIES, st.data())
    @fewer
    def test_live_file_is_found_and_removed_one_is_not(self, history: History, data: st.DataObject) -> None:
        """A lookup finds live files, in the base and in the overlay, and no removed ones."""
        state = first(history.commits[0])
        middle = data.draw(st.integers(0, history.last))
        for commit in history.commits[1:]:
            state = state.apply(commit)
            if commit.version == middle:
                state = state.compact()
        live = {file.key: file for file in state.live()}
        removed = {file.key for file in state.tombstones()}
        assert not removed & set(live)
        keys = [*live, *removed, ("nowhere", None), ("a b", "x")]
        assert state.find(keys) == live
        with pytest.MonkeyPatch.context() as patch:
            # One by one, as in a large table.
            patch.setattr(snapshot, "FILES_PER_SEARCH", 0)
            assert state.find(keys) == live

    @given(
        HISTORIES,
        st.sampled_from(["single", "parts", "v2 json", "v2 parquet", "v2 without sidecars"]),
        st.booleans(),
        st.data(),
    )
    @fewer
    def test_from_a_checkpoint_at_any_version(
        self, history: History, kind: str, clean: bool, data: st.DataObject
    ) -> None:
        """With the log before it or without."""
        at = data.draw(st.integers(0, history.last))
        state = history.models[at].checkpoint()
        files = {
            "single": lambda: layout.single(at, state),
            "parts": lambda: layout.multi_part(at, state, 3),
            "v2 json": lambda: layout.v2(at, state, 2, "json"),
            "v2 parquet": lambda: layout.v2(at, state, 2, "parquet"),
            "v2 without sidecars": lambda: layout.v2(at, state, 0, "json"),
        }[kind]()
        for version in range(at + 1 if clean else 0, history.last + 1):
            # An entry of no bytes may have only just been created.
            files[paths.commit_name(version)] = entry(history.actions[version]) or b"\n"
        asyncio.run(self.compare(files, history, at))

    async def compare(self, files: dict[str, bytes], history: History, at: int) -> None:
        storage = MemoryStorage()
        for name, data in files.items():
            await storage.put(f"_delta_log/{name}", data)
        log = DeltaLog(storage)
        for version in range(at, history.last + 1):
            assert content(await log.snapshot(version, with_tombstones=True)) == history.models[version].content()
            header = await log.header(version)
            assert (header.protocol, header.metadata) == history.models[version].content()["header"]
        newest = await log.snapshot(with_tombstones=True)
        assert content(newest) == history.models[-1].content()


PROTOCOL = Protocol(1, 2)
METADATA = Metadata("i", SCHEMA, ("p",), {})
START = Commit(0, protocol=PROTOCOL, metadata=METADATA)


def add(path: str, vector: str | None = None, size: int = 1) -> Add:
    return Add(path, {"p": "1"}, size, 1, True, deletion_vector=_descriptor(vector))


def remove(path: str, vector: str | None = None, at: int | None = 1) -> Remove:
    return Remove(path, at, True, {"p": "1"}, 1, _descriptor(vector))


def _descriptor(text: str | None) -> DeletionVectorDescriptor | None:
    return None if text is None else DeletionVectorDescriptor("i", text, None, 1, 1)


class TestReconciliation:
    """The rules one by one."""

    def test_the_example_of_the_module(self) -> None:
        base = Base(pa.Table.from_batches([pack([add("a"), add("b", "dv1")])], FILES))
        state = Snapshot(PartialHeader(0, PROTOCOL, METADATA).finish(), base)
        after = state.apply(Commit(1, adds=(add("b", "dv2"), add("c")), removes=(remove("b", "dv1"),)))
        assert {file.key for file in after.live()} == {("a", None), ("b", "idv2"), ("c", None)}
        assert {file.key for file in state.live()} == {("a", None), ("b", "idv1")}

    def test_what_one_commit_removes_and_adds_under_one_key_stays(self) -> None:
        for base in ((), (add("a"),)):
            state = first(Commit(0, base, protocol=PROTOCOL, metadata=METADATA))
            after = state.apply(Commit(1, adds=(add("a", size=2),), removes=(remove("a"),)))
            assert list(after.live()) == [add("a", size=2)]
            assert len(after.tombstones()) == 0

    def test_the_newest_add_of_a_file_replaces_what_was_known_of_it(self) -> None:
        state = first(Commit(0, (add("a"),), protocol=PROTOCOL, metadata=METADATA)).compact()
        after = state.apply(Commit(1, adds=(add("a", size=9),)))
        assert list(after.live()) == [add("a", size=9)]
        assert after.find([("a", None)]) == {("a", None): add("a", size=9)}

    def test_one_file_with_several_vectors_is_several_logical_files(self) -> None:
        files = [add("a", vector) for vector in (None, "x", "y")]
        state = first(Commit(0, (*files, add("b")), protocol=PROTOCOL, metadata=METADATA)).compact()
        assert state.find([file.key for file in files]) == {file.key: file for file in files}
        after = state.apply(Commit(1, removes=(remove("a", "x"),)))
        assert after.find([("a", "ix"), ("a", "iy"), ("c", None)]) == {("a", "iy"): files[2]}

    @pytest.mark.parametrize("folded", [False, True])
    @pytest.mark.parametrize("others", [0, 20])
    @pytest.mark.parametrize(("old", "new"), [(None, "x"), ("x", None), ("x", "y")])
    def test_paths_of_live_files_are_unique(self, old: str | None, new: str | None, others: int, folded: bool) -> None:
        """A later version that removes one of the two puts it right."""
        files = [add(f"other-{number}") for number in range(others)]
        state = first(Commit(0, (*files, add("a", old)), protocol=PROTOCOL, metadata=METADATA))
        twice = state.apply(Commit(1, adds=(add("a", new),)))
        twice = twice.compact() if folded else twice
        with pytest.raises(LogError, match="is in the table twice, with different deletion vectors") as caught:
            twice.live()
        assert (caught.value.version, caught.value.path) == (1, "a")
        right = twice.apply(Commit(2, removes=(remove("a", old),)))
        assert {file.key for file in right.live()} == {add("a", new).key, *(file.key for file in files)}

    @pytest.mark.parametrize("folded", [False, True])
    @pytest.mark.parametrize("removed", [None, "y"])
    def test_a_remove_with_another_vector_means_the_file_as_it_is(self, removed: str | None, folded: bool) -> None:
        """Only in tables whose files can have one."""
        vectors = frozenset({"deletionVectors"})
        for protocol, meant in ((Protocol(3, 7, vectors, vectors), True), (PROTOCOL, False)):
            state = first(Commit(0, (add("a", "x"), add("b")), protocol=protocol, metadata=METADATA))
            state = state.compact() if folded else state
            after = state.apply(Commit(1, removes=(remove("a", removed),)))
            assert {each.path for each in after.live()} == ({"b"} if meant else {"a", "b"})
            assert after.mismatched == (((1, "a"),) if meant else ())

    @pytest.mark.parametrize("folded", [False, True])
    def test_a_file_that_is_gone_is_not_removed_by_another_vector(self, folded: bool) -> None:
        vectors = frozenset({"deletionVectors"})
        protocol = Protocol(3, 7, vectors, vectors)
        state = first(Commit(0, (add("a", "x"),), protocol=protocol, metadata=METADATA))
        state = state.compact() if folded else state
        after = state.apply(Commit(1, removes=(remove("a", "x", at=5),))).apply(Commit(2, removes=(remove("a", "y"),)))
        assert after.mismatched == ()
        assert sorted(after.tombstones(), key=lambda each: str(each.key)) == [remove("a", "x", at=5), remove("a", "y")]

    def test_another_vector_costs_no_pass_over_the_overlay(self) -> None:
        """The event loop applies commits, and the overlay of a large table takes a second."""
        vectors = frozenset({"deletionVectors"})
        files = (add("a", "x"), add("b"))
        state = first(Commit(0, files, protocol=Protocol(3, 7, vectors, vectors), metadata=METADATA))
        looked_up = replace(state, overlay=LookUps(state.overlay))  # type: ignore[arg-type]
        assert list(looked_up.meant([remove("a"), remove("b"), remove("c")])) == [remove("a", "x")]

    def test_a_remove_of_what_is_not_there_is_a_tombstone(self) -> None:
        after = first(START).apply(Commit(1, removes=(remove("a"),)))
        assert list(after.tombstones()) == [remove("a")]

    @pytest.mark.parametrize("folded", [False, True])
    @pytest.mark.parametrize("name", [None, "dv"])
    def test_a_later_add_cancels_a_tombstone(self, name: str | None, folded: bool) -> None:
        """RESTORE brings a file back under the key that it had. Its tombstone must not outlive that."""
        gone = first(START).apply(Commit(1, removes=(remove("a", name), remove("b", name))))
        gone = gone.compact() if folded else gone
        back = gone.apply(Commit(2, adds=(add("a", name, size=9),)))
        for state in (back, back.compact(), back.apply(Commit(3)).compact()):
            assert list(state.live()) == [add("a", name, size=9)]
            assert list(state.tombstones()) == list(state.tombstones(0)) == [remove("b", name)]
            assert state.find([add("a", name).key]) == {add("a", name).key: add("a", name, size=9)}
        assert {each.path for each in gone.tombstones()} == {"a", "b"}

    @pytest.mark.parametrize("folded", [False, True])
    def test_it_can_be_compacted_without_its_tombstones(self, folded: bool) -> None:
        state = first(START).apply(Commit(1, (add("a"), add("b"))))
        state = state.compact() if folded else state
        small = state.apply(Commit(2, removes=(remove("a"), remove("c")))).compact(with_tombstones=False)
        assert list(small.tombstones()) == []
        assert list(small.live()) == [add("b")]
        assert not small.find([("a", None)])

    def test_an_add_with_another_vector_leaves_the_tombstone(self) -> None:
        """The key is path and deletion vector: the file as it was is still gone."""
        gone = first(START).apply(Commit(1, removes=(remove("a", "x"),))).compact()
        back = gone.apply(Commit(2, adds=(add("a", "y"),)))
        for state in (back, back.compact()):
            assert list(state.tombstones()) == [remove("a", "x")]
            assert list(state.live()) == [add("a", "y")]

    def test_transactions_may_go_backwards(self) -> None:
        """Specification, "Transaction Identifiers": the latest in log order wins."""
        after = first(START).apply(Commit(1, txns=(Txn("a", 9), Txn("b", 1)))).apply(Commit(2, txns=(Txn("a", 3),)))
        assert dict(after.txns) == {"a": Txn("a", 3), "b": Txn("b", 1)}

    def test_domains_are_removed_by_a_tombstone(self) -> None:
        state = first(START).apply(Commit(1, domains=(DomainMetadata("a", "1"), DomainMetadata("b", "2"))))
        after = state.apply(Commit(2, domains=(DomainMetadata("a", "", True), DomainMetadata("c", "", True))))
        assert dict(after.domains) == {"b": DomainMetadata("b", "2")}
        assert set(state.domains) == {"a", "b"}

    @pytest.mark.parametrize("version", [0, 1, 3, 7])
    def test_versions_are_applied_in_order(self, version: int) -> None:
        state = first(START).apply(Commit(1))
        with pytest.raises(LogError, match=f"version {version} does not follow version 1") as caught:
            state.apply(Commit(version))
        assert caught.value.version == version
        assert state.version == 1

    def test_a_protocol_of_tomorrow_is_refused(self) -> None:
        state = first(START)
        with pytest.raises(UnsupportedError, match="tomorrow"):
            state.apply(Commit(1, protocol=Protocol(3, 7, frozenset(["tomorrow"]))))
        assert content(state) == content(first(START))

    def test_first_version_must_be_0_with_protocol_and_metadata(self) -> None:
        with pytest.raises(LogError, match="begins at version 3"):
            first(Commit(3, protocol=PROTOCOL, metadata=METADATA))
        with pytest.raises(LogError, match="no protocol"):
            first(Commit(0, metadata=METADATA))
        with pytest.raises(LogError, match="no metaData"):
            first(Commit(0, protocol=PROTOCOL))


WEEK = 7 * 24 * 3_600_000


class TestManyFiles:
    """A table's first files, where they are many, become the base as they are packed."""

    HEAD = (
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "t",
                "format": {},
                "schemaString": '{"type":"struct","fields":[]}',
                "partitionColumns": [],
                "configuration": {},
            }
        },
    )

    def start(self) -> Snapshot:
        adds = [
            {"add": {"path": f"f{n}", "partitionValues": {}, "size": n, "dataChange": True}} for n in range(PACK + 10)
        ]
        return first(commits.parse(0, entry([*self.HEAD, *adds])))

    def test_they_are_the_base(self) -> None:
        state = self.start()
        assert not state.overlay
        assert len(state.live()) == PACK + 10

    def test_what_follows_is_reconciled_with_them(self) -> None:
        state = self.start()
        later = state.apply(Commit(1, adds=(add("f1", size=99), add("new")), removes=(remove("f2"),)))
        live = {each.path: each.size for each in later.live()}
        assert len(live) == PACK + 10
        assert live["f1"] == 99
        assert "f2" not in live
        assert len(state.live()) == PACK + 10
        assert [each.path for each in later.tombstones()] == ["f2"]


class TestTombstones:
    """Specification, "Add File and Remove File": they expire some time after the removal."""

    def state(self, configuration: dict[str, str], *files: Remove) -> Snapshot:
        return first(Commit(0, protocol=PROTOCOL, metadata=Metadata("i", SCHEMA, ("p",), configuration), removes=files))

    def test_expired_tombstone_is_left_out(self) -> None:
        state = self.state({}, remove("old", at=1_000), remove("new", at=2_000), remove("never told", at=None))
        for each in (state, state.compact()):
            assert {file.path for file in each.tombstones()} == {"old", "new", "never told"}
            assert {file.path for file in each.tombstones(WEEK)} == {"old", "new"}
            assert {file.path for file in each.tombstones(WEEK + 1_000)} == {"new"}
            assert len(each.tombstones(WEEK + 2_000)) == 0

    def test_a_retention_of_nothing(self) -> None:
        state = self.state({"delta.deletedFileRetentionDuration": "interval 0 hours"}, remove("a", at=1_000))
        assert len(state.tombstones(999)) == 1
        assert len(state.tombstones(1_000)) == 0

    @pytest.mark.parametrize(
        ("text", "milliseconds"),
        [
            ("interval 1 week", WEEK),
            ("interval 1 weeks 2 days 3 hours 4 minutes 5 seconds 6 milliseconds", WEEK + 183_845_006),
            ("INTERVAL 30 DAYS", 30 * 86_400_000),
            ("  7   days ", WEEK),
            ("interval 0 days", 0),
            ("interval -1 days", -86_400_000),
            ("interval 2500 microseconds", 2),
            *((text, None) for text in ("", "interval", "interval 1", "week", "interval 1 month", "interval 1.5 days")),
            *(
                (text, None)
                for text in ("1 day 2", "interval ² days", "interval +-5 days", "x 1 day", "interval 1 day x")
            ),
            (f"interval {'9' * 5000} days", None),
            ("1 day " * 5000 + "x", None),
        ],
    )
    def test_retention_is_read_in_each_unit(self, text: str, milliseconds: int | None) -> None:
        table = Metadata("t", "{}", (), {"delta.deletedFileRetentionDuration": text})
        assert deleted_files_ms(table) == (WEEK if milliseconds is None else milliseconds)
        expected = WEEK if milliseconds is None else milliseconds
        metadata = Metadata("i", SCHEMA, (), {"delta.deletedFileRetentionDuration": text})
        assert deleted_files_ms(metadata) == expected

    @pytest.mark.parametrize(
        ("properties", "expected"),
        [
            ({}, Retention(30 * 86_400_000, WEEK)),
            ({"delta.logRetentionDuration": "interval 1 day"}, Retention(86_400_000, WEEK)),
            ({"delta.logRetentionDuration": "interval 1 month"}, Retention(30 * 86_400_000, WEEK)),
            ({"delta.enableExpiredLogCleanup": "False"}, Retention(None, WEEK)),
            ({"delta.deletedFileRetentionDuration": "interval 2 hours"}, Retention(30 * 86_400_000, 7_200_000)),
        ],
    )
    def test_retention_of_a_table(self, properties: dict[str, str], expected: Retention) -> None:
        assert Retention.of(Metadata("i", SCHEMA, (), properties)) == expected
