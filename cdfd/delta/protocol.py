"""Table protocol: the features that a table requires, and those that cdfd supports. Unknown features are errors that name them.

Source: specification, "Protocol Evolution", "Reader Requirements" and "Writer Version Requirements"; the features
that came after the drafts are those of deployed writers.
"""

from dataclasses import dataclass
from typing import Literal

from cdfd.delta.actions import Metadata, Protocol
from cdfd.errors import LogError, UnsupportedError

COLUMN_MAPPING = "columnMapping"
DELETION_VECTORS = "deletionVectors"
IN_COMMIT_TIMESTAMP = "inCommitTimestamp"

CATALOG_MANAGED = frozenset({"catalogManaged", "catalogOwned", "catalogOwned-preview"})
"""The feature of tables whose commits a catalog decides, and its names during the preview."""

READER_FEATURES = CATALOG_MANAGED | frozenset(
    {
        COLUMN_MAPPING,
        DELETION_VECTORS,
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "geospatial",
        "timestampNanos",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
        "variantShredding",
        "variantShredding-preview",
    }
)
"""Reader features that are honoured."""

_BY_NAME = (
    "A catalog decides the commits of this table, not the files in its log. Name the table as its catalog does: "
    "uc://catalog.schema.table"
)
_COORDINATED = "A commit coordinator decides the commits of this table. Its successor is the feature catalogManaged, which cdfd reads"
_REFUSED = {
    **dict.fromkeys(CATALOG_MANAGED, _BY_NAME),
    "coordinatedCommits-preview": _COORDINATED,
    "adaptiveMetadata-preview": "The table's metadata is not in its log",
    "redirectReaderWriter-preview": "The table is redirected to another one; follow that one",
}
"""Known features that cdfd does not support -> the hint for the user."""
_REFUSED_WRITER_FEATURES = frozenset({"coordinatedCommits-preview"})
"""Features of writers without which a reader misses the newest commits."""

_NEWER = "A newer cdfd may read it; else drop the feature in the engine that writes it (ALTER TABLE ... DROP FEATURE)"

WRITER_FEATURES = (READER_FEATURES - CATALOG_MANAGED) | frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "clustering",
        "domainMetadata",
        "generatedColumns",
        "icebergCompatV1",
        "icebergCompatV2",
        "icebergCompatV3",
        "icebergWriterCompatV1",
        "icebergWriterCompatV3",
        "identityColumns",
        IN_COMMIT_TIMESTAMP,
        f"{IN_COMMIT_TIMESTAMP}-preview",
        "invariants",
        "materializePartitionColumns",
        "rowTracking",
    }
)
"""Writer features that a commit of nothing but `txn` and `commitInfo` can honour.

Such a commit adds no rows and no files, changes no schema, writes no checkpoint and cleans nothing up, so that what
most features ask of a writer does not arise. One does: with `inCommitTimestamp` enabled the first action must be a
`commitInfo` whose `inCommitTimestamp` is greater than that of the version before.
"""

_IMPLIED_BY_READER = ((2, COLUMN_MAPPING), (3, DELETION_VECTORS))
_IMPLIED_BY_WRITER = (
    (2, "appendOnly"),
    (2, "invariants"),
    (3, "checkConstraints"),
    (4, "changeDataFeed"),
    (4, "generatedColumns"),
    (5, COLUMN_MAPPING),
    (6, "identityColumns"),
    (7, DELETION_VECTORS),
)
_MAX_READER = 3
_MAX_WRITER = 7


def reader_features(protocol: Protocol) -> frozenset[str]:
    """Features that a reader must honour: those listed, else those that the version stands for.

    Reader version 3 without a list is the draft of 2022: deletion vectors. A list beside a version below 3 has no
    business there, but what it names still counts.
    """
    listed = protocol.reader_features or frozenset()
    return listed | _implied_features(_IMPLIED_BY_READER, protocol.min_reader_version, protocol.reader_features is None)


