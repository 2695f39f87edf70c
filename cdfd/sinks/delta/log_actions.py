"""The modes of a target, a log of changes or a copy of the rows, and the actions of its versions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from cdfd.delta.protocol import COLUMN_MAPPING, DELETION_VECTORS
from cdfd.delta.types import column_mapping, schema_string
from cdfd.delta.types.arrow_types import from_arrow
from cdfd.delta.types.datatypes import StructType
from cdfd.delta.types.schema import ColumnMappingMode, mapping_mode
from cdfd.delta.types.schema_merge import nullable, type_changes
from cdfd.delta.write.clustering import clustering_changes
from cdfd.delta.write.writing import (
    TYPE_WIDENING,
    features_of,
    gives_ids,
    high_water_mark,
    metadata_fields,
    protocol_fields,
    with_features,
    with_row_ids,
)
from cdfd.model.columns import CHANGE_COLUMNS
from cdfd.sinks.delta.columns import Columns, parse_schema
from cdfd.sinks.delta.data_files import NewFile
from cdfd.sinks.ledger.txn_state import Action, TxnState

WIDENING: Final = "delta.enableTypeWidening"
CHANGE_FEED: Final = "delta.enableChangeDataFeed"


@dataclass(frozen=True, slots=True)
class Mode:
    """How rows are delivered into a table.

    Attributes:
        name: as in the settings.
        operation: of its versions, for `commitInfo`.
        deletes: whether it deletes rows.
        readers, writers: features that the table needs.
        properties: of the table.
        columns: of a table that was created before any row is known.
    """

    name: str
    operation: str
    deletes: bool = False
    readers: frozenset[str] = frozenset()
    writers: frozenset[str] = frozenset()
    properties: Mapping[str, str] = field(default_factory=dict)
    columns: StructType = field(default_factory=lambda: StructType(()))


CHANGELOG_MODE: Final = Mode("changelog", "WRITE", columns=nullable(from_arrow(pa.schema(CHANGE_COLUMNS))))


def mirror_mode(*, change_feed: bool) -> Mode:
    """A copy of the source's rows. `change_feed`: whether it has a change data feed."""
    properties = {"delta.enableDeletionVectors": "true"} | ({CHANGE_FEED: "true"} if change_feed else {})
    writers = frozenset({"changeDataFeed"}) if change_feed else frozenset[str]()
    return Mode("mirror", "MERGE", True, frozenset({DELETION_VECTORS}), writers, properties)


def evolution(
    state: TxnState, columns: Columns, mode: Mode, properties: Mapping[str, str], *, replaces: bool
) -> list[Action]:
    """The actions that give a table other columns, and properties: those of its mode, and these. `replaces`: all rows are replaced."""
    before = parse_schema(state.metadata.schema_string)
    widened = type_changes(columns.struct) > type_changes(before)
    mapped = column_mapping.properties(columns.mapping, columns.highest_id)
    configuration = {**state.metadata.configuration, **properties, **mode.properties, **mapped}
    if widened:
        configuration[WIDENING] = "true"
    metadata = replace(
        state.metadata,
        schema_string=schema_string.serialize(columns.struct),
        partition_columns=columns.partition_by,
        configuration=configuration,
    )
    features = set(protocol_features(columns)) | ({TYPE_WIDENING} if widened else set())
    protocol = with_features(state.protocol, frozenset(features) | mode.readers, mode.writers)
    actions: list[Action] = [] if protocol == state.protocol else [("protocol", protocol_fields(protocol))]
    clustering = clustering_changes(
        state.domains,
        (before, mapping_mode(state.metadata.configuration)),
        (columns.struct, columns.mapping),
        replaces=replaces,
    )
    return [*actions, ("metaData", metadata_fields(metadata)), *clustering]


def protocol_features(columns: Columns) -> frozenset[str]:
    """The reader features that a table of these columns needs."""
    mapping = frozenset() if columns.mapping is ColumnMappingMode.NONE else frozenset({COLUMN_MAPPING})
    return features_of(columns.struct) | mapping


def add_actions(
    state: TxnState, columns: Columns, files: Sequence[NewFile], now_ms: int, *, data_change: bool = True
) -> list[Action]:
    """The `add` actions of files that are written, in the version after `state`; with row ids if the table gives them.

    Args:
        state: the table before that version.
        columns: the columns in it.
        files: that are written.
        now_ms: the time.
        data_change: whether the rows are new, and not only rewritten.
    """
    names = columns.stored_partitions
    adds = [
        (
            file_fields(file, names, data_change=data_change) | {"modificationTime": now_ms, "stats": file.stats},
            file.rows,
        )
        for file in files
    ]
    if adds and gives_ids(state.protocol, state.metadata):
        return with_row_ids(adds, high_water_mark(state.domains), state.version + 1)
    return [("add", fields) for fields, _ in adds]


def file_fields(file: NewFile, partition_by: Sequence[str], *, data_change: bool) -> dict[str, object]:
    """The fields that the `add` and the `cdc` action of a file have. `partition_by`: the stored names of the partition columns."""
    values = dict(zip(partition_by, file.partition, strict=True))
    return {"path": file.path, "partitionValues": values, "size": file.size, "dataChange": data_change}
