"""Log entries: every action, what is ignored, what is refused, and what it may cost."""

import contextlib
import json
import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.delta import commit as commits
from cdfd.delta.actions import (
    Add,
    Cdc,
    CommitInfo,
    DeletionVectorDescriptor,
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    Remove,
    Sidecar,
    Txn,
)
from cdfd.delta.commit import Commit, parse, serialize
from cdfd.delta.files import PACK, PackedFiles
from cdfd.delta.types.schema import TableSchema
from cdfd.delta.write.writing import metadata_fields
from cdfd.errors import CdfdError, LogError

ADD: dict[str, Any] = {
    "path": "p=1/a%20b.parquet",
    "partitionValues": {"p": "1"},
    "size": 10,
    "modificationTime": 5,
    "dataChange": True,
    "stats": '{"numRecords":1}',
    "tags": {"INSERTION_TIME": "5"},
    "deletionVector": {
        "storageType": "u",
        "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
        "offset": 4,
        "sizeInBytes": 40,
        "cardinality": 6,
    },
}
COUNT = '{"numRecords":1}'
VECTOR = DeletionVectorDescriptor("u", "ab^-aqEH.-t@S}K{vb[*k^", 4, 40, 6)
REMOVE: dict[str, Any] = {
    "path": "p=1/a%20b.parquet",
    "deletionTimestamp": 7,
    "dataChange": False,
    "extendedFileMetadata": True,
    "partitionValues": {"p": None},
    "size": 10,
}
METADATA: dict[str, Any] = {
    "id": "af23c9d7-fff1-4a5a-a2c8-55c59bd782aa",
    "name": "orders",
    "description": "of the shop",
    "format": {"provider": "parquet", "options": {"a": "b"}},
    "schemaString": '{"type":"struct","fields":[]}',
    "partitionColumns": ["p"],
    "createdTime": 3,
    "configuration": {"delta.appendOnly": "true"},
}
SIDECAR: dict[str, Any] = {"path": "a.parquet", "sizeInBytes": 9, "modificationTime": 8}


def entry(*actions: dict[str, Any]) -> bytes:
    return b"\n".join(map(orjson.dumps, actions))


def sizeless(commit: Commit) -> Commit:
    return replace(commit, size=0)


def one(name: str, fields: object) -> Commit:
    return parse(1, entry({name: fields}))


EVERY = entry(
    {
        "commitInfo": {
            "timestamp": 1,
            "inCommitTimestamp": 2,
            "operation": "MERGE",
            "operationMetrics": {"n": "1", "m": 2},
            "engineInfo": "e",
        }
    },
    {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["x"], "writerFeatures": ["x", "y"]}},
    {"metaData": METADATA},
    {"add": ADD},
    {"remove": REMOVE},
    {"cdc": {"path": "_change_data/c%25.parquet", "partitionValues": {"p": "1"}, "size": 3, "dataChange": False}},
    {"txn": {"appId": "app", "version": 7, "lastUpdated": 9}},
    {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": True}},
    {"sidecar": SIDECAR},
)
PARSED = Commit(
    version=4,
    adds=(Add("p=1/a b.parquet", {"p": "1"}, 10, 5, True, COUNT, deletion_vector=VECTOR),),
    removes=(Remove("p=1/a b.parquet", 7, False, {"p": None}, 10),),
    cdcs=(Cdc("_change_data/c%.parquet", {"p": "1"}, 3),),
    metadata=Metadata(
        METADATA["id"],
        METADATA["schemaString"],
        ("p",),
        {"delta.appendOnly": "true"},
        Format("parquet", {"a": "b"}),
        "orders",
        "of the shop",
        3,
    ),
    protocol=Protocol(3, 7, frozenset("x"), frozenset("xy")),
    txns=(Txn("app", 7, 9),),
    domains=(DomainMetadata("d", "{}", True),),
    info=CommitInfo(1, 2, "MERGE", {"n": "1", "m": "2"}),
    sidecars=(Sidecar("a.parquet", 9, 8),),
    size=len(EVERY),
)