def writer_features(protocol: Protocol) -> frozenset[str]:
    """Features that a writer must honour: those listed, else those that the version stands for."""
    listed = protocol.writer_features or frozenset()
    return listed | _implied_features(_IMPLIED_BY_WRITER, protocol.min_writer_version, protocol.writer_features is None)


def _implied_features(table: tuple[tuple[int, str], ...], version: int, unlisted: bool) -> frozenset[str]:
    """The features that a version implies; the highest version implies none, because it lists its features."""
    listing = table[-1][0]
    return frozenset(name for least, name in table if least <= version and (unlisted or version < listing))


def check_readable(protocol: Protocol) -> None:
    """Returns if every row of a table with this protocol can be read right.

    Raises:
        UnsupportedError: naming every reader version or feature that is not honoured.
    """
    version = protocol.min_reader_version
    refused = sorted(reader_features(protocol) - READER_FEATURES)
    problems = [] if 1 <= version <= _MAX_READER else [f"reader version {version} (1 to {_MAX_READER} are implemented)"]
    problems += [f"the reader feature {name}" for name in refused]
    for writers in sorted(writer_features(protocol) & _REFUSED_WRITER_FEATURES):
        problems.append(f"the writer feature {writers}")
        refused.append(writers)
    if problems:
        hints = dict.fromkeys(_REFUSED.get(name, _NEWER) for name in refused)
        hint = ". ".join(hints) or _NEWER
        raise UnsupportedError(f"the table requires {_enumerate(problems)}", hint=hint)


def check_managed(protocol: Protocol, metadata: Metadata, *, by_catalog: bool) -> None:
    """Returns if the commits that are read are those of the table.

    Args:
        protocol, metadata: of the table.
        by_catalog: whether the commits are those that a catalog has ratified.

    Raises:
        UnsupportedError: a catalog decides the table's commits, and they were read without it.
        LogError: the table has no in-commit timestamps, which catalog-managed tables must have: times of published files mean nothing.
    """
    managed = sorted(reader_features(protocol) & CATALOG_MANAGED)
    if managed and not by_catalog:
        raise UnsupportedError(f"the table requires the reader feature {managed[0]}", hint=_BY_NAME)
    if managed and not in_commit_timestamps_enabled(metadata):
        raise LogError(
            "a catalog manages the table, but in-commit timestamps are not enabled",
            hint="Its writer has broken Delta's protocol: set the table property delta.enableInCommitTimestamps",
        )


def check_writable(protocol: Protocol) -> None:
    """Returns if a commit of nothing but `txn` and `commitInfo` may be written to a table with this protocol.

    See `WRITER_FEATURES` for what such a commit must heed.

    Raises:
        UnsupportedError: naming every reader or writer version or feature that is not honoured.
    """
    check_readable(protocol)
    version = protocol.min_writer_version
    refused = sorted(writer_features(protocol) - WRITER_FEATURES)
    problems = [] if 1 <= version <= _MAX_WRITER else [f"writer version {version} (1 to {_MAX_WRITER} are implemented)"]
    problems += [f"the writer feature {name}" for name in refused]
    if problems:
        raise UnsupportedError(
            f"progress cannot be written into the table: it requires {_enumerate(problems)}",
            hint="Keep progress in a ledger of its own: set `progress.ledger` to a folder or bucket prefix",
        )


