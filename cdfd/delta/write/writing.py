"""Content of log entries that a writer creates: fields of actions, and the protocol that a schema needs. Pure.

Source: specification, "Actions", "Writer Version Requirements" and the writer requirements of each feature.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from cdfd.delta.actions import DomainMetadata, Metadata, Protocol
from cdfd.delta.protocol import reader_features, row_tracking_enabled, writer_features
from cdfd.delta.types.datatypes import Primitive, PrimitiveName, StructType, fields_in, types_in
from cdfd.errors import LogError, UnsupportedError

Action = tuple[str, Mapping[str, Any]]
"""(name, fields), for `cdfd.delta.commit.serialize`."""

PLAIN = Protocol(1, 2)
"""The protocol of a table that needs no feature."""
TYPE_WIDENING = "typeWidening"
TIMESTAMP_NTZ = "timestampNtz"

_APPEND_HONOURED = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkpointProtection",
        "clustering",
        "deletionVectors",
        "domainMetadata",
        "inCommitTimestamp",
        "inCommitTimestamp-preview",
        "invariants",
        "checkConstraints",
        "columnMapping",
        "materializePartitionColumns",
        "rowTracking",
        TIMESTAMP_NTZ,
        TYPE_WIDENING,
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
        "variantShredding",
        "variantShredding-preview",
    }
)
"""Writer features that an append of rows honours, or that ask nothing of one."""
_CONSTRAINT = "delta.constraints."
_INVARIANTS = "delta.invariants"
_REFUSED_RULES = {
    "generatedColumns": "delta.generationExpression",
    "identityColumns": "delta.identity.",
}
"""Writer feature -> the key in a column's metadata that makes it a rule, which an append does not honour."""
_MAX_READER, _MAX_WRITER = 3, 7
_COMPRESSION = "delta.parquet.compression.codec"
_CODECS = {
    **{name: name for name in ("snappy", "zstd", "gzip", "brotli", "none")},
    **dict.fromkeys(("lz4", "lz4raw", "lz4_raw"), "lz4"),
    "uncompressed": "none",
}
"""The spellings of deployed writers -> pyarrow's name. Its `lz4` is the one that replaced Hadoop's in Parquet."""


def protocol_fields(protocol: Protocol) -> dict[str, Any]:
    """The fields of a `protocol` action."""
    fields: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
    }
    if protocol.reader_features is not None:
        fields["readerFeatures"] = sorted(protocol.reader_features)
    if protocol.writer_features is not None:
        fields["writerFeatures"] = sorted(protocol.writer_features)
    return fields


def metadata_fields(metadata: Metadata) -> dict[str, Any]:
    """The fields of a `metaData` action."""
    fields = {
        "id": metadata.id,
        "name": metadata.name,
        "description": metadata.description,
        "format": {"provider": metadata.format.provider, "options": dict(metadata.format.options)},
        "schemaString": metadata.schema_string,
        "partitionColumns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
        "createdTime": metadata.created_time,
    }
    return {name: value for name, value in fields.items() if value is not None}


def with_features(protocol: Protocol, readers: frozenset[str], writers: frozenset[str] = frozenset()) -> Protocol:
    """The protocol that also has these features. Features that the versions imply are listed then."""
    if readers <= reader_features(protocol) and writers <= writer_features(protocol):
        return protocol
    reading, writing = reader_features(protocol) | readers, writer_features(protocol) | readers | writers
    version = _MAX_READER if readers or protocol.reader_features is not None else protocol.min_reader_version
    return Protocol(version, _MAX_WRITER, reading if version == _MAX_READER else None, writing)


def features_of(struct: StructType) -> frozenset[str]:
    """The reader features that the types of a schema need."""
    return frozenset({TIMESTAMP_NTZ} if has_type(struct, "timestamp_ntz") else ())


def has_type(struct: StructType, name: PrimitiveName) -> bool:
    """Whether a column, or a value in one, has a type."""
    return Primitive(name) in types_in(struct)


def check_appendable(protocol: Protocol, struct: StructType) -> None:
    """Returns if rows may be appended to the table. Conditions for rows are not looked at: see `conditions`.

    Raises:
        UnsupportedError: naming each version, feature or rule that an append does not honour.
    """
    version = protocol.min_writer_version
    problems = [] if 1 <= version <= _MAX_WRITER else [f"writer version {version}"]
    needed = writer_features(protocol) | reader_features(protocol)
    refused = needed - _APPEND_HONOURED - {*_REFUSED_RULES}
    problems += [f"the feature {name}" for name in sorted(refused)]
    for child in fields_in(struct):
        for feature, key in _REFUSED_RULES.items():
            if any(name.startswith(key) for name in child.metadata):
                problems.append(f"{feature} in column {child.name!r:.80}")
    if problems:
        raise UnsupportedError(f"rows cannot be appended to the table: it has {', '.join(problems)}", hint=REMOVE)


REMOVE = "Remove that from the target, or deliver into another one"
"""The hint for a table that cannot be written."""