class TestActions:
    def test_every_kind_of_action_is_parsed(self) -> None:
        assert parse(4, EVERY) == PARSED

    def test_of_a_file_only_what_must_be_there(self) -> None:
        actual = parse(1, entry({"add": {"path": "a"}}, {"remove": {"path": "b"}}, {"cdc": {"path": "c"}}))
        assert actual.adds == (Add("a", {}, 0, 0, True),)
        assert actual.removes == (Remove("b", None, True),)
        assert actual.cdcs == (Cdc("c", {}, 0),)

    @pytest.mark.parametrize("flag", [{}, {"dataChange": True}, {"dataChange": False}, {"dataChange": None}])
    def test_a_change_data_file_counts_whatever_its_flag_says(self, flag: dict[str, bool | None]) -> None:
        """The specification has false there. A writer that says true has recorded the same changes."""
        actual = parse(
            1, entry({"add": {"path": "a"}}, {"cdc": {"path": "c", "partitionValues": {}, "size": 3, **flag}})
        )
        assert actual.cdcs == (Cdc("c", {}, 3),)
        assert actual.adds == (Add("a", {}, 0, 0, True),)

    def test_null_is_as_good_as_absent(self) -> None:
        names = ["partitionValues", "size", "modificationTime", "deletionTimestamp", "dataChange", "deletionVector"]
        nulls: dict[str, Any] = dict.fromkeys([*names, "stats", "tags"])
        actual = parse(1, entry({"add": {"path": "a", **nulls}}, {"remove": {"path": "b", **nulls}}, {"txn": None}))
        assert actual.adds == (Add("a", {}, 0, 0, True),)
        assert actual.removes == (Remove("b", None, True),)
        assert one("domainMetadata", {"domain": "d", "configuration": None, "removed": None}).domains == (
            DomainMetadata("d", ""),
        )

    @pytest.mark.parametrize("step", [1, 7, 1 << 20])
    @pytest.mark.parametrize("ending", ["\n", "\r\n"])
    def test_a_schema_string_of_many_lines(self, ending: str, step: int) -> None:
        """Its line breaks are escaped in the action. Characters that only some readers take for line breaks are not."""
        column = {"name": "a", "type": "long", "nullable": True, "metadata": {"comment": "x\u2028y\x85\u2029\x0bz\\n"}}
        document = {
            "type": "struct",
            "fields": [column, column | {"name": "b\n", "type": {"type": "array", "elementType": "string"}}],
        }
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode().replace("\n", ending)
        assert len(text.splitlines()) > 10
        data = entry({"metaData": METADATA | {"schemaString": text, "partitionColumns": []}}, {"add": ADD}) + b"\n"
        actual = parse(4, [data[at : at + step] for at in range(0, len(data), step)])
        assert actual == parse(4, data)
        assert actual.metadata is not None
        assert actual.metadata.schema_string == text
        compact = replace(actual.metadata, schema_string=orjson.dumps(document).decode())
        assert TableSchema.of(actual.metadata) == TableSchema.of(compact)
        assert [child.name for child in TableSchema.of(actual.metadata).struct] == ["a", "b\n"]
        assert len(actual.adds) == 1
        written = serialize([("metaData", metadata_fields(actual.metadata))])
        assert written.count(b"\n") == 1
        assert parse(5, written).metadata == actual.metadata

    def test_a_format_without_a_provider_is_parquet(self) -> None:
        for form in ({}, {"provider": None, "options": None}):
            actual = one("metaData", METADATA | {"format": form}).metadata
            assert actual is not None
            assert actual.format == Format("parquet", {})

    def test_a_setting_that_is_null_is_not_set(self) -> None:
        actual = one("metaData", METADATA | {"configuration": {"a": None, "b": "c", "d": 1, "e": True}})
        assert actual.metadata is not None
        assert actual.metadata.configuration == {"b": "c", "d": "1", "e": "true"}

    def test_row_counts_are_kept_and_statistics_only_where_they_are_wanted(self) -> None:
        stats = '{"numRecords":1,"minValues":{"id":7}}'
        data = entry({"add": ADD | {"stats": stats}})
        assert parse(1, data).adds[0].stats == COUNT
        assert parse(1, data, with_stats=True).adds[0].stats == stats

    def test_scalars_that_a_writer_left_unquoted(self) -> None:
        actual = one("add", {"path": "a", "partitionValues": {"a": 1, "b": True, "c": 1.5, "d": None, "e": "x"}})
        assert actual.adds[0].partition_values == {"a": "1", "b": "true", "c": "1.5", "d": None, "e": "x"}

    def test_a_remove_without_partition_values_is_not_one_with_none(self) -> None:
        assert one("remove", {"path": "a"}).removes[0].partition_values is None
        assert one("remove", {"path": "a", "partitionValues": {}}).removes[0].partition_values == {}

    def test_commit_info_is_free_form(self) -> None:
        actual = one(
            "commitInfo", {"timestamp": "x", "inCommitTimestamp": 2**63, "operation": 5, "operationMetrics": 1}
        )
        assert actual.info == CommitInfo()
        assert one("commitInfo", {"timestamp": True}).info == CommitInfo()
        assert one("commitInfo", {"engineInfo": {"a": [None]}, "tags": "x", "notebook": {"id": 1}}).info == CommitInfo()
        assert parse(1, entry({"commitInfo": {"timestamp": 1}}, {"commitInfo": {"timestamp": 2}})).info == CommitInfo(1)

    def test_deletion_vector_without_an_offset(self) -> None:
        vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 4, "cardinality": 1}
        actual = one("remove", {"path": "a", "deletionVector": vector}).removes[0]
        assert actual.deletion_vector == DeletionVectorDescriptor("i", "x", None, 4, 1)
        assert actual.key == ("a", "ix")

    def test_the_key_of_a_logical_file(self) -> None:
        """`uniqueId` of the specification, "Derived Fields"."""
        assert PARSED.adds[0].key == ("p=1/a b.parquet", "uab^-aqEH.-t@S}K{vb[*k^@4")
        assert PARSED.removes[0].key == ("p=1/a b.parquet", None)


