"""The fields of an action in JSON -> the action. A checkpoint's rows, once Arrow has made dictionaries of them, go through here too.

Source: specification, "Actions". Unknown fields are ignored; what is required must be there and of the right type.
"""

from collections.abc import Mapping
from typing import Any, TypeGuard

import orjson

from cdfd.delta import paths
from cdfd.delta.actions import (
    NO_VALUES,
    Add,
    Cdc,
    CommitInfo,
    DeletionVectorDescriptor,
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    Remove,
    Sidecar,
    Txn,
)
from cdfd.delta.statistics import count_only
from cdfd.errors import LogError

Json = Mapping[str, Any]


def add(fields: Json, with_stats: bool = False) -> Add:
    """An `add` action's fields as a value. `with_stats`: with all its statistics, not only its row count, and the notes of its writer."""
    stats = fields.get("stats")
    stats = stats if isinstance(stats, str) else None
    return Add(
        path=paths.decode(_text(fields, "add", "path")),
        partition_values=_strings(fields.get("partitionValues"), "partitionValues") or NO_VALUES,
        size=_size(fields, "add"),
        modification_time=_integer(fields, "add", "modificationTime", 0),
        data_change=_flag(fields, "add", "dataChange"),
        stats=stats if with_stats else count_only(stats),
        deletion_vector=deletion_vector(fields.get("deletionVector")),
        base_row_id=_integer_or_none(fields.get("baseRowId")),
        default_row_commit_version=_integer_or_none(fields.get("defaultRowCommitVersion")),
        clustering_provider=_text_or_none(fields.get("clusteringProvider")) if with_stats else None,
        tags=_tags(fields.get("tags")) if with_stats else None,
    )


def _tags(value: object) -> Mapping[str, str | None] | None:
    """The tags of a file. No row depends on them, so values of other types are no error."""
    return {name: _text_or_none(text) for name, text in value.items()} if isinstance(value, dict) else None


def remove(fields: Json, with_stats: bool = False) -> Remove:
    """A `remove` action's fields as a value; see `add`. A `remove` without `dataChange` changes data, as in the oldest draft."""
    values = fields.get("partitionValues")
    return Remove(
        path=paths.decode(_text(fields, "remove", "path")),
        deletion_timestamp=_optional_integer(fields, "remove", "deletionTimestamp"),
        data_change=_flag(fields, "remove", "dataChange"),
        partition_values=None if values is None else _strings(values, "partitionValues"),
        size=None if fields.get("size") is None else _size(fields, "remove"),
        deletion_vector=deletion_vector(fields.get("deletionVector")),
        base_row_id=_integer_or_none(fields.get("baseRowId")),
        default_row_commit_version=_integer_or_none(fields.get("defaultRowCommitVersion")),
        tags=_tags(fields.get("tags")) if with_stats else None,
    )


def cdc(fields: Json) -> Cdc:
    """A `cdc` action's fields as a value."""
    return Cdc(
        path=paths.decode(_text(fields, "cdc", "path")),
        partition_values=_strings(fields.get("partitionValues"), "partitionValues") or NO_VALUES,
        size=_size(fields, "cdc"),
    )


def deletion_vector(fields: object) -> DeletionVectorDescriptor | None:
    """A deletion vector descriptor, or None where there is none."""
    if fields is None:
        return None
    if not isinstance(fields, dict):
        raise LogError("deletionVector is not an object")
    where = "deletionVector"
    cardinality = _integer(fields, where, "cardinality")
    size = _integer(fields, where, "sizeInBytes")
    offset = _optional_integer(fields, where, "offset")
    if cardinality < 0 or size < 0 or (offset is not None and offset < 0):
        raise LogError("deletionVector has a negative cardinality, sizeInBytes or offset")
    return DeletionVectorDescriptor(
        _text(fields, where, "storageType"), _text(fields, where, "pathOrInlineDv"), offset, size, cardinality
    )


_NO_COLUMNS = '{"type":"struct","fields":[]}'
"""The schema of a `metaData` without one, as in delta-spark. The first version of a table of Delta Live Tables is one."""


def metadata(fields: Json) -> Metadata:
    """A `metaData` action's fields as a value. Of the required ones, only `schemaString` may be missing: see `_NO_COLUMNS`."""
    where = "metaData"
    form, columns = fields.get("format"), fields.get("partitionColumns")
    if not isinstance(form, dict):
        raise LogError("metaData.format is missing or not an object")
    if not isinstance(columns, list) or not all(isinstance(column, str) for column in columns):
        raise LogError("metaData.partitionColumns is missing or not an array of strings")
    if fields.get("configuration") is None:
        raise LogError("metaData.configuration is missing")
    provider = _optional_text(form, "metaData.format", "provider") or "parquet"
    return Metadata(
        id=_text(fields, where, "id"),
        schema_string=_NO_COLUMNS if fields.get("schemaString") is None else _text(fields, where, "schemaString"),
        partition_columns=tuple(columns),
        configuration=_settings(fields.get("configuration"), "metaData.configuration"),
        format=Format(provider, _settings(form.get("options"), "metaData.format.options")),
        name=_optional_text(fields, where, "name"),
        description=_optional_text(fields, where, "description"),
        created_time=_optional_integer(fields, where, "createdTime"),
    )


