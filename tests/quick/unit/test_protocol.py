import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.delta import protocol
from cdfd.delta.actions import Metadata, Protocol
from cdfd.delta.protocol import Feature
from cdfd.errors import LogError, UnsupportedError

GOLDEN = Path(__file__).parents[4] / "shared" / "golden"


UPGRADE = "A newer cdfd may read it; else drop the feature in the engine that writes it (ALTER TABLE ... DROP FEATURE)"
METADATA = "The table's metadata is not in its log"


def features(*names: str, writers: Iterable[str] = ()) -> Protocol:
    return Protocol(3, 7, frozenset(names), frozenset(names) | frozenset(writers))


def metadata(**configuration: str) -> Metadata:
    return Metadata("id", "{}", (), {f"delta.{key.replace('__', '.')}": value for key, value in configuration.items()})


class TestReadable:
    @pytest.mark.parametrize(
        "asked",
        [
            Protocol(1, 2),
            Protocol(1, 6),
            Protocol(2, 5),
            Protocol(3, 7),
            Protocol(1, 7, None, frozenset({"anything", "at", "all"})),
            Protocol(1, 99),
            Protocol(3, 7, frozenset(), frozenset()),
            Protocol(1, 2, frozenset(), frozenset()),
            Protocol(2, 7, frozenset({"columnMapping"}), frozenset({"columnMapping"})),
            features(writers=["unknownWriterFeature", "redirectWriterOnly-preview"]),
            *(features(name) for name in sorted(protocol.READER_FEATURES)),
        ],
    )
    def test_protocol_that_cdfd_reads_is_accepted(self, asked: Protocol) -> None:
        protocol.check_readable(asked)

    @pytest.mark.parametrize("check", [protocol.check_readable, protocol.check_writable])
    def test_commits_that_a_coordinator_has(self, check: Callable[[Protocol], None]) -> None:
        """A feature of writers, but the newest commits are not yet in the log that readers see."""
        with pytest.raises(UnsupportedError, match=r"writer feature coordinatedCommits-preview.*coordinator decides"):
            check(features(writers=["coordinatedCommits-preview"]))
        report = protocol.features_report(features(writers=["coordinatedCommits-preview"]), metadata())
        assert [(each.name, each.status) for each in report] == [("coordinatedCommits-preview", "refused")]

    @pytest.mark.parametrize("version", [-1, 0, 4, 2**31])
    def test_versions_out_of_range(self, version: int) -> None:
        with pytest.raises(UnsupportedError, match=f"reader version {version}"):
            protocol.check_readable(Protocol(version, 7, frozenset(), frozenset()))

    @pytest.mark.parametrize(
        "name",
        [
            "adaptiveMetadata-preview",
            "redirectReaderWriter-preview",
            "fromTheFuture",
            "DeletionVectors",
        ],
    )
    def test_refused_by_name_with_a_hint(self, name: str) -> None:
        with pytest.raises(UnsupportedError, match=name) as caught:
            protocol.check_readable(features("deletionVectors", name))
        assert caught.value.hint
        assert "deletionVectors" not in str(caught.value)

    def test_every_problem_is_named(self) -> None:
        with pytest.raises(UnsupportedError) as caught:
            protocol.check_readable(Protocol(9, 7, frozenset({"b", "a", "adaptiveMetadata-preview"}), frozenset()))
        assert "reader version 9" in caught.value.what
        assert (
            "the reader feature a, the reader feature adaptiveMetadata-preview and the reader feature b"
            in caught.value.what
        )
        assert METADATA in str(caught.value.hint)

    @pytest.mark.parametrize(
        ("asked", "hint"),
        [
            (features("fromTheFuture"), UPGRADE),
            (features("fromTheFuture", "andAnother"), UPGRADE),
            (Protocol(4, 7, frozenset(), frozenset()), UPGRADE),
            (Protocol(4, 7, frozenset({"fromTheFuture"}), frozenset()), UPGRADE),
            (features("adaptiveMetadata-preview"), METADATA),
            (features("redirectReaderWriter-preview"), "The table is redirected to another one; follow that one"),
            (features("adaptiveMetadata-preview", "fromTheFuture"), f"{METADATA}. {UPGRADE}"),
        ],
    )
    def test_says_whether_an_upgrade_helps(self, asked: Protocol, hint: str) -> None:
        """A newer version may know a feature; none reads a table whose commits are not in its log."""
        with pytest.raises(UnsupportedError) as caught:
            protocol.check_readable(asked)
        assert caught.value.hint == hint
        assert str(caught.value).endswith(f". {hint}")

    def test_list_beside_an_old_version_counts(self) -> None:
        with pytest.raises(UnsupportedError, match="fromTheFuture"):
            protocol.check_readable(Protocol(1, 2, frozenset({"fromTheFuture"})))

    @given(st.integers(-5, 9), st.none() | st.frozensets(st.sampled_from(["columnMapping", "v2Checkpoint", "x"])))
    def test_readable_only_if_all_is_known(self, version: int, names: frozenset[str] | None) -> None:
        asked = Protocol(version, 7, names)
        if version in (1, 2, 3) and "x" not in (names or ()):
            protocol.check_readable(asked)
        else:
            with pytest.raises(UnsupportedError):
                protocol.check_readable(asked)


