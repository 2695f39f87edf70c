"""Protocol and metadata in force: from commits, backwards from the newest entry."""

import contextlib
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.delta import header as headers
from cdfd.delta.actions import Add, Format, Metadata, Protocol
from cdfd.delta.commit import Commit
from cdfd.delta.header import Header, PartialHeader
from cdfd.errors import CdfdError, LogError, UnsupportedError

SCHEMA = '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}}]}'
METADATA = Metadata("id", SCHEMA, (), {})
OTHER = Metadata("id", SCHEMA.replace('"a"', '"b"'), (), {})
PROTOCOL = Protocol(1, 2)
NEWER = Protocol(3, 7, frozenset(["deletionVectors"]), frozenset(["deletionVectors"]))

METADATA_FIELDS = {"id": "id", "format": {}, "schemaString": SCHEMA, "partitionColumns": [], "configuration": {}}
PROTOCOL_FIELDS = {"minReaderVersion": 1, "minWriterVersion": 2}


def header(version: int = 4) -> Header:
    return PartialHeader(version, PROTOCOL, METADATA).finish()


class TestApply:
    def test_a_commit_of_neither_only_counts(self) -> None:
        before = header()
        after = before.apply(Commit(5, adds=(Add("a", {}, 1, 1, True),)))
        assert after.version == 5
        assert after.schema is before.schema

    def test_equal_metadata_have_one_schema_and_other_ones_another(self) -> None:
        """Readers of a table parse it again and again."""
        copy = replace(METADATA, id="other", schema_string="".join(list(SCHEMA)))
        assert header().apply(Commit(5, metadata=copy)).schema is header().schema
        mapped = replace(METADATA, configuration={"delta.columnMapping.mode": "name"})
        for other in (OTHER, mapped, replace(METADATA, partition_columns=("a",))):
            assert header().apply(Commit(5, metadata=other)).schema != header().schema

    def test_the_latest_of_each_wins(self) -> None:
        after = header().apply(Commit(5, metadata=OTHER))
        assert (after.metadata, after.protocol) == (OTHER, PROTOCOL)
        assert after.schema.names == ("b",)
        after = after.apply(Commit(6, protocol=NEWER))
        assert (after.version, after.metadata, after.protocol) == (6, OTHER, NEWER)

    @pytest.mark.parametrize(
        ("commit", "family"),
        [
            (Commit(5, protocol=Protocol(4, 7)), UnsupportedError),
            (Commit(5, protocol=Protocol(3, 7, frozenset(["tomorrow"]))), UnsupportedError),
            (Commit(5, metadata=Metadata("id", "{", (), {})), LogError),
            (Commit(5, metadata=Metadata("id", SCHEMA, ("nowhere",), {})), LogError),
            (Commit(5, metadata=Metadata("id", SCHEMA, (), {"delta.columnMapping.mode": "x"})), UnsupportedError),
            (Commit(5, metadata=Metadata("id", SCHEMA, (), {}, Format("orc"))), UnsupportedError),
        ],
    )
    def test_what_cannot_be_read_is_refused_where_it_comes(self, commit: Commit, family: type[CdfdError]) -> None:
        before = header()
        with pytest.raises(family) as caught:
            before.apply(commit)
        assert caught.value.version == 5
        assert before == header()


