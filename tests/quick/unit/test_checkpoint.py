"""Checkpoints in every layout of writers, and damaged in every way, give actions or an error of cdfd."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from cdfd.delta import checkpoint as checkpoints
from cdfd.delta.actions import Add, DeletionVectorDescriptor, DomainMetadata, Format, Metadata, Protocol, Remove, Txn
from cdfd.delta.checkpoint import HEADER, State
from cdfd.delta.files import FILES, PackedFiles
from cdfd.delta.snapshot import Snapshot
from cdfd.errors import CdfdError, LogError, UnsupportedError
from cdfd.log import checkpoint_files
from cdfd.log.segment import Checkpoint
from cdfd.log.table import Table
from cdfd.storage.base import Stat
from tests.support import checkpoint_layout as layout
from tests.support.memory_storage import MemoryStorage
from tests.support.sampling import sample

Fields = dict[str, Any]

SCHEMA = '{"type":"struct","fields":[{"name":"p","type":"string","nullable":true,"metadata":{}}]}'
PROTOCOL: Fields = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors"],
}
METADATA: Fields = {
    "id": "i",
    "format": {"provider": "parquet", "options": {"o": "1"}},
    "schemaString": SCHEMA,
    "partitionColumns": ["p"],
    "configuration": {"a": "b"},
    "createdTime": 5,
}
VECTOR: Fields = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 1,
    "sizeInBytes": 34,
    "cardinality": 1,
}
ADD: Fields = {
    "path": "p=1/a%20b",
    "partitionValues": {"p": "1"},
    "size": 3,
    "modificationTime": 4,
    "dataChange": False,
    "stats": '{"numRecords":1}',
}
REMOVE: Fields = {
    "path": "gone",
    "deletionTimestamp": 9,
    "dataChange": True,
    "partitionValues": {"p": None},
    "size": 2,
    "deletionVector": VECTOR,
}
ACTIONS: list[Fields] = [
    {"protocol": PROTOCOL},
    {"metaData": METADATA},
    {"txn": {"appId": "app", "version": 7, "lastUpdated": 8}},
    {"txn": {"appId": "other", "version": 1}},
    {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}},
    {"domainMetadata": {"domain": "gone", "configuration": "", "removed": True}},
    {"add": ADD},
    {"add": ADD | {"path": "c", "deletionVector": VECTOR, "partitionValues": {"p": None}}},
    {"remove": REMOVE},
    {"remove": {"path": "gone2", "dataChange": False}},
]
DESCRIPTOR = DeletionVectorDescriptor("u", "ab^-aqEH.-t@S}K{vb[*k^", 1, 34, 1)
ADDS = [
    Add("c", {"p": None}, 3, 4, False, '{"numRecords":1}', DESCRIPTOR),
    Add("p=1/a b", {"p": "1"}, 3, 4, False, '{"numRecords":1}'),
]
REMOVES = [Remove("gone", 9, True, {"p": None}, 2, DESCRIPTOR), Remove("gone2", None, False)]


def stored(files: Mapping[str, bytes]) -> tuple[MemoryStorage, Checkpoint]:
    """A store with a checkpoint of version 3: names in `_delta_log`, or elsewhere in it, to bytes."""
    storage = MemoryStorage()
    for name, data in files.items():
        asyncio.run(storage.put(f"_delta_log/{name}", data))
    main = tuple(Stat(f"_delta_log/{name}", len(data), 0) for name, data in files.items() if "/" not in name)
    return storage, Checkpoint(3, main)


def read(
    files: Mapping[str, bytes], *, with_stats: bool = True, with_tombstones: bool = True, **more: bool
) -> Snapshot:
    storage, checkpoint = stored(files)
    return asyncio.run(
        checkpoint_files.read_snapshot(
            storage, checkpoint, with_stats=with_stats, with_tombstones=with_tombstones, **more
        )
    )


def read_header(files: Mapping[str, bytes]) -> State:
    return checkpoint_files.read_state(*stored(files), HEADER)


def by_path(files: PackedFiles[Any]) -> list[Any]:
    return sorted(files, key=lambda file: str(file.path))


LAYOUTS = {
    "single": layout.single(3, ACTIONS),
    "one part": layout.multi_part(3, ACTIONS, 1),
    "parts": layout.multi_part(3, ACTIONS, 3),
    "more parts than rows": layout.multi_part(3, ACTIONS, 20),
    "v2 json": layout.v2(3, ACTIONS, 2, "json"),
    "v2 parquet": layout.v2(3, ACTIONS, 2, "parquet"),
    "v2 json without sidecars": layout.v2(3, ACTIONS, 0, "json"),
    "v2 parquet without sidecars": layout.v2(3, ACTIONS, 0, "parquet"),
    "small row groups": {"c.parquet": layout.parquet(layout.table(ACTIONS), row_group_size=1)},
    "no statistics": {"c.parquet": layout.parquet(layout.table(ACTIONS), write_statistics=False)},
    "files first": {"c.parquet": layout.parquet(layout.table(ACTIONS[::-1]), row_group_size=3)},
}


class TestLayouts:
    @pytest.mark.parametrize("files", LAYOUTS.values(), ids=list(LAYOUTS))
    def test_each_layout_has_the_same_state(self, files: Mapping[str, bytes]) -> None:
        actual = read(files)
        assert actual.version == 3
        assert actual.protocol == Protocol(3, 7, frozenset(["deletionVectors"]), frozenset(["deletionVectors"]))
        assert actual.metadata == Metadata(
            "i", SCHEMA, ("p",), {"a": "b"}, Format("parquet", {"o": "1"}), created_time=5
        )
        assert by_path(actual.live()) == ADDS
        assert by_path(actual.tombstones()) == REMOVES
        assert dict(actual.txns) == {"app": Txn("app", 7, 8), "other": Txn("other", 1)}
        assert dict(actual.domains) == {"d": DomainMetadata("d", "{}")}

    @pytest.mark.parametrize("files", LAYOUTS.values(), ids=list(LAYOUTS))
    def test_header_of_each_layout_is_read_alone(self, files: Mapping[str, bytes]) -> None:
        state = read_header(files)
        assert state.protocol is not None
        assert state.protocol.min_reader_version == 3
        assert state.metadata is not None
        assert state.metadata.schema_string == SCHEMA

    def test_what_nobody_asks_for_is_not_read(self) -> None:
        actual = read(LAYOUTS["single"], with_stats=False, with_tombstones=False)
        assert [file.stats for file in actual.live()] == [None, None]
        assert len(actual.tombstones()) == 0

    @pytest.mark.parametrize("files", LAYOUTS.values(), ids=list(LAYOUTS))
    def test_of_statistics_how_many_rows_there_are(self, files: Mapping[str, bytes]) -> None:
        actual = read(files, with_stats=False, with_counts=True)
        assert {file.stats for file in actual.live()} == {file.stats for file in by_path(ADDS)}

    def test_an_unpartitioned_table_below_reader_version_3(self) -> None:
        """Then no column of partition values or vectors is read."""
        actions = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"metaData": METADATA | {"partitionColumns": []}},
            {"add": ADD},
        ]
        assert list(read(layout.single(3, actions)).live()) == [Add("p=1/a b", {}, 3, 4, False, '{"numRecords":1}')]

    def test_checkpoint_with_the_columns_of_the_specification_is_read(self) -> None:
        """Appendix, "Checkpoint Schema": no domains, no features, parsed partition values."""
        columns = {
            "metaData": layout.COLUMNS["metaData"],
            "protocol": pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())]),
            "txn": pa.struct([("appId", pa.string()), ("version", pa.int64())]),
            "add": pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", layout.PAIRS),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("stats", pa.string()),
                    ("tags", layout.PAIRS),
                    ("partitionValues_parsed", pa.struct([("p", pa.string())])),
                    ("stats_parsed", pa.struct([("numRecords", pa.int64())])),
                ]
            ),
            "remove": pa.struct([("path", pa.string()), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_())]),
        }
        actions = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"metaData": METADATA},
            {"add": ADD | {"partitionValues_parsed": {"p": "1"}, "stats_parsed": {"numRecords": 1}}},
            {"remove": {"path": "gone", "deletionTimestamp": 9, "dataChange": True}},
        ]
        data = layout.parquet(pa.Table.from_pylist(actions, pa.schema(list(columns.items()))))
        actual = read({"c.parquet": data})
        assert list(actual.live()) == [ADDS[1]]
        assert list(actual.tombstones()) == [Remove("gone", 9, True)]

    def test_types_of_other_writers(self) -> None:
        """Dictionaries, large strings, views and wider numbers are spellings of the same."""
        text = pa.large_string()
        pairs = pa.map_(text, pa.string_view())
        columns = {
            "protocol": pa.struct([("minReaderVersion", pa.int64()), ("minWriterVersion", pa.int8())]),
            "metaData": pa.struct(
                [
                    ("id", pa.string_view()),
                    ("format", pa.struct([("provider", text), ("options", pairs)])),
                    ("schemaString", text),
                    ("partitionColumns", pa.large_list(text)),
                    ("configuration", pairs),
                ]
            ),
            "add": pa.struct(
                [
                    ("path", pa.dictionary(pa.int32(), pa.string())),
                    ("partitionValues", pairs),
                    ("size", pa.int32()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                ]
            ),
        }
        actions = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"metaData": {key: METADATA[key] for key in METADATA if key != "createdTime"}},
            {"add": {key: ADD[key] for key in ("path", "partitionValues", "size", "modificationTime", "dataChange")}},
        ]
        data = layout.parquet(pa.Table.from_pylist(actions, pa.schema(list(columns.items()))))
        actual = read({"c.parquet": data})
        assert list(actual.live()) == [Add("p=1/a b", {"p": "1"}, 3, 4, False)]
        assert actual.metadata.configuration == {"a": "b"}

    def test_checkpoint_of_delta_rs_is_read(self, tmp_path: Path) -> None:
        uri = str(tmp_path / "t")
        for number in range(3):
            write_deltalake(
                uri,
                pa.table({"p": ["a b", None], "x": [number, 2]}),
                mode="append",
                partition_by=["p"],
                commit_properties=CommitProperties(app_transactions=[Transaction("app", number)]),
            )
        table = DeltaTable(uri)
        table.delete("x = 1")
        log = Table.open(uri).log
        expected = asyncio.run(log.snapshot(with_tombstones=True, with_counts=True))
        table.create_checkpoint()
        for entry in (tmp_path / "t" / "_delta_log").glob("*.json"):
            entry.unlink()
        actual = asyncio.run(log.snapshot(with_tombstones=True, with_counts=True))
        assert len(by_path(actual.live())) == 5
        assert by_path(actual.live()) == by_path(expected.live())
        assert by_path(actual.tombstones()) == by_path(expected.tombstones())
        assert dict(actual.txns) == dict(expected.txns)
        assert (actual.protocol, actual.metadata) == (expected.protocol, expected.metadata)


class TestStructsOfNulls:
    """Some writers leave a struct of nulls where there is nothing."""

    def hollow(self, actions: list[Fields]) -> dict[str, bytes]:
        """Every struct is there in every row, its children null where the row is of another kind."""
        rows = layout.table(actions)
        columns = [
            pa.StructArray.from_arrays(column.combine_chunks().flatten(), fields=list(column.type))
            for column in rows.columns
        ]
        return {"c.parquet": layout.parquet(pa.table(columns, names=rows.column_names))}

    def test_structs_of_nulls_are_no_actions(self) -> None:
        files = self.hollow(ACTIONS)
        actual = read(files)
        assert by_path(actual.live()) == ADDS
        assert by_path(actual.tombstones()) == REMOVES
        assert set(actual.txns) == {"app", "other"}
        assert read_header(files).metadata == actual.metadata

    def test_are_no_deletion_vectors(self) -> None:
        hollow = dict.fromkeys(VECTOR)
        actual = read(layout.single(3, [*ACTIONS[:2], {"add": ADD | {"deletionVector": hollow}}]))
        assert list(actual.live()) == [ADDS[1]]


class TestRows:
    """The pure part, a batch at a time."""

    def batch(self, name: str, *fields: Fields, **types: pa.DataType) -> pa.RecordBatch:
        kinds = {field.name: field.type for field in layout.COLUMNS[name]} | types
        return pa.record_batch([pa.array(fields, pa.struct(list(kinds.items())))], names=[name])

    def test_what_a_checkpoint_may_leave_out(self) -> None:
        actual = PackedFiles(
            Add, pa.Table.from_batches([checkpoints.file_rows(self.batch("add", {"path": "a"}), "add")])
        )
        assert list(actual) == [Add("a", {}, 0, 0, False)]
        only = pa.record_batch([pa.array([{"path": "a"}])], names=["add"])
        assert list(PackedFiles(Add, pa.Table.from_batches([checkpoints.file_rows(only, "add")]))) == [
            Add("a", {}, 0, 0, False)
        ]
        removed = PackedFiles(
            Remove, pa.Table.from_batches([checkpoints.file_rows(self.batch("remove", {"path": "a"}), "remove")])
        )
        assert list(removed) == [Remove("a", None, False)]

    def test_a_batch_without_the_column(self) -> None:
        batch = self.batch("txn", {"appId": "a", "version": 1})
        assert checkpoints.file_rows(batch, "add").num_rows == 0
        assert checkpoints.file_rows(batch, "remove").schema == FILES

    @pytest.mark.parametrize(
        ("fields", "types", "message"),
        [
            ({"path": "%zz"}, {}, "not a valid URI"),
            ({"path": b"a\xff"}, {"path": pa.binary()}, "UTF8"),
            ({"path": [1]}, {"path": pa.list_(pa.int64())}, "does not have the types"),
            ({"path": "a", "size": "x"}, {"size": pa.string()}, "does not have the types"),
            ({"path": "a", "size": -1}, {}, "negative add.size"),
            ({"path": "a", "size": 1.5}, {"size": pa.float64()}, "does not have the types"),
            ({"path": "a", "partitionValues": "x"}, {"partitionValues": pa.string()}, "does not have the types"),
            ({"path": "a", "partitionValues": ["x"]}, {"partitionValues": pa.list_(pa.string())}, "does not have the"),
            ({"path": "a", "deletionVector": "x"}, {"deletionVector": pa.string()}, "does not have the types"),
            ({"path": "a", "deletionVector": VECTOR | {"pathOrInlineDv": None}}, {}, "without pathOrInlineDv"),
            ({"path": "a", "deletionVector": VECTOR | {"sizeInBytes": None}}, {}, "without sizeInBytes"),
            ({"path": "a", "deletionVector": VECTOR | {"cardinality": None}}, {}, "without cardinality"),
            ({"path": "a", "deletionVector": VECTOR | {"cardinality": -1}}, {}, "negative deletionVector.cardinality"),
            ({"path": "a", "deletionVector": VECTOR | {"offset": -1}}, {}, "negative deletionVector.offset"),
        ],
    )
    def test_file_action_with_a_wrong_field_is_refused(
        self, fields: Fields, types: dict[str, pa.DataType], message: str
    ) -> None:
        with pytest.raises(LogError, match=message):
            checkpoints.file_rows(self.batch("add", fields, **types), "add")

    def test_files_without_paths(self) -> None:
        with pytest.raises(LogError, match=r"without add\.path"):
            checkpoints.file_rows(pa.record_batch([pa.array([{"size": 1}])], names=["add"]), "add")

    @pytest.mark.parametrize(
        ("name", "fields", "types", "message"),
        [
            ("protocol", {"minReaderVersion": 1}, {}, "minWriterVersion"),
            ("protocol", {"minReaderVersion": "x"}, {"minReaderVersion": pa.string()}, "does not have the types"),
            ("protocol", {"readerFeatures": "x"}, {"readerFeatures": pa.string()}, "does not have the types"),
            ("protocol", PROTOCOL | {"readerFeatures": [None]}, {}, "readerFeatures"),
            *[
                ("metaData", METADATA | {name: None}, {}, rf"metaData\.{name} is missing")
                for name in ("id", "format", "partitionColumns", "configuration")
            ],
            ("metaData", METADATA | {"configuration": ["abc"]}, {"configuration": pa.list_(pa.string())}, "types"),
            ("metaData", METADATA | {"configuration": 5}, {"configuration": pa.int64()}, "types"),
            ("metaData", METADATA | {"format": "parquet"}, {"format": pa.string()}, "types"),
            ("metaData", METADATA | {"schemaString": b"\xff"}, {"schemaString": pa.binary()}, "UTF8"),
            ("txn", {"appId": "a"}, {}, "txn.version"),
            ("txn", {"version": 1}, {}, "txn.appId"),
            ("domainMetadata", {"configuration": "x"}, {}, "domainMetadata.domain"),
            ("sidecar", {"path": "../x", "sizeInBytes": 1}, {}, "not a file name"),
        ],
    )
    def test_state_with_a_wrong_field_is_refused(
        self, name: str, fields: Fields, types: dict[str, pa.DataType], message: str
    ) -> None:
        with pytest.raises(LogError, match=message):
            checkpoints.read_state(self.batch(name, fields, **types), State())

    def test_the_first_protocol_and_metadata_count(self) -> None:
        state = State()
        for protocol in (PROTOCOL, PROTOCOL | {"minWriterVersion": 8}):
            checkpoints.read_state(self.batch("protocol", protocol), state)
        for metadata in (METADATA, METADATA | {"id": "other"}):
            checkpoints.read_state(self.batch("metaData", metadata), state)
        assert state.protocol is not None
        assert state.metadata is not None
        assert (state.protocol.min_writer_version, state.metadata.id) == (7, "i")

    def test_a_property_that_is_null_is_not_set(self) -> None:
        state = State()
        checkpoints.read_state(self.batch("metaData", METADATA | {"configuration": {"a": None}}), state)
        assert state.metadata is not None
        assert state.metadata.configuration == {}

    @pytest.mark.parametrize(
        ("schema", "message"),
        [
            (pa.schema([("a", pa.int64())]), "none of the columns"),
            (pa.schema([("add", pa.string())]), "column add is string, not a struct"),
            (pa.schema([("add", layout.COLUMNS["add"]), ("add", layout.COLUMNS["add"])]), "several columns add"),
        ],
    )
    def test_files_that_are_no_checkpoint(self, schema: pa.Schema, message: str) -> None:
        with pytest.raises(LogError, match=message):
            checkpoints.check_schema(schema)


class TestDamage:
    def test_a_missing_sidecar(self) -> None:
        files = {name: data for name, data in LAYOUTS["v2 json"].items() if not name.startswith("_sidecars")}
        with pytest.raises(LogError, match="a file of the checkpoint is missing") as caught:
            read(files)
        assert caught.value.path is not None
        assert caught.value.path.startswith("_delta_log/_sidecars/")
        assert caught.value.hint

    def test_a_missing_part(self) -> None:
        storage, checkpoint = stored(LAYOUTS["parts"])
        gone = Stat("_delta_log/gone.parquet", 5, 0)
        with pytest.raises(LogError, match="missing") as caught:
            checkpoint_files.read_state(storage, Checkpoint(3, (gone, *checkpoint.files)), HEADER)
        assert caught.value.path == gone.path

    @pytest.mark.parametrize("name", ["protocol", "metaData"])
    def test_without_protocol_or_metadata(self, name: str) -> None:
        with pytest.raises(LogError, match=f"no {name} action"):
            read(layout.single(3, [action for action in ACTIONS if name not in action]))

    def test_a_protocol_of_tomorrow(self) -> None:
        with pytest.raises(UnsupportedError, match="tomorrow"):
            read(layout.single(3, [{"protocol": PROTOCOL | {"readerFeatures": ["tomorrow"]}}, *ACTIONS[1:]]))

    def test_a_manifest_names_its_version(self) -> None:
        with pytest.raises(LogError, match="line 1 is not valid JSON") as caught:
            read({"c.json": b"{"})
        assert caught.value.version == 3
        assert caught.value.path == "_delta_log/c.json"

    @pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1PAR1", b"x" * 100, b"PAR1" + b"\xff" * 50 + b"PAR1"])
    def test_what_is_no_parquet(self, data: bytes) -> None:
        with pytest.raises(LogError, match="cannot be read") as caught:
            read({"c.parquet": data})
        assert caught.value.path == "_delta_log/c.parquet"
        assert caught.value.hint

    def test_truncated_checkpoint_is_refused(self) -> None:
        data = LAYOUTS["single"]["00000000000000000003.checkpoint.parquet"]
        for at in range(0, len(data), 97):
            with pytest.raises(LogError):
                read({"c.parquet": data[:at]})
            with pytest.raises(LogError):
                read_header({"c.parquet": data[:at]})

    @pytest.mark.parametrize("seed", sample(range(4), 1))
    def test_mutated_checkpoint_is_read_or_refused(self, seed: int) -> None:
        """Mostly of the footer: that is where schemas, offsets and sizes are. No mutation ends the process."""
        chance = random.Random(seed)
        bases = list(written_by_others())
        taken = 0
        for _ in range(250):
            data = bytearray(chance.choice(bases))
            footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
            for _ in range(chance.choice((1, 1, 2, 4))):
                at = chance.randrange(footer if chance.random() < 0.6 else 0, len(data))
                data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, data[at] ^ (1 << chance.randrange(8))))
            taken += survives(bytes(data))
        assert taken


def written_by_others() -> Iterator[bytes]:
    for compression in ("snappy", "zstd", "none"):
        for version in ("1.0", "2.0"):
            for plain in (True, False):
                yield layout.parquet(
                    layout.table(ACTIONS),
                    compression=compression,
                    data_page_version=version,
                    use_dictionary=not plain,
                    write_statistics=plain,
                )


def survives(data: bytes) -> bool:
    """Whether all of a checkpoint can be read. Each failure must be an error of cdfd."""
    try:
        snapshot = read({"c.parquet": data})
    except CdfdError:
        return False
    repr(
        (
            list(snapshot.live()),
            list(snapshot.tombstones(0)),
            snapshot.header,
            snapshot.live().by_path(),
            snapshot.find([("c", None)]),
        )
    )
    return True


def test_the_header_reads_no_file_rows() -> None:
    """All columns of `add` and `remove` are damaged. The reader raises no error until it needs them."""
    data = bytearray(layout.parquet(layout.table(ACTIONS), compression="snappy"))
    metadata = pq.ParquetFile(pa.BufferReader(bytes(data))).metadata
    for index in range(metadata.num_columns):
        chunk = metadata.row_group(0).column(index)
        if chunk.path_in_schema.startswith(("add.", "remove.")):
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    state = read_header({"c.parquet": bytes(data)})
    assert state.metadata is not None
    assert state.metadata.id == "i"
    with pytest.raises(LogError, match="cannot be read"):
        read({"c.parquet": bytes(data)})
