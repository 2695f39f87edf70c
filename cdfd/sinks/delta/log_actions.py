"""The actions of a target's versions: its protocol and metadata, and new files. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdfd.delta import schema_string
from cdfd.delta.writing import TYPE_WIDENING, features_of, metadata_fields, protocol_fields, with_features
from cdfd.progress.txn_state import Action, TxnState
from cdfd.sinks.delta.data_files import Columns, NewFile

WIDENING = "delta.enableTypeWidening"


def evolution(state: TxnState, columns: Columns, *, widened: bool) -> list[Action]:
    """The actions that give the table these columns."""
    configuration = dict(state.metadata.configuration) | ({WIDENING: "true"} if widened else {})
    metadata = replace(
        state.metadata,
        schema_string=schema_string.serialize(columns.struct),
        partition_columns=columns.partition_by,
        configuration=configuration,
    )
    features = features_of(columns.struct) | ({TYPE_WIDENING} if widened else frozenset())
    protocol = with_features(state.protocol, frozenset(features))
    actions: list[Action] = [] if protocol == state.protocol else [("protocol", protocol_fields(protocol))]
    return [*actions, ("metaData", metadata_fields(metadata))]


def add_action(file: NewFile, partition_by: Sequence[str], now_ms: int) -> Action:
    """The `add` of a file that is written."""
    return "add", {
        "path": file.path,
        "partitionValues": dict(zip(partition_by, file.partition, strict=True)),
        "size": file.size,
        "modificationTime": now_ms,
        "dataChange": True,
        "stats": file.stats,
    }