def _enumerate(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


# --- what the metadata switches on ----------------------------------------------------------------

_SWITCHES = {
    "appendOnly": ("delta.appendOnly",),
    "changeDataFeed": ("delta.enableChangeDataFeed", "delta.enableChangeDataCapture"),
    DELETION_VECTORS: ("delta.enableDeletionVectors",),
    "icebergCompatV1": ("delta.enableIcebergCompatV1",),
    "icebergCompatV2": ("delta.enableIcebergCompatV2",),
    IN_COMMIT_TIMESTAMP: ("delta.enableInCommitTimestamps", "delta.enableInCommitTimestamps-preview"),
    f"{IN_COMMIT_TIMESTAMP}-preview": ("delta.enableInCommitTimestamps-preview",),
    "rowTracking": ("delta.enableRowTracking",),
    "typeWidening": ("delta.enableTypeWidening",),
    "typeWidening-preview": ("delta.enableTypeWidening",),
    "variantShredding": ("delta.enableVariantShredding",),
}
"""Feature -> table properties that switch it on."""


def cdf_enabled(metadata: Metadata) -> bool:
    """Whether writers record change data files (`delta.enableChangeDataFeed`, or its name during the preview)."""
    return _switched_on("changeDataFeed", metadata)


def row_tracking_enabled(metadata: Metadata) -> bool:
    """Whether every row has a stable id (`delta.enableRowTracking`)."""
    return _switched_on("rowTracking", metadata)


def in_commit_timestamps_enabled(metadata: Metadata) -> bool:
    """Whether every commit carries its own timestamp (`commitInfo.inCommitTimestamp`)."""
    return _switched_on(IN_COMMIT_TIMESTAMP, metadata)


def may_have_in_commit_timestamps(protocol: Protocol, metadata: Metadata) -> bool:
    """Whether commits carry their own timestamp, or earlier ones may have done so."""
    features = {IN_COMMIT_TIMESTAMP, f"{IN_COMMIT_TIMESTAMP}-preview"}
    return in_commit_timestamps_enabled(metadata) or not features.isdisjoint(writer_features(protocol))


def _switched_on(feature: str, metadata: Metadata) -> bool:
    return any(metadata.configuration.get(key, "").lower() == "true" for key in _SWITCHES[feature])


# --- for people -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Feature:
    """One table feature as `inspect` shows it.

    Attributes:
        name: as in the protocol.
        kind: `reader` if readers must honour it, `writer` if only writers must.
        status: `supported`; `refused`, which stops us; `ignored` for what only concerns writers.
        enabled: whether the table's metadata switches it on; None where it has no switch.
    """

    name: str
    kind: Literal["reader", "writer"]
    status: Literal["supported", "refused", "ignored"]
    enabled: bool | None = None


_READ_THOUGH_WRITER = frozenset({"changeDataFeed", IN_COMMIT_TIMESTAMP, f"{IN_COMMIT_TIMESTAMP}-preview"})
"""Writer features whose traces are read: change data files and timestamps."""


def features_report(protocol: Protocol, metadata: Metadata, *, by_catalog: bool = False) -> list[Feature]:
    """Every feature of the table, listed or implied by a version: those of readers first, each kind by name.

    `by_catalog` is as for `check_managed`.
    """
    readers = reader_features(protocol)
    readable = READER_FEATURES if by_catalog else READER_FEATURES - CATALOG_MANAGED
    report = [
        Feature(name, "reader", "supported" if name in readable else "refused", _is_enabled(name, metadata))
        for name in sorted(readers)
    ]
    for name in sorted(writer_features(protocol) - readers):
        status: Literal["supported", "refused", "ignored"] = "ignored"
        if name in _REFUSED_WRITER_FEATURES:
            status = "refused"
        elif name in _READ_THOUGH_WRITER:
            status = "supported"
        report.append(Feature(name, "writer", status, _is_enabled(name, metadata)))
    return report


def _is_enabled(feature: str, metadata: Metadata) -> bool | None:
    if feature == COLUMN_MAPPING:
        return metadata.configuration.get("delta.columnMapping.mode", "none").lower() != "none"
    return _switched_on(feature, metadata) if feature in _SWITCHES else None


def has_deletion_vectors(protocol: Protocol) -> bool:
    """Whether files of the table may have deletion vectors."""
    named = protocol.reader_features
    return protocol.min_reader_version >= 3 and (not named or "deletionVectors" in named)