class TestSpecificationExamples:
    """As they stand in the draft: pretty-printed there, one line in a log; its `add` lacks a comma and some text."""

    def read(self, text: str) -> Commit:
        return parse(1, "".join(line.strip() for line in text.splitlines()).encode())

    def test_metadata_of_the_specification_is_parsed(self) -> None:
        actual = self.read("""{
            "metaData":{
            "id":"af23c9d7-fff1-4a5a-a2c8-55c59bd782aa",
            "format":{"provider":"parquet","options":{}},
            "schemaString":"...",
            "partitionColumns":[],
            "configuration":{
            "appendOnly": "true"
            }
            }
            }""")
        assert actual.metadata == Metadata(
            "af23c9d7-fff1-4a5a-a2c8-55c59bd782aa", "...", (), {"appendOnly": "true"}, Format("parquet", {})
        )

    def test_add_of_the_specification_is_parsed(self) -> None:
        actual = self.read(r"""{
            "add": {
            "path":"date=2017-12-10/part-000...c000.gz.parquet",
            "partitionValues":{"date":"2017-12-10"},
            "size":841454,
            "modificationTime":1512909768000,
            "dataChange":true,
            "stats":"{\"numRecords\":1,\"minValues\":{\"val..."
            }
            }""")
        path = "date=2017-12-10/part-000...c000.gz.parquet"
        assert actual.adds == (Add(path, {"date": "2017-12-10"}, 841454, 1512909768000, True),)

    def test_remove_of_the_specification_is_parsed(self) -> None:
        actual = self.read("""{
            "remove":{
            "path":"part-00001-9…..snappy.parquet",
            "deletionTimestamp":1515488792485,
            "dataChange":true
            }
            }""")
        assert actual.removes == (Remove("part-00001-9…..snappy.parquet", 1515488792485, True),)

    def test_cdc_of_the_specification_is_parsed(self) -> None:
        actual = self.read("""{
            "cdc": {
            "path": "_change_data/cdc-00001-c…..snappy.parquet",
            "partitionValues": {},
            "size": 1213,
            "dataChange": false
            }
            }""")
        assert actual.cdcs == (Cdc("_change_data/cdc-00001-c…..snappy.parquet", {}, 1213),)

    def test_txn_of_the_specification_is_parsed(self) -> None:
        actual = self.read("""{
            "txn": {
            "appId":"3ba13872-2d47-4e17-86a0-21afd2a22395",
            "version":364475
            }
            }""")
        assert actual.txns == (Txn("3ba13872-2d47-4e17-86a0-21afd2a22395", 364475),)

    def test_protocol_of_the_specification_is_parsed(self) -> None:
        actual = self.read('{\n"protocol":{\n"minReaderVersion":1,\n"minWriterVersion":2\n}\n}')
        assert actual.protocol == Protocol(1, 2)

    def test_commit_info_of_the_specification_is_parsed(self) -> None:
        actual = self.read("""{
            "commitInfo":{
            "timestamp":1515491537026,
            "userId":"100121",
            "userName":"[email protected]",
            "operation":"INSERT",
            "operationParameters":{"mode":"Append","partitionBy":"[]"},
            "notebook":{
            "notebookId":"4443029",
            "notebookPath":"Users/[email protected]/actions"},
            "clusterId":"1027-202406-pooh991"
            }
            }""")
        assert actual.info == CommitInfo(1515491537026, operation="INSERT")


