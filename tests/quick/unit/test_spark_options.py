"""Options and offsets of `format("cdfd")`, which need no Spark."""

import traceback
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cdfd.config.shapes import shape_of
from cdfd.errors import ConfigError, NotATableError
from cdfd.log.bounds import After
from cdfd.model.position import Position
from cdfd.plan.row_options import AS_STORED, RowOptions
from cdfd.plan.shape.chosen import Chosen
from cdfd.plan.shape.masks import Mask
from cdfd.spark.source.offsets import Offset
from cdfd.spark.source.options import SourceOptions, _warn_of_zone, written
from cdfd.spark.source.source import CdfdSource


def options(**values: str) -> SourceOptions:
    return SourceOptions.parse({"path": "t"} | values)


class TestOptions:
    def test_options_without_settings_are_the_defaults(self) -> None:
        assert options() == SourceOptions("t")

    def test_names_in_any_case(self) -> None:
        actual = options(STARTINGVERSION="3", endingversion="7", readchangefeed="TRUE")
        assert (actual.start, actual.end) == (3, 7)

    @pytest.mark.parametrize(
        "text", ["2026-01-02", "2026-01-02 00:00:00", "2026-01-02T00:00:00.000Z", "2026-01-02T01:00:00+01:00"]
    )
    def test_time_is_read_in_each_form(self, text: str) -> None:
        assert options(startingTimestamp=text).start == datetime(2026, 1, 2, tzinfo=UTC)
        assert options(endingTimestamp=text).end == datetime(2026, 1, 2, tzinfo=UTC)

    def test_times_as_the_command_line_takes_them(self) -> None:
        assert options(startingTimestamp="1 hour ago").start == timedelta(hours=1)
        assert options(endingTimestamp="1767312000000").end == datetime(2026, 1, 2, tzinfo=UTC)
        assert options(startingVersion="-2", endingVersion="-1").start == -2
        assert options(startingVersion="after 41").start == After(41)
        assert options(startingTimestamp="after 2026-01-02").start == After(datetime(2026, 1, 2, tzinfo=UTC))
        for name in ("endingVersion", "endingTimestamp"):
            with pytest.raises(ConfigError, match=name):
                options(**{name: "after 41"})

    def test_start_is_a_word_in_any_case(self) -> None:
        assert [options(startingVersion=word).start for word in ("Latest", "earliest", "snapshot")] == [
            "latest",
            "earliest",
            "snapshot",
        ]

    def test_policies_of_replaced_tables(self) -> None:
        assert options().on_replace == "stop"
        assert options(onReplace="Continue").on_replace == options(on_replace="continue").on_replace == "continue"
        with pytest.raises(ConfigError, match=r"onReplace is 'merge'\. One of: stop, continue"):
            options(onReplace="merge")

    @pytest.mark.parametrize(
        ("text", "size"), [("1", 1), ("64m", 64 << 20), ("1GB", 1 << 30), (" 2k ", 2048), ("5b", 5)]
    )
    def test_size_is_read_in_each_unit(self, text: str, size: int) -> None:
        assert options(maxBytesPerTrigger=text).max_bytes == size
        assert options(maxPartitionBytes=text).partition_bytes == size

    def test_columns_limits_and_roots_are_read(self) -> None:
        actual = options(
            columns="a, b as c",
            changes="Files",
            ignoreMissingFiles="true",
            maxFilesPerTrigger="7",
            allowedRoots="s3://a,s3://b",
        )
        assert actual.columns == (Chosen("a"), Chosen("b", "c"))
        assert actual.rows.changes == "files"
        assert actual.skip_missing
        assert actual.max_files == 7
        assert actual.allowed_roots == ("s3://a", "s3://b")
        assert (
            options(maxVersionsPerTrigger="3").max_versions == options(max_versions_per_trigger="3").max_versions == 3
        )

    def test_filter_and_masks_are_read(self) -> None:
        actual = options(
            where="a > 1",
            excludeChangeTypes="delete, insert",
            **{"mask.b": "truncate:2", "Mask.C": '{"method": "hmac_sha256", "hmac_key": "sixteen letters!"}'},
        )
        assert str(actual.rows.shape.where) == "a > 1"
        assert actual.rows.shape.excluded == ("delete", "insert")
        assert actual.rows.shape.masks == (
            ("b", Mask("truncate", length=2)),
            ("c", Mask("hmac_sha256", key=b"sixteen letters!")),
        )
        assert "sixteen" not in repr(actual)

    def test_the_rest_is_refused_where_it_contradicts(self) -> None:
        for values in (
            {"where": "a >"},
            {"mask.a": "hide"},
            {"key": "a", "mask.A": "nullify"},
            {"netChanges": "true", "key": "a", "excludeChangeTypes": "delete"},
            {"key": "a", "columns": "b as a"},
        ):
            with pytest.raises(ConfigError):
                options(**values)

    def test_options_of_the_store_are_read_and_hidden(self) -> None:
        actual = options(**{"Storage.Endpoint_Url": "http://x", "storage.secret_access_key": "hunter2"})
        assert actual.storage == {"endpoint_url": "http://x", "secret_access_key": "hunter2"}
        assert "hunter2" not in repr(actual)

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"startVersion": "1"}, "unknown option 'startVersion'. Did you mean startingVersion?"),
            ({"endpoint_url": "x"}, "storage.<name> for the table's store"),
            ({"path": ""}, "no table is named"),
            (
                {"startingVersion": "x"},
                "startingVersion is 'x'. It is a version, -1 for the newest, or one of: latest, earliest, snapshot",
            ),
            ({"endingVersion": "snapshot"}, "endingVersion is 'snapshot'"),
            (
                {"startingVersion": "1", "startingTimestamp": "2026-01-01"},
                "startingVersion and startingTimestamp are both given",
            ),
            ({"startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday', which is not a time"),
            ({"maxFilesPerTrigger": "0"}, "maxFilesPerTrigger is '0'"),
            ({"maxFilesPerTrigger": "1k"}, "maxFilesPerTrigger is '1k'"),
            ({"maxBytesPerTrigger": "1x"}, "maxBytesPerTrigger is '1x'"),
            ({"maxBytesPerTrigger": "9" * 30}, "maxBytesPerTrigger"),
            ({"changes": "all"}, "One of: auto, cdf, files"),
            ({"columns": "a,,b"}, "columns is 'a,,b'"),
            ({"ignoreMissingFiles": "yes"}, "true or false"),
            ({"readChangeFeed": "false"}, "cdfd reads only changes"),
        ],
    )
    def test_wrong_option_is_named(self, values: dict[str, str], message: str) -> None:
        with pytest.raises(ConfigError) as caught:
            options(**values)
        assert message in str(caught.value)