def conditions(metadata: Metadata, struct: StructType) -> dict[str, str]:
    """The conditions that each new row must fulfil: CHECK constraints and invariants, by a name for messages, as SQL.

    Raises:
        UnsupportedError: an invariant without an expression.
    """
    texts = {
        f"the CHECK constraint {key.removeprefix(_CONSTRAINT)!r:.80}": text
        for key, text in metadata.configuration.items()
        if key.startswith(_CONSTRAINT)
    }
    for child in fields_in(struct):
        if (text := child.metadata.get(_INVARIANTS)) is not None:
            try:
                expression = json.loads(text)["expression"]["expression"] if isinstance(text, str) else None
            except (ValueError, KeyError, TypeError):
                expression = None
            if not isinstance(expression, str):
                raise UnsupportedError(
                    f"rows cannot be appended to the table: column {child.name!r:.80} has an unknown invariant {text!r:.200}",
                    hint=REMOVE,
                )
            texts[f"the invariant of column {child.name!r:.80}"] = expression
    return texts


def compression(metadata: Metadata) -> str | None:
    """The codec that new data files of the table have, as pyarrow names it; None if the table does not say.

    Raises:
        UnsupportedError: cdfd does not know it.
    """
    name = metadata.configuration.get(_COMPRESSION)
    if name is None:
        return None
    if (codec := _CODECS.get(name.lower())) is None:
        raise UnsupportedError(f"rows cannot be appended to the table: it has {_COMPRESSION}={name!r:.80}", hint=REMOVE)
    return codec


def check_deletable(protocol: Protocol, metadata: Metadata) -> None:
    """Returns if rows of the table may be deleted.

    Raises:
        UnsupportedError: the table is append-only, or has row tracking: an updated row is a new one, and so would lose its id.
    """
    if gives_ids(protocol, metadata):
        raise UnsupportedError(
            "rows of the table cannot be deleted: it has row tracking, and updated rows would lose their ids",
            hint="Drop the table feature rowTracking of the target, or deliver into another one",
        )
    if metadata.configuration.get("delta.appendOnly", "false").lower() == "true":
        raise UnsupportedError(
            "rows of the table cannot be deleted: it has delta.appendOnly=true",
            hint="Unset that property of the target, or deliver into another one",
        )


# --- row tracking ---------------------------------------------------------------------------------
#
# The table feature `rowTracking` of deployed writers ("Row Tracking", "Writer Requirements for Row Tracking"). The rows of a file have the
# ids from `baseRowId` on. A domain keeps the highest id that was ever given:
#
#     rowIdHighWaterMark 99, files of 10 and 5 rows  ->  baseRowId 100 and 110, rowIdHighWaterMark 114

ROW_TRACKING = "rowTracking"
ROW_TRACKING_DOMAIN = "delta.rowTracking"
_HIGH_WATER_MARK = "rowIdHighWaterMark"
_SUSPENDED = "delta.rowTrackingSuspended"
ROW_IDS_PRESERVED = {"delta.rowTracking.preserved": "true"}
"""Tags of a commit that keeps the ids of rows that it copies."""


def gives_ids(protocol: Protocol, metadata: Metadata) -> bool:
    """Whether the rows of new files get ids: the table has the feature, even if it is not enabled, and it is not suspended."""
    return ROW_TRACKING in writer_features(protocol) and metadata.configuration.get(_SUSPENDED, "").lower() != "true"


def keeps_ids(protocol: Protocol, metadata: Metadata) -> bool:
    """Whether rows that are copied keep their ids: row tracking is enabled."""
    return gives_ids(protocol, metadata) and row_tracking_enabled(metadata)


def high_water_mark(domains: Mapping[str, DomainMetadata]) -> int:
    """The highest id that was given; -1: none.

    Raises:
        LogError: the domain's configuration has no such number.
    """
    domain = domains.get(ROW_TRACKING_DOMAIN)
    if domain is None:
        return -1
    try:
        mark = orjson.loads(domain.configuration)[_HIGH_WATER_MARK]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        mark = None
    if isinstance(mark, bool) or not isinstance(mark, int):
        raise LogError(f"the domain {ROW_TRACKING_DOMAIN} has no {_HIGH_WATER_MARK}: {domain.configuration!r:.200}")
    return mark


def with_row_ids(files: Sequence[tuple[Mapping[str, Any], int]], mark: int, version: int) -> list[Action]:
    """The `add` actions of new files, with ids after `mark`, and the domain with the next one.

    Args:
        files: the fields of each action, and the number of rows.
        mark: the highest id that was given.
        version: of the commit.
    """
    actions: list[Action] = []
    for fields, rows in files:
        actions.append(("add", {**fields, "baseRowId": mark + 1, "defaultRowCommitVersion": version}))
        mark += rows
    configuration = orjson.dumps({_HIGH_WATER_MARK: mark}).decode()
    return [
        *actions,
        ("domainMetadata", {"domain": ROW_TRACKING_DOMAIN, "configuration": configuration, "removed": False}),
    ]