class TestWhatIsIgnored:
    def test_unknown_actions_and_fields(self) -> None:
        """Specification, "Protocol Evolution": what is not recognised is never required."""
        actual = parse(1, entry({"new": {"a": 1}}, {"new": 5}, {"add": {"path": "a", "new": [1, {"b": 2}]}}, {}))
        assert actual.adds == (Add("a", {}, 0, 0, True),)

    @pytest.mark.parametrize("data", [b"", b"\n", b"\n\n \t\r\n", b" "])
    def test_an_entry_of_nothing(self, data: bytes) -> None:
        assert parse(3, data) == Commit(3, size=len(data))

    def test_empty_lines_and_line_breaks_of_windows(self) -> None:
        lines = EVERY.split(b"\n")
        data = b"\r\n \r\n" + b"\r\n\r\n".join(lines) + b"\r\n"
        actual = parse(4, data)
        assert actual.adds == PARSED.adds
        assert actual.sidecars == PARSED.sidecars
        assert actual.size == len(data)


class TestChunks:
    def test_entry_in_two_chunks_is_parsed_wherever_it_is_cut(self) -> None:
        for at in range(len(EVERY) + 1):
            assert parse(4, [EVERY[:at], EVERY[at:]]) == PARSED, at

    @pytest.mark.parametrize("step", [1, 2, 3, 7, 64])
    def test_entry_in_chunks_of_any_size_is_parsed(self, step: int) -> None:
        assert parse(4, (EVERY[at : at + step] for at in range(0, len(EVERY), step))) == PARSED

    def test_empty_chunks_change_nothing(self) -> None:
        assert parse(4, [b"", EVERY[:9], b"", b"", EVERY[9:], b""]) == PARSED
        assert parse(4, []) == Commit(4)