class TestPartial:
    def test_the_newest_of_each_kind(self) -> None:
        partial = PartialHeader(9)
        for protocol, metadata in ((None, None), (None, OTHER), (PROTOCOL, METADATA), (NEWER, None)):
            partial = partial.before(protocol, metadata)
        assert partial == PartialHeader(9, PROTOCOL, OTHER)
        assert partial.complete

    def test_files_that_add_nothing_are_no_sources(self) -> None:
        one = PartialHeader(9).before(None, OTHER, "newest")
        both = one.before(PROTOCOL, METADATA, "older")
        assert both == PartialHeader(9, PROTOCOL, OTHER)
        assert both.sources == {"newest", "older"}
        assert one.before(None, METADATA, "older").sources == {"newest"}
        assert both.before(NEWER, METADATA, "oldest").sources == {"newest", "older"}
        assert one.before(PROTOCOL, None, "older") == both
        assert one.before(PROTOCOL, None).sources == {"newest"}

    def test_error_names_the_file_if_it_is_in_one(self) -> None:
        bad = Protocol(3, 7, frozenset(["tomorrow"]))
        for header, path in (
            (PartialHeader(9).before(bad, METADATA, "a"), "a"),
            (PartialHeader(9).before(bad, None, "a").before(None, METADATA, "b"), None),
        ):
            with pytest.raises(UnsupportedError) as caught:
                header.finish()
            assert caught.value.path == path

    @pytest.mark.parametrize(
        ("part", "what"),
        [(PartialHeader(3, None, METADATA), "no protocol action"), (PartialHeader(3, PROTOCOL), "no metaData action")],
    )
    def test_without_one_of_them_there_is_no_table(self, part: PartialHeader, what: str) -> None:
        assert not part.complete
        with pytest.raises(LogError, match=what) as caught:
            part.finish()
        assert caught.value.version == 3
        assert caught.value.hint

    def test_what_is_wrong_names_the_version(self) -> None:
        with pytest.raises(UnsupportedError, match="tomorrow") as caught:
            PartialHeader(3, Protocol(3, 7, frozenset(["tomorrow"])), METADATA).finish()
        assert caught.value.version == 3


def entry(*actions: object) -> bytes:
    return b"".join(orjson.dumps(action) + b"\n" for action in actions)


class TestScan:
    ENTRY = entry(
        {"commitInfo": {"operation": "x"}},
        {"add": {"path": "a", "stats": '{"minValues":{"protocol":1}}'}},
        {"protocol": PROTOCOL_FIELDS},
        {"metaData": METADATA_FIELDS},
        {"add": {"path": "b"}},
    )

    def test_protocol_and_metadata_of_an_entry_are_found(self) -> None:
        assert headers.scan(2, self.ENTRY) == PartialHeader(2, PROTOCOL, METADATA)

    def test_entry_without_protocol_and_metadata_has_neither(self) -> None:
        assert headers.scan(2, b"") == PartialHeader(2)
        assert headers.scan(2, entry({"add": {"path": '"metaData"'}}, {"add": {"protocol": 1, "path": "x"}})) == (
            PartialHeader(2)
        )

    def test_entry_in_two_chunks_is_scanned_wherever_it_is_cut(self) -> None:
        for at in range(len(self.ENTRY)):
            assert headers.scan(2, [self.ENTRY[:at], self.ENTRY[at:]]) == PartialHeader(2, PROTOCOL, METADATA)

    def test_looks_at_no_other_line(self) -> None:
        assert headers.scan(2, b"nonsense\n" + self.ENTRY) == PartialHeader(2, PROTOCOL, METADATA)

    def test_names_the_line_that_is_broken(self) -> None:
        with pytest.raises(LogError, match="line 3 is not valid JSON") as caught:
            headers.scan(2, b'{"add":{}}\n\n{"protocol":\n')
        assert caught.value.version == 2

    @pytest.mark.parametrize(("name", "spelled"), [("protocol", "pr\\u006ftocol"), ("metaData", "meta\\u0044ata")])
    def test_sees_what_a_parser_sees(self, name: str, spelled: str) -> None:
        data = self.ENTRY.replace(f'{{"{name}"'.encode(), f'{{"{spelled}"'.encode())
        assert data != self.ENTRY
        assert headers.scan(2, data) == PartialHeader(2, PROTOCOL, METADATA)

    @given(st.binary(max_size=60))
    def test_arbitrary_bytes_raise_nothing_but_errors_of_cdfd(self, data: bytes) -> None:
        with contextlib.suppress(CdfdError):
            headers.scan(2, data)


def test_format_that_cdfd_does_not_read_is_refused() -> None:
    orc = replace(METADATA, format=replace(METADATA.format, provider="orc"))
    with pytest.raises(UnsupportedError, match="the data files are in the format 'orc'"):
        PartialHeader(4, PROTOCOL, orc).finish()