class TestWritable:
    @pytest.mark.parametrize(
        "asked",
        [
            *(Protocol(1, version) for version in range(1, 7)),
            Protocol(2, 5),
            Protocol(3, 7),
            *(features(writers=[name]) for name in sorted(protocol.WRITER_FEATURES)),
        ],
    )
    def test_protocol_that_cdfd_writes_is_accepted(self, asked: Protocol) -> None:
        protocol.check_writable(asked)

    def test_the_features_are_those_that_were_looked_at(self) -> None:
        """Add a feature here once you know that a commit of `txn` and `commitInfo` honours it."""
        assert {
            *("allowColumnDefaults", "appendOnly", "changeDataFeed", "checkConstraints", "checkpointProtection"),
            *("clustering", "domainMetadata", "generatedColumns", "icebergCompatV1", "icebergCompatV2"),
            *("icebergCompatV3", "icebergWriterCompatV1", "icebergWriterCompatV3", "identityColumns"),
            *("inCommitTimestamp", "inCommitTimestamp-preview", "invariants", "materializePartitionColumns"),
            "rowTracking",
        } == protocol.WRITER_FEATURES - protocol.READER_FEATURES
        assert protocol.READER_FEATURES - protocol.CATALOG_MANAGED <= protocol.WRITER_FEATURES

    @pytest.mark.parametrize(
        "asked",
        [
            Protocol(1, 0),
            Protocol(1, 8),
            features(writers=["redirectWriterOnly-preview"]),
            features(writers=["fromTheFuture"]),
            Protocol(1, 2, None, frozenset({"fromTheFuture"})),
        ],
    )
    def test_refused_in_favour_of_a_ledger(self, asked: Protocol) -> None:
        with pytest.raises(UnsupportedError, match="writer") as caught:
            protocol.check_writable(asked)
        ledger = "Keep progress in a ledger of its own: set `progress.ledger` to a folder or bucket prefix"
        assert caught.value.hint == ledger
        assert str(caught.value).endswith(f". {ledger}")

    def test_what_cannot_be_read_cannot_be_written(self) -> None:
        with pytest.raises(UnsupportedError, match="adaptiveMetadata-preview"):
            protocol.check_writable(features("adaptiveMetadata-preview"))

    @pytest.mark.parametrize("name", sorted(protocol.CATALOG_MANAGED))
    def test_table_of_a_catalog_is_not_written(self, name: str) -> None:
        with pytest.raises(UnsupportedError, match=f"writer feature {name}"):
            protocol.check_writable(features(name))


class TestManaged:
    """Tables whose commits a catalog decides."""

    TIMED = metadata(enableInCommitTimestamps="true")

    @pytest.mark.parametrize("name", sorted(protocol.CATALOG_MANAGED))
    def test_without_its_catalog_it_is_refused_by_name(self, name: str) -> None:
        with pytest.raises(UnsupportedError, match=rf"reader feature {name}\b.*uc://catalog\.schema\.table"):
            protocol.check_managed(features(name), self.TIMED, by_catalog=False)
        protocol.check_managed(features(name), self.TIMED, by_catalog=True)

    def test_other_tables_need_no_catalog(self) -> None:
        protocol.check_managed(features("deletionVectors"), metadata(), by_catalog=False)

    def test_in_commit_timestamps_are_mandatory(self) -> None:
        with pytest.raises(LogError, match="in-commit timestamps are not enabled"):
            protocol.check_managed(features("catalogManaged"), metadata(), by_catalog=True)


