"""The actions of the Delta protocol as immutable values, parsed once at the edge.

Source: specification, "Actions" (draft 003) and, for row ids, domain metadata and sidecars, what deployed writers write.
Paths are URI-decoded exactly once when an action is parsed (`cdfd.delta.paths.decode`), so a `path` here is a plain path.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NO_VALUES: Mapping[str, Any] = {}
"""Shared by everything that has none. A plain dict, because plans pickle; nothing writes to it."""

PartitionValues = Mapping[str, str | None]
"""Physical column name -> serialized value; None is null (specification, "Partition Value Serialization")."""

FileKey = tuple[str, str | None]
"""The key of action reconciliation: (path, unique id of the deletion vector or None)."""


@dataclass(frozen=True, slots=True)
class DeletionVectorDescriptor:
    """The location and expected content of a deletion vector (specification, "Deletion Vectors").

    Attributes:
        storage_type: `u` (relative, path derived from a UUID), `p` (absolute path) or `i` (inline).
        path_or_inline: as in the log: Z85 text, or an absolute path.
        offset: start of the vector in its file, in bytes; None inline or where the writer left it out.
        size_in_bytes: of the serialized vector.
        cardinality: number of rows it removes.
    """

    storage_type: str
    path_or_inline: str
    offset: int | None
    size_in_bytes: int
    cardinality: int

    @property
    def unique_id(self) -> str:
        """Identifies the vector among all of one data file."""
        tail = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage_type}{self.path_or_inline}{tail}"


@dataclass(frozen=True, slots=True)
class Add:
    """A logical file that belongs to the table from this version on.

    `stats` are its statistics as the log has them, or its row count alone (`statistics.count_only`).
    `base_row_id` and `default_row_commit_version` are those of row tracking, as the log has them; None where it has none.
    `clustering_provider` is the implementation that clustered the file, and `tags` are notes of its writer. Both are read for writers only.
    """

    path: str
    partition_values: PartitionValues
    size: int
    modification_time: int
    data_change: bool
    stats: str | None = None
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    clustering_provider: str | None = None
    tags: Mapping[str, str | None] | None = None

    @property
    def key(self) -> FileKey:
        """The logical file: (path, unique id of its deletion vector)."""
        return self.path, None if self.deletion_vector is None else self.deletion_vector.unique_id


@dataclass(frozen=True, slots=True)
class Remove:
    """A logical file that no longer belongs to the table; a tombstone until it expires.

    `partition_values` is None where the writer left them out (`extendedFileMetadata` absent or false).
    `deletion_timestamp` is in milliseconds since the Unix epoch. `base_row_id` and `default_row_commit_version` are as in `Add`.
    """

    path: str
    deletion_timestamp: int | None
    data_change: bool
    partition_values: PartitionValues | None = None
    size: int | None = None
    deletion_vector: DeletionVectorDescriptor | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    tags: Mapping[str, str | None] | None = field(default=None, compare=False)

    @property
    def key(self) -> FileKey:
        """The logical file: (path, unique id of its deletion vector)."""
        return self.path, None if self.deletion_vector is None else self.deletion_vector.unique_id


@dataclass(frozen=True, slots=True)
class Cdc:
    """A change data file of this version."""

    path: str
    partition_values: PartitionValues
    size: int

    @property
    def key(self) -> FileKey:
        """Change data files have no deletion vectors."""
        return self.path, None


@dataclass(frozen=True, slots=True)
class Format:
    """Encoding of the data files; `parquet` in every table of today."""

    provider: str = "parquet"
    options: Mapping[str, str] = field(default_factory=lambda: NO_VALUES)


@dataclass(frozen=True, slots=True)
class Metadata:
    """The table's metadata; each `metaData` action replaces the one before."""

    id: str
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str]
    format: Format = Format()
    name: str | None = None
    description: str | None = None
    created_time: int | None = None


@dataclass(frozen=True, slots=True)
class Protocol:
    """The protocol versions and features that a client must implement. Feature sets are None if the action has none."""

    min_reader_version: int
    min_writer_version: int
    reader_features: frozenset[str] | None = None
    writer_features: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Txn:
    """The progress of an application (specification, "Transaction Identifiers"). `last_updated` in ms since the epoch."""

    app_id: str
    version: int
    last_updated: int | None = None


@dataclass(frozen=True, slots=True)
class DomainMetadata:
    """Named configuration of a feature; `removed` makes it a tombstone."""

    domain: str
    configuration: str
    removed: bool = False


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """Provenance, of which only what derivation needs is kept. Timestamps in ms since the epoch.

    `rows_preserved` is whether the writer kept the row ids of rows that it copied (`tags`, `delta.rowTracking.preserved`); None if it
    does not say.
    """

    timestamp: int | None = None
    in_commit_timestamp: int | None = None
    operation: str | None = None
    operation_metrics: Mapping[str, str] = field(default_factory=lambda: NO_VALUES)
    rows_preserved: bool | None = None


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A Parquet file of a V2 checkpoint that holds file actions; its name is relative to `_delta_log/_sidecars`."""

    path: str
    size_in_bytes: int
    modification_time: int