def protocol(fields: Json) -> Protocol:
    """A `protocol` action's fields as a value."""
    where = "protocol"
    return Protocol(
        _integer(fields, where, "minReaderVersion"),
        _integer(fields, where, "minWriterVersion"),
        _features(fields, "readerFeatures"),
        _features(fields, "writerFeatures"),
    )


def _features(fields: Json, name: str) -> frozenset[str] | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(feature, str) for feature in value):
        raise LogError(f"protocol.{name} is not an array of strings")
    return frozenset(value)


def txn(fields: Json) -> Txn:
    """A `txn` action's fields as a value."""
    return Txn(
        _text(fields, "txn", "appId"),
        _integer(fields, "txn", "version"),
        _optional_integer(fields, "txn", "lastUpdated"),
    )


def domain_metadata(fields: Json) -> DomainMetadata:
    """A `domainMetadata` action's fields as a value."""
    where = "domainMetadata"
    configuration = _optional_text(fields, where, "configuration") or ""
    return DomainMetadata(_text(fields, where, "domain"), configuration, _flag(fields, where, "removed", default=False))


def sidecar(fields: Json) -> Sidecar:
    """A `sidecar` action's fields as a value; only checkpoints have them."""
    # Sidecars are in the table's own folder, but a writer may spell out the whole path.
    name = paths.decode(_text(fields, "sidecar", "path")).rpartition(f"/{paths.LOG}/{paths.SIDECARS}/")[2]
    if "/" in name or name in ("", ".", ".."):
        raise LogError(f"sidecar.path {name!r} is not a file name")
    size = _size(fields, "sidecar", "sizeInBytes")
    return Sidecar(name, size, _integer(fields, "sidecar", "modificationTime", 0))


def commit_info(fields: Json) -> CommitInfo:
    """The fields of a `commitInfo` action that planning needs. The action is free-form: fields of unexpected types are ignored."""
    tags, metrics = fields.get("tags"), fields.get("operationMetrics")
    if not isinstance(metrics, dict):
        metrics = {}
    # Writers put text there; JSON's own boolean means the same.
    preserved = tags.get("delta.rowTracking.preserved") if isinstance(tags, dict) else None
    return CommitInfo(
        timestamp=_integer_or_none(fields.get("timestamp")),
        in_commit_timestamp=_integer_or_none(fields.get("inCommitTimestamp")),
        operation=_text_or_none(fields.get("operation")),
        # Values of other types than numbers and text are as good as absent, however deep they are nested.
        operation_metrics={name: str(value) for name, value in metrics.items() if isinstance(value, str | int | float)},
        rows_preserved=None if preserved is None else str(preserved).lower() == "true",
    )


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _is_long(value: object) -> TypeGuard[int]:
    # orjson makes a float of what is below -2**63.
    return isinstance(value, int) and not isinstance(value, bool) and value < 2**63


def _integer_or_none(value: object) -> int | None:
    return value if _is_long(value) else None


def _text(fields: Json, where: str, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise LogError(f"{where}.{name} is missing or not a string")
    return value


def _optional_text(fields: Json, where: str, name: str) -> str | None:
    return None if fields.get(name) is None else _text(fields, where, name)


def _integer(fields: Json, where: str, name: str, default: int | None = None) -> int:
    # Here and below null is as good as absent: there are writers that spell out what they leave out.
    value = default if fields.get(name) is None else fields[name]
    if not _is_long(value):
        raise LogError(f"{where}.{name} is missing or not a 64-bit integer")
    return value


def _optional_integer(fields: Json, where: str, name: str) -> int | None:
    return None if fields.get(name) is None else _integer(fields, where, name)


def _size(fields: Json, where: str, name: str = "size") -> int:
    size = _integer(fields, where, name, 0)
    if size < 0:
        raise LogError(f"{where}.{name} is negative")
    return size


def _flag(fields: Json, where: str, name: str, *, default: bool = True) -> bool:
    value = default if fields.get(name) is None else fields[name]
    if not isinstance(value, bool):
        raise LogError(f"{where}.{name} is not a boolean")
    return value


def _strings(value: object, where: str) -> Mapping[str, str | None]:
    """A JSON object of strings. Numbers and booleans, which some writers leave unquoted, become their JSON text."""
    if value is None:
        return NO_VALUES
    if not isinstance(value, dict):
        raise LogError(f"{where} is not an object")
    if all(item is None or isinstance(item, str) for item in value.values()):
        return value
    texts: dict[str, str | None] = {}
    for name, item in value.items():
        if item is not None and not isinstance(item, str | int | float):
            raise LogError(f"{where} has a value that is not a string")
        texts[name] = orjson.dumps(item).decode() if isinstance(item, int | float) else item
    return texts


def _settings(value: object, where: str) -> Mapping[str, str]:
    """`_strings` of table properties: one that is null is not set."""
    return {name: text for name, text in _strings(value, where).items() if text is not None}