class TestOffsets:
    def test_offset_as_json_is_read_back(self) -> None:
        beginning = Position("t", 3, phase="snapshot")
        offset = Offset(Position("t", 5, 2, ordinal=70), beginning.version, beginning.phase)
        actual = Offset.from_json(offset.to_json())
        assert actual == offset
        assert actual.first == beginning

    @pytest.mark.parametrize(
        "change", [{"version": -1}, {"part": True}, {"phase": "x"}, {"table_id": None}, {"ordinal": "1"}]
    )
    def test_offset_of_another_source_is_refused(self, change: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="not of a cdfd source"):
            Offset.from_json(Offset(Position("t", 3), 3, "stream").to_json() | change)
        with pytest.raises(ConfigError, match="not of a cdfd source"):
            Offset.from_json({"reservoirVersion": 3})


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ("2026-01-01", True),
        ("2026-01-01 12:30:00", True),
        ("2026-01-01T12:30:00Z", False),
        ("2026-01-01 12:30:00-05:00", False),
        ("1767225600000", False),
        ("1765110511154", False),  # Python reads it as a time of 1765
        ("1 hour ago", False),
    ],
)
def test_times_without_a_zone_are_warned_of(text: str, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    _warn_of_zone.cache_clear()
    options(startingTimestamp=text)
    assert ("startingTimestamp has no zone and is in UTC" in caplog.text) == warns


def test_options_of_delta_are_named_in_their_spelling() -> None:
    with pytest.raises(ConfigError, match="no option ignoreChanges"):
        options(ignorechanges="true")


def test_errors_have_a_short_traceback(tmp_path: Path) -> None:
    """Spark shows it, in front of the error."""
    with pytest.raises(NotATableError) as raised:
        CdfdSource({"path": str(tmp_path)}).schema()
    shown = traceback.format_exception(raised.value)
    assert [line for line in shown if "site-packages" in line or "asyncio" in line] == []
    assert len(raised.traceback) == 1  # of this test
    assert raised.value.__cause__ is None


def test_options_of_rows_are_read_as_they_were_written() -> None:
    shape = shape_of(
        "v > 1", ["id", {"name": "v", "as": "value"}], {"v": {"method": "hmac_sha256", "hmac_key": "k" * 16}}, "delete"
    )
    rows = RowOptions("files", "rows", ("id",), shape, drop_unchanged=True)
    assert all(getattr(rows, each.name) != each.default for each in fields(RowOptions))
    actual = SourceOptions.parse({"path": "t", **written(rows)})
    assert replace(actual.rows, shape=replace(actual.rows.shape, columns=actual.columns)) == rows
    assert SourceOptions.parse({"path": "t", **written(AS_STORED)}) == SourceOptions("t")
