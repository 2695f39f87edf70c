"""Checkpoints of one file, classic and V2, in Spark's layout. Pure.

Source: specification, "Checkpoints", "Classic Checkpoint" and "Checkpoint Schema"; V2 checkpoints as deployed writers have them.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cdfd.delta import paths
from cdfd.delta.actions import Protocol
from cdfd.delta.last_checkpoint import LastCheckpoint, V2Checkpoint
from cdfd.delta.protocol import reader_features, writer_features
from cdfd.delta.snapshot import Snapshot
from cdfd.delta.write.checkpoint_structs import parsed_partitions, parsed_statistics
from cdfd.delta.write.writing import metadata_fields, protocol_fields
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of, scalar_of

V2 = "v2Checkpoint"
_COMPLETE = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "inCommitTimestamp",
        "inCommitTimestamp-preview",
        "invariants",
        "materializePartitionColumns",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        V2,
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
"""Features whose state a `Snapshot` with all fields of files has completely."""


def can_checkpoint(protocol: Protocol) -> bool:
    """Whether `checkpoint` is complete for tables of this protocol: no feature has state that a `Snapshot` leaves out."""
    return reader_features(protocol) | writer_features(protocol) <= _COMPLETE


def checkpoint(state: Snapshot, now_ms: int = 0, *, v2_name: str | None = None) -> tuple[bytes, LastCheckpoint]:
    """The file of a checkpoint, and its `_last_checkpoint`.

    Args:
        state: with statistics, tombstones, and all fields of files.
        now_ms: the time at which tombstones may have expired; 0: none has.
        v2_name: the name of the file, if it is a V2 checkpoint.
    """
    rows: list[dict[str, Any]] = [
        {"protocol": protocol_fields(state.protocol)},
        {"metaData": metadata_fields(state.metadata)},
    ]
    for each in sorted(state.txns.values(), key=lambda each: each.app_id):
        rows.append({"txn": {"appId": each.app_id, "version": each.version, "lastUpdated": each.last_updated}})
    for domain in sorted(state.domains.values(), key=lambda each: each.domain):
        fields = {"domain": domain.domain, "configuration": domain.configuration, "removed": False}
        rows.append({"domainMetadata": fields})
    adds, removes = state.live().table, state.tombstones(now_ms).table
    if not state.metadata.partition_columns:
        adds, removes = _without_partitions(adds), _without_partitions(removes)
    structs = _structs(state, adds)
    left_out = state.metadata.configuration.get("delta.checkpoint.writeStatsAsJson", "true").lower() == "false"
    of_adds = [(name, kind) for name, kind in _COLUMNS["add"] if not (left_out and name == "stats")]
    columns = {**_COLUMNS, "add": [*of_adds, *((name, array.type) for name, array in structs.items())]}
    layout = pa.schema([(name, pa.struct(fields)) for name, fields in columns.items()])
    table = pa.concat_tables(
        [
            pa.Table.from_pylist(rows, schema=layout),
            _files("add", adds, {"modificationTime": "time", **_OF_ADDS}, layout, structs),
            _files("remove", removes, {"deletionTimestamp": "time", **_OF_REMOVES}, layout, {}),
        ]
    )
    if v2_name is not None:
        # The row that makes it a V2 checkpoint. All actions are in this file: there are no sidecars.
        kind = pa.struct([("version", pa.int64()), ("tags", _PAIRS)])
        row = pa.table({"checkpointMetadata": array_of([{"version": state.version, "tags": None}], kind)})
        table = pa.concat_tables([row, table], promote_options="default")
    from pyarrow import parquet  # imports Arrow's file systems, S3 among them, which a daemon does not need

    buffer = io.BytesIO()
    # Without Arrow's copy of the schema, which other readers do not need.
    parquet.write_table(table, buffer, store_schema=False)
    v2 = None if v2_name is None else V2Checkpoint(v2_name, buffer.tell(), now_ms)
    hint = LastCheckpoint(
        state.version, len(table), size_in_bytes=buffer.tell(), num_of_add_files=len(adds), v2_checkpoint=v2
    )
    return buffer.getvalue(), hint


def _structs(state: Snapshot, adds: pa.Table) -> dict[str, pa.Array]:
    """The columns of typed statistics and partition values, if the table has them."""
    if state.metadata.configuration.get("delta.checkpoint.writeStatsAsStruct", "false").lower() != "true":
        return {}
    schema = state.header.schema
    stats = parsed_statistics(_flat(adds.column("stats")), schema, state.metadata.configuration)
    if not schema.partition_columns:
        return {"stats_parsed": stats}
    return {
        "partitionValues_parsed": parsed_partitions(_flat(adds.column("partition_values")), schema),
        "stats_parsed": stats,
    }


def _files(
    kind: str, files: pa.Table, more: Mapping[str, str], layout: pa.Schema, structs: Mapping[str, pa.Array]
) -> pa.Table:
    """File actions as rows of a checkpoint. They have no `dataChange` of their own commit: that of a checkpoint is without effect."""
    own = {"partitionValues": "partition_values", "size": "size", **more}
    flat = files.combine_chunks()
    columns, fields = [], list(layout.field(kind).type)
    for name, type_ in ((field.name, field.type) for field in fields):
        if name in structs:
            columns.append(structs[name])
        elif name == "path":
            columns.append(paths.encode_column(_flat(flat.column("path"))).cast(type_))
        elif name == "tags" and kind == "remove":
            # A `remove` with the fields of its file has this one too.
            column = _flat(flat.column(name)).cast(type_) if name in flat.schema.names else pa.nulls(len(flat), type_)
            columns.append(pc.coalesce(column, scalar_of([], type_)))
        elif name in own and own[name] in flat.schema.names:
            columns.append(_flat(flat.column(own[name])).cast(type_))
        elif name == "dataChange":
            columns.append(pa.repeat(kind == "add", len(flat)))
        elif name == "deletionVector":
            columns.append(_vectors(_flat(flat.column("deletion_vector"))))
        elif name == "extendedFileMetadata":
            columns.append(pc.and_(*(_flat(flat.column(part)).is_valid() for part in ("partition_values", "size"))))
        else:
            columns.append(pa.nulls(len(flat), type_))
    rows = pa.StructArray.from_arrays(columns, fields=fields)
    return pa.table([rows if each.name == kind else pa.nulls(len(flat), each.type) for each in layout], layout)


def _without_partitions(files: pa.Table) -> pa.Table:
    """Files with no partition values, which another checkpoint may have as null: readers want an empty map."""
    place = files.schema.get_field_index("partition_values")
    nothing = array_of([], _PAIRS.key_type)
    empty = pa.MapArray.from_arrays(array_of(np.zeros(len(files) + 1, np.int32)), nothing, nothing)
    return files.set_column(place, "partition_values", empty)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks)
        if column.num_chunks
        else pa.nulls(0, column.type)
    )


def _vectors(vectors: pa.StructArray) -> pa.StructArray:
    arrays = [
        pa.nulls(len(vectors), type_) if name == "maxRowIndex" else pc.struct_field(vectors, name).cast(type_)
        for name, type_ in _VECTOR
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(pa.struct(_VECTOR)), mask=vectors.is_null())


_PAIRS = pa.map_(pa.string(), pa.string())
_STRINGS = pa.list_(pa.string())
_VECTOR: Sequence[tuple[str, pa.DataType]] = [
    ("storageType", pa.string()),
    ("pathOrInlineDv", pa.string()),
    ("offset", pa.int32()),
    ("sizeInBytes", pa.int32()),
    ("cardinality", pa.int64()),
    ("maxRowIndex", pa.int64()),
]
_ROW_IDS: Sequence[tuple[str, pa.DataType]] = [("baseRowId", pa.int64()), ("defaultRowCommitVersion", pa.int64())]
_OF_REMOVES = {
    "baseRowId": "base_row_id",
    "defaultRowCommitVersion": "default_row_commit_version",
    "tags": "tags",
}
_OF_ADDS = {"stats": "stats", "clusteringProvider": "clustering_provider", **_OF_REMOVES}
_COLUMNS: Mapping[str, Sequence[tuple[str, pa.DataType]]] = {
    "txn": [("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())],
    "add": [
        ("path", pa.string()),
        ("partitionValues", _PAIRS),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("tags", _PAIRS),
        ("deletionVector", pa.struct(_VECTOR)),
        *_ROW_IDS,
        ("clusteringProvider", pa.string()),
        ("stats", pa.string()),
    ],
    "remove": [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()),
        ("partitionValues", _PAIRS),
        ("size", pa.int64()),
        ("tags", _PAIRS),
        ("deletionVector", pa.struct(_VECTOR)),
        *_ROW_IDS,
    ],
    "metaData": [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", _PAIRS)])),
        ("schemaString", pa.string()),
        ("partitionColumns", _STRINGS),
        ("configuration", _PAIRS),
        ("createdTime", pa.int64()),
    ],
    "protocol": [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", _STRINGS),
        ("writerFeatures", _STRINGS),
    ],
    "domainMetadata": [("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())],
}