BROKEN: list[tuple[str, object, str]] = [
    *[
        (name, fields, "is not an object")
        for name in ("add", "remove", "cdc", "metaData", "protocol", "txn", "domainMetadata", "sidecar", "commitInfo")
        for fields in ([], "x", 5, False)
    ],
    *[(name, {}, f"{name}.path is missing") for name in ("add", "remove", "cdc", "sidecar")],
    *[(name, {"path": 5}, f"{name}.path") for name in ("add", "remove", "cdc", "sidecar")],
    ("add", {"path": "%zz"}, "not a valid URI"),
    ("add", {"path": "%ff"}, "not UTF-8"),
    *[("add", {"path": "a", "size": size}, "add.size") for size in ("1", -1, 1.5, True, 2**63, 1e30, [])],
    ("remove", {"path": "a", "size": -1}, "remove.size"),
    *[
        ("txn", {"appId": "a", "version": version}, "txn.version")
        for version in (2**63, orjson.Fragment(str(-(2**63) - 1)))
    ],
    ("cdc", {"path": "a", "size": -1}, "cdc.size"),
    ("add", {"path": "a", "modificationTime": "x"}, "add.modificationTime"),
    ("add", {"path": "a", "dataChange": "true"}, "add.dataChange is not a boolean"),
    ("add", {"path": "a", "partitionValues": []}, "partitionValues is not an object"),
    ("add", {"path": "a", "partitionValues": {"a": {}}}, "partitionValues has a value that is not a string"),
    ("remove", {"path": "a", "deletionTimestamp": 1.5}, "remove.deletionTimestamp"),
    ("remove", {"path": "a", "partitionValues": "x"}, "partitionValues is not an object"),
    ("add", {"path": "a", "deletionVector": "x"}, "deletionVector is not an object"),
    *[
        ("add", {"path": "a", "deletionVector": {**ADD["deletionVector"], name: value}}, "deletionVector")
        for name in ADD["deletionVector"]
        for value in ([], 1.5, -1)
    ],
    *[
        (
            "remove",
            {
                "path": "a",
                "deletionVector": {key: ADD["deletionVector"][key] for key in ADD["deletionVector"] if key != name},
            },
            f"deletionVector.{name}",
        )
        for name in ("storageType", "pathOrInlineDv", "sizeInBytes", "cardinality")
    ],
    *[
        ("metaData", {**METADATA, name: None}, rf"metaData\.{name} is missing")
        for name in ("id", "format", "partitionColumns", "configuration")
    ],
    ("metaData", {key: METADATA[key] for key in METADATA if key != "format"}, "format is missing"),
    ("metaData", METADATA | {"schemaString": {}}, "schemaString"),
    ("metaData", METADATA | {"format": "parquet"}, "format is missing or not an object"),
    ("metaData", METADATA | {"format": {"provider": 5}}, "provider"),
    ("metaData", METADATA | {"format": {"options": []}}, "options"),
    ("metaData", METADATA | {"partitionColumns": "p"}, "partitionColumns"),
    ("metaData", METADATA | {"partitionColumns": [1]}, "partitionColumns"),
    ("metaData", METADATA | {"configuration": []}, "configuration"),
    ("metaData", METADATA | {"configuration": {"a": []}}, "configuration"),
    ("metaData", METADATA | {"name": 5}, "name"),
    ("metaData", METADATA | {"createdTime": "x"}, "createdTime"),
    ("protocol", {}, "minReaderVersion"),
    ("protocol", {"minReaderVersion": 1}, "minWriterVersion"),
    ("protocol", {"minReaderVersion": "1", "minWriterVersion": 2}, "minReaderVersion"),
    ("protocol", {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": "x"}, "readerFeatures"),
    ("protocol", {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": [1]}, "writerFeatures"),
    ("txn", {"version": 1}, "txn.appId"),
    ("txn", {"appId": "a"}, "txn.version"),
    ("txn", {"appId": "a", "version": 1, "lastUpdated": "x"}, "txn.lastUpdated"),
    ("domainMetadata", {}, "domainMetadata.domain"),
    ("domainMetadata", {"domain": "d", "configuration": 5}, "configuration"),
    ("domainMetadata", {"domain": "d", "removed": 1}, "removed is not a boolean"),
    *[("sidecar", {"path": path}, "is not a file name") for path in ("", ".", "..", "a/b", "../x", "a%2Fb", "/x")],
    *[
        ("sidecar", {"path": f"/t/_delta_log/_sidecars/{name}"}, "is not a file name")
        for name in ("", "..", "a/b", "a%2Fb")
    ],
    ("sidecar", {"path": "a", "sizeInBytes": "x"}, "sizeInBytes"),
]


@pytest.mark.parametrize("root", ["s3://lake/orders", "/data/orders", "file:///data/a%20b", "../orders"])
def test_sidecar_is_in_the_folder_of_the_table_if_its_whole_path_is_spelled_out(root: str) -> None:
    """The protocol only encourages writers to store the name alone."""
    path = f"{root}/_delta_log/_sidecars/a.parquet"
    assert parse(5, entry({"sidecar": SIDECAR | {"path": path}})).sidecars == PARSED.sidecars


class TestBroken:
    @pytest.mark.parametrize(("name", "fields", "message"), BROKEN)
    def test_broken_action_names_version_and_line(self, name: str, fields: object, message: str) -> None:
        data = entry({"commitInfo": {}}, {"add": {"path": "fine"}}, {name: fields})
        with pytest.raises(LogError, match=message) as caught:
            parse(5, data)
        assert caught.value.version == 5
        assert str(caught.value).startswith("line 3")

    @pytest.mark.parametrize(
        "line", [b"{", b'{"add":', b"nonsense", b'{"add":{"path":"\xff"}}', b"\xff", b"[" * 2000, b"\x00"]
    )
    def test_a_line_that_is_no_json(self, line: bytes) -> None:
        with pytest.raises(LogError, match="line 2 is not valid JSON") as caught:
            parse(5, b'{"commitInfo":{}}\n' + line)
        assert caught.value.hint

    @pytest.mark.parametrize("line", [b"[]", b"5", b"null", b'"add"'])
    def test_a_line_that_is_no_object(self, line: bytes) -> None:
        with pytest.raises(LogError, match="line 1 is not a JSON object"):
            parse(5, line)

    def test_every_truncation_of_a_last_line_is_noticed(self) -> None:
        line = orjson.dumps({"add": ADD})
        for at in range(1, len(line)):
            with pytest.raises(LogError):
                parse(1, b'{"commitInfo":{}}\n' + line[:at])


class TestContradictions:
    """Specification, "Requirements for Writers": no two actions of one entry that reconcile with each other."""

    @pytest.mark.parametrize(
        ("name", "fields", "other", "message"),
        [
            ("metaData", METADATA, {"name": "other"}, "second metaData"),
            ("protocol", {"minReaderVersion": 1, "minWriterVersion": 2}, {"minWriterVersion": 3}, "second protocol"),
            ("txn", {"appId": "a", "version": 1}, {"version": 2}, "two txn actions for appId 'a'"),
            ("domainMetadata", {"domain": "d", "configuration": "x"}, {"configuration": "y"}, "domainMetadata.*'d'"),
            ("add", ADD, {"size": 11}, "two different add actions"),
            ("remove", REMOVE, {"deletionTimestamp": 8}, "two different remove actions"),
            ("cdc", {"path": "c", "size": 1}, {"size": 2}, "two different cdc actions"),
        ],
    )
    def test_are_refused_and_repetitions_are_not(self, name: str, fields: Any, other: Any, message: str) -> None:
        assert sizeless(parse(1, entry({name: fields}, {name: fields}))) == sizeless(parse(1, entry({name: fields})))
        with pytest.raises(LogError, match=message) as caught:
            parse(1, entry({name: fields}, {name: fields | other}))
        assert caught.value.version == 1

    def test_one_file_with_two_vectors_is_two_logical_files(self) -> None:
        """A checkpoint may have removes of both. No version may add both."""
        actual = parse(1, entry({"remove": ADD}, {"remove": ADD | {"deletionVector": None}}))
        assert len(actual.removes) == 2


def many(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"add": ADD | {"path": f"f{number}.parquet", "deletionVector": None, "size": number}}


class TestLarge:
    def test_many_files_are_packed(self) -> None:
        actual = parse(1, entry(*many(PACK + 10)))
        assert isinstance(actual.adds, PackedFiles)
        assert actual.adds == parse(1, entry(*many(PACK + 10))).adds
        assert list(actual.adds) == [
            Add(f"f{number}.parquet", {"p": "1"}, number, 5, True, COUNT) for number in range(PACK + 10)
        ]

    def test_repetitions_are_dropped_wherever_they_are(self) -> None:
        files = list(many(PACK + 10))
        data = entry(*files, files[3], *files[PACK:], files[0], files[3])
        actual = parse(1, data).adds
        assert len(actual) == PACK + 10
        assert {file.path: file for file in actual} == {file.path: file for file in parse(1, entry(*files)).adds}

    def test_contradictions_are_found_wherever_they_are(self) -> None:
        files = list(many(PACK + 10))
        for number in (0, PACK - 1, PACK + 9):
            with pytest.raises(LogError, match="two different add actions") as caught:
                parse(6, entry(*files, {"add": files[number]["add"] | {"size": 10**9}}))
            assert caught.value.path == f"f{number}.parquet"
            assert caught.value.version == 6

    def test_one_file_with_two_vectors(self) -> None:
        files = [{"remove": file["add"]} for file in many(PACK + 10)]
        other = {"remove": files[3]["remove"] | {"deletionVector": ADD["deletionVector"]}}
        actual = parse(1, entry(*files, other)).removes
        assert len(actual) == PACK + 11
        assert sum(file.path == "f3.parquet" for file in actual) == 2

    def test_memory_is_that_of_what_matters(self) -> None:
        """100 MB of log, nearly all of it statistics, as wide tables have them."""
        stats = json.dumps({"numRecords": 1, "minValues": {f"column{n}": "x" * 40 for n in range(350)}})
        size = 0

        def chunks() -> Iterator[bytes]:
            nonlocal size
            pending = b""
            for number in range(5_000):
                pending += orjson.dumps({"add": ADD | {"path": f"f{number}.parquet", "stats": stats}}) + b"\n"
                if len(pending) > 1 << 20:
                    size += len(pending)
                    yield pending
                    pending = b""
            size += len(pending)
            yield pending

        tracemalloc.start()
        try:
            actual = parse(1, chunks())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert size == actual.size
        assert size > 100 << 20
        assert len(actual.adds) == 5_000
        # Memory that Python allocates and, for packed files, that Arrow does.
        assert peak < 20 << 20
        assert isinstance(actual.adds, PackedFiles)
        assert actual.adds.table.nbytes < 2 << 20


def test_what_is_serialized_is_parsed() -> None:
    actions = [(name, fields) for line in EVERY.split(b"\n") for name, fields in json.loads(line).items()]
    data = commits.serialize(actions)
    assert data == EVERY + b"\n"
    assert sizeless(parse(4, data)) == sizeless(PARSED)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


class TestNoise:
    """Any bytes give a commit or an error of cdfd."""

    @given(st.binary(max_size=200))
    def test_arbitrary_bytes_raise_nothing_but_errors_of_cdfd(self, data: bytes) -> None:
        with contextlib.suppress(CdfdError):
            parse(1, data)

    @given(st.data())
    def test_any_value_in_any_field(self, data: st.DataObject) -> None:
        actions = [json.loads(line) for line in EVERY.split(b"\n")]
        (name, fields), *_ = data.draw(st.sampled_from(actions)).items()
        key = data.draw(st.sampled_from(sorted(fields)))
        fields[key] = data.draw(JSON)
        if isinstance(fields.get("deletionVector"), dict) and fields["deletionVector"] and data.draw(st.booleans()):
            inner = data.draw(st.sampled_from(sorted(fields["deletionVector"])))
            fields["deletionVector"][inner] = data.draw(JSON)
        text = json.dumps({name: fields}).encode(errors="replace")
        with contextlib.suppress(CdfdError):
            repr(parse(1, text))

    @pytest.mark.parametrize("seed", range(3))
    def test_mutated_entry_is_parsed_or_refused(self, seed: int) -> None:
        chance = random.Random(seed)
        taken = 0
        for _ in range(2000):
            data = bytearray(EVERY)
            for _ in range(chance.choice((1, 1, 2, 5))):
                data[chance.randrange(len(data))] = chance.choice((*b'"{}[]:,0-9.e\n\\ ', chance.randrange(256)))
            with contextlib.suppress(CdfdError):
                taken += parse(1, bytes(data)).size == len(data)
        assert taken > 100