class TestFeatures:
    @pytest.mark.parametrize(
        ("asked", "readers", "writers"),
        [
            (Protocol(1, 1), "", ""),
            (Protocol(1, 2), "", "appendOnly invariants"),
            (
                Protocol(2, 5),
                "columnMapping",
                "appendOnly invariants checkConstraints changeDataFeed generatedColumns columnMapping",
            ),
            (
                Protocol(3, 7),
                "columnMapping deletionVectors",
                "appendOnly invariants checkConstraints changeDataFeed generatedColumns columnMapping identityColumns "
                "deletionVectors",
            ),
            (features("v2Checkpoint"), "v2Checkpoint", "v2Checkpoint"),
            (Protocol(3, 7, frozenset(), frozenset()), "", ""),
            (
                Protocol(2, 7, None, frozenset({"columnMapping"})),
                "columnMapping",
                "columnMapping",
            ),
        ],
    )
    def test_features_are_listed_or_implied_by_the_version(self, asked: Protocol, readers: str, writers: str) -> None:
        assert protocol.reader_features(asked) == frozenset(readers.split())
        assert protocol.writer_features(asked) == frozenset(writers.split())


class TestMetadata:
    def test_nothing_is_on_by_default(self) -> None:
        plain = metadata()
        assert not protocol.cdf_enabled(plain)
        assert not protocol.in_commit_timestamps_enabled(plain)

    def test_switch_is_on_in_each_spelling_of_true(self) -> None:
        assert protocol.cdf_enabled(metadata(enableChangeDataFeed="true"))
        assert protocol.cdf_enabled(metadata(enableChangeDataFeed="TRUE"))
        assert protocol.cdf_enabled(metadata(enableChangeDataCapture="true"))
        assert not protocol.cdf_enabled(metadata(enableChangeDataFeed="false"))
        assert not protocol.cdf_enabled(metadata(enableChangeDataFeed="yes"))
        assert protocol.in_commit_timestamps_enabled(metadata(enableInCommitTimestamps="true"))
        assert protocol.in_commit_timestamps_enabled(
            Metadata("id", "{}", (), {"delta.enableInCommitTimestamps-preview": "true"})
        )


class TestReport:
    def test_readers_first_and_what_stops_us(self) -> None:
        asked = features(
            "v2Checkpoint", "catalogManaged", "columnMapping", writers=["changeDataFeed", "appendOnly", "new"]
        )
        report = protocol.features_report(asked, metadata(columnMapping__mode="name", enableChangeDataFeed="true"))
        assert report == [
            Feature("catalogManaged", "reader", "refused"),
            Feature("columnMapping", "reader", "supported", enabled=True),
            Feature("v2Checkpoint", "reader", "supported"),
            Feature("appendOnly", "writer", "ignored", enabled=False),
            Feature("changeDataFeed", "writer", "supported", enabled=True),
            Feature("new", "writer", "ignored"),
        ]

    def test_feature_of_a_catalog_is_supported_by_its_name(self) -> None:
        [report] = protocol.features_report(features("catalogManaged"), metadata(), by_catalog=True)
        assert report == Feature("catalogManaged", "reader", "supported")

    def test_versions_stand_for_features(self) -> None:
        names = [feature.name for feature in protocol.features_report(Protocol(1, 4), metadata())]
        assert names == ["appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns", "invariants"]


@pytest.mark.skipif(not GOLDEN.exists(), reason="golden tables are not here")
def test_protocols_of_real_tables() -> None:
    seen = set()
    for entry in (*(GOLDEN / "cdf").rglob("*.json"), *(GOLDEN / "snapshot").rglob("*.json")):
        listed = re.search(r'"readerFeatures":\[([^\]]*)\]', entry.read_text())
        if listed:
            names = frozenset(re.findall(r'"([^"]+)"', listed[1]))
            protocol.check_readable(features(*names))
            seen |= names
    assert {"deletionVectors", "columnMapping", "v2Checkpoint", "timestampNtz", "vacuumProtocolCheck"} <= seen


@pytest.mark.parametrize(
    ("of", "has"),
    [
        (features("deletionVectors"), True),
        (features("columnMapping", "deletionVectors"), True),
        (features("columnMapping"), False),
        (Protocol(2, 5), False),
    ],
)
def test_files_have_deletion_vectors_if_the_feature_is_named(of: Protocol, has: bool) -> None:
    assert protocol.has_deletion_vectors(of) is has
