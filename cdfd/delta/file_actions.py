"""The log actions by which a writer deletes rows of data files: the file as it was is removed, and added with a deletion vector. Pure.

Source: specification, "Add File and Remove File", "Deletion Vectors" and "Per-file Statistics".
"""

import json
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa

from cdfd.delta import paths
from cdfd.delta.actions import Add, DeletionVectorDescriptor
from cdfd.delta.write.writing import Action
from cdfd.runtime.arrays import array_of


def removals(files: Sequence[Add], now_ms: int, *, data_change: bool = True) -> list[Action]:
    """The `remove` of each file. `data_change`: whether its rows are deleted, and not only rewritten."""
    return [
        ("remove", _remove_of(add, path, now_ms) | {"dataChange": data_change})
        for add, path in zip(files, _encode(files), strict=True)
    ]


def replacements(files: Sequence[tuple[Add, DeletionVectorDescriptor, int]], now_ms: int) -> list[Action]:
    """For each file, the `remove` with its present deletion vector, and the `add` with another one.

    Bounds in statistics are wide from then on: the rows that have the smallest and largest values may be deleted. The number of rows is there
    even if the writer of the file left it out, because the protocol demands it with a deletion vector.

    Args:
        files: with their new deletion vector, and how many rows they have, with deleted ones.
        now_ms: the time.
    """
    adds = [add for add, *_ in files]
    actions: list[Action] = []
    for (add, vector, rows), path in zip(files, _encode(adds), strict=True):
        fields: dict[str, Any] = {
            "path": path,
            "partitionValues": dict(add.partition_values),
            "size": add.size,
            "modificationTime": add.modification_time,
            "dataChange": True,
            "deletionVector": vector_fields(vector),
            "stats": _wide(add.stats, rows),
        }
        if add.clustering_provider is not None:
            fields["clusteringProvider"] = add.clustering_provider
        if add.tags is not None:
            fields["tags"] = dict(add.tags)
        actions += [("remove", _remove_of(add, path, now_ms)), ("add", fields | _row_ids(add))]
    return actions


def _remove_of(add: Add, path: str, now_ms: int) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "path": path,
        "deletionTimestamp": now_ms,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": dict(add.partition_values),
        "size": add.size,
        "tags": dict(add.tags or {}),
    }
    if add.deletion_vector is not None:
        fields["deletionVector"] = vector_fields(add.deletion_vector)
    return fields | _row_ids(add)


def _row_ids(add: Add) -> dict[str, Any]:
    fields = {"baseRowId": add.base_row_id, "defaultRowCommitVersion": add.default_row_commit_version}
    return {name: value for name, value in fields.items() if value is not None}


def vector_fields(vector: DeletionVectorDescriptor) -> dict[str, Any]:
    """The fields of a deletion vector's descriptor."""
    fields: dict[str, Any] = {
        "storageType": vector.storage_type,
        "pathOrInlineDv": vector.path_or_inline,
        "sizeInBytes": vector.size_in_bytes,
        "cardinality": vector.cardinality,
    }
    return fields if vector.offset is None else fields | {"offset": vector.offset}


def _wide(stats: str | None, rows: int) -> str:
    certain = {"numRecords": rows, "tightBounds": False}
    try:
        # Numbers stay as they are written: decimals may have more digits than a float or a long.
        document = json.loads(stats or "{}", parse_float=orjson.Fragment, parse_int=orjson.Fragment)
        if isinstance(document, dict):
            return orjson.dumps({"numRecords": rows} | document | certain).decode()
    except (ValueError, RecursionError, orjson.JSONEncodeError):
        pass
    return orjson.dumps(certain).decode()


def _encode(files: Sequence[Add]) -> list[str]:
    encoded: list[str] = paths.encode_column(array_of([add.path for add in files], pa.string())).to_pylist()
    return encoded
