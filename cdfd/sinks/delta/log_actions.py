"""The actions of a target's versions: its protocol and metadata, and new files. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cdfd.delta.protocol import COLUMN_MAPPING
from cdfd.delta.types import column_mapping, schema_string
from cdfd.delta.types.schema import ColumnMappingMode
from cdfd.delta.types.schema_merge import type_changes
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
from cdfd.sinks.delta.columns import Columns, parse_schema
from cdfd.sinks.delta.data_files import NewFile
from cdfd.sinks.delta.modes import Mode
from cdfd.sinks.ledger.txn_state import Action, TxnState

WIDENING = "delta.enableTypeWidening"


def evolution(state: TxnState, columns: Columns, mode: Mode, properties: Mapping[str, str]) -> list[Action]:
    """The actions that give a table other columns, the properties of its mode, and others."""
    widened = type_changes(columns.struct) > type_changes(parse_schema(state.metadata.schema_string))
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
    return [*actions, ("metaData", metadata_fields(metadata))]


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
