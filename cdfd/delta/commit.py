"""A log entry, `n.json`: its bytes to a `Commit` and back.

Source: specification, "Delta Log Entries" and "Actions". One action per line; unknown actions and unknown fields are ignored, empty lines
too. Bytes may come in chunks: what is held is one chunk, the actions that matter, and, of a large commit, its file actions packed in Arrow
columns rather than as objects (`cdfd.delta.files`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from cdfd.delta.files import FileList
from cdfd.errors import CdfdError, LogError

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Commit:
    """The actions of one version, in log order within each kind.

    Attributes:
        version: from the file's name.
        adds, removes, cdcs: file actions; tuples, or packed sequences where there are many.
        domains: latest entry per domain.
        sidecars: only in a checkpoint that is written as JSON.
        size: bytes of the log entry.
    """

    version: int
    adds: Sequence[Add] = ()
    removes: Sequence[Remove] = ()
    cdcs: Sequence[Cdc] = ()
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    txns: tuple[Txn, ...] = ()
    domains: tuple[DomainMetadata, ...] = ()
    info: CommitInfo | None = None
    sidecars: tuple[Sidecar, ...] = ()
    size: int = 0


def parse(version: int, data: bytes | Iterable[bytes], *, with_stats: bool = False) -> Commit:
    """Parse a log entry.

    Args:
        version: the version that the file's name says.
        data: the whole entry, or its bytes in chunks of any size.
        with_stats: keep `add.stats`, most of an entry's bytes and not needed to derive changes.

    Raises:
        LogError: a line that is no JSON object, an action whose required fields are missing or of the wrong type, or two actions that
            contradict each other.
    """
    reader = Reader(version, with_stats)
    for number, line in enumerate(lines(data), 1):
        reader.take(number, line)
    return reader.commit()


def serialize(actions: Iterable[tuple[str, Json]]) -> bytes:
    """A log entry of (action name, fields), one line each."""
    return b"".join(orjson.dumps({name: dict(fields)}) + b"\n" for name, fields in actions)


def lines(data: bytes | Iterable[bytes]) -> Iterator[bytes]:
    """The lines of an entry that comes whole or in chunks."""
    pending: list[bytes] = []
    for chunk in (data,) if isinstance(data, bytes) else data:
        first, *rest = chunk.split(b"\n")
        pending.append(first)
        if rest:
            yield b"".join(pending)
            yield from rest[:-1]
            pending = [rest[-1]]
    yield b"".join(pending)


class Reader:
    """Collects the actions of one entry and refuses contradictions (specification, "Requirements for Writers")."""

    def __init__(self, version: int, with_stats: bool) -> None:
        self.version = version
        self.with_stats = with_stats
        self.size = 0
        self.adds: FileList[Add] = FileList(Add)
        self.removes: FileList[Remove] = FileList(Remove)
        self.cdcs: FileList[Cdc] = FileList(Cdc)
        self.single: dict[str, Any] = {}
        self.txns: dict[str, Txn] = {}
        self.domains: dict[str, DomainMetadata] = {}
        self.sidecars: list[Sidecar] = []
        self.takers: Mapping[str, Callable[[Json], None]] = {
            "add": lambda fields: self.adds.append(add(fields, self.with_stats)),
            "remove": lambda fields: self.removes.append(remove(fields)),
            "cdc": lambda fields: self.cdcs.append(cdc(fields)),
            "metaData": lambda fields: self.once("metaData", metadata(fields)),
            "protocol": lambda fields: self.once("protocol", protocol(fields)),
            "commitInfo": self._commit_info,
            "txn": lambda fields: self.add_txn(txn(fields)),
            "sidecar": lambda fields: self.sidecars.append(sidecar(fields)),
            "domainMetadata": lambda fields: self.add_domain(domain_metadata(fields)),
        }

    def take(self, number: int, line: bytes) -> None:
        """One line, whose number in the entry is `number`."""
        self.size += len(line) + 1
        if not line or line.isspace():
            return
        try:
            action = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise LogError(f"line {number} is not valid JSON: {error}", version=self.version, hint=TORN) from None
        if not isinstance(action, dict):
            raise LogError(f"line {number} is not a JSON object", version=self.version, hint=TORN)
        for name, fields in action.items():
            taker = self.takers.get(name)
            if taker is None or fields is None:
                continue
            if not isinstance(fields, dict):
                raise LogError(f"line {number}: {name} is not an object", version=self.version)
            try:
                taker(fields)
            except CdfdError as error:
                error.what = f"line {number}: {error.what}"
                raise error.within(version=self.version) from None

    def commit(self) -> Commit:
        """All actions taken."""
        try:
            adds, removes, cdcs = self.adds.freeze(), self.removes.freeze(), self.cdcs.freeze()
        except CdfdError as error:
            raise error.within(version=self.version) from None
        return Commit(
            version=self.version,
            adds=adds,
            removes=removes,
            cdcs=cdcs,
            metadata=self.single.get("metaData"),
            protocol=self.single.get("protocol"),
            txns=tuple(self.txns.values()),
            domains=tuple(self.domains.values()),
            info=self.single.get("commitInfo"),
            sidecars=tuple(self.sidecars),
            size=self.size - 1,  # `take` counts a line break after each line, and the last one has none
        )

    def once(self, name: str, value: Metadata | Protocol) -> None:
        """An action that there can be one of."""
        if self.single.setdefault(name, value) != value:
            raise LogError(f"a second {name} action in one version contradicts the first")

    def _commit_info(self, fields: Json) -> None:
        # Free form by specification, so nothing about it is an error; the first one counts, as for in-commit timestamps.
        self.single.setdefault("commitInfo", commit_info(fields))

    def add_txn(self, value: Txn) -> None:
        """An application's progress."""
        if self.txns.setdefault(value.app_id, value) != value:
            raise LogError(f"two txn actions for appId {value.app_id!r} in one version")

    def add_domain(self, value: DomainMetadata) -> None:
        """A domain's metadata."""
        if self.domains.setdefault(value.domain, value) != value:
            raise LogError(f"two domainMetadata actions for {value.domain!r} in one version")


TORN = "The entry was damaged after it was written: log entries are immutable; restore it from a copy of the table"


# --- one action -------------------------------------------------------------------------------------------------------------------------


def add(fields: Json, with_stats: bool = False) -> Add:
    """An `add` action's fields as a value."""
    stats = fields.get("stats") if with_stats else None
    return Add(
        path=paths.decode(_text(fields, "add", "path")),
        partition_values=_partition_values(fields.get("partitionValues")) or NO_VALUES,
        size=_size(fields, "add"),
        modification_time=_integer(fields, "add", "modificationTime", 0),
        data_change=_flag(fields, "add", "dataChange"),
        stats=stats if isinstance(stats, str) else None,
        deletion_vector=deletion_vector(fields.get("deletionVector")),
    )


def remove(fields: Json) -> Remove:
    """A `remove` action's fields as a value. A `remove` without `dataChange` changes data, as in the oldest draft."""
    values = fields.get("partitionValues")
    return Remove(
        path=paths.decode(_text(fields, "remove", "path")),
        deletion_timestamp=_optional_integer(fields, "remove", "deletionTimestamp"),
        data_change=_flag(fields, "remove", "dataChange"),
        partition_values=None if values is None else _partition_values(values),
        size=None if fields.get("size") is None else _size(fields, "remove"),
        deletion_vector=deletion_vector(fields.get("deletionVector")),
    )


def cdc(fields: Json) -> Cdc:
    """A `cdc` action's fields as a value."""
    return Cdc(
        path=paths.decode(_text(fields, "cdc", "path")),
        partition_values=_partition_values(fields.get("partitionValues")) or NO_VALUES,
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


def metadata(fields: Json) -> Metadata:
    """A `metaData` action's fields as a value."""
    where = "metaData"
    form = fields.get("format")
    if form is not None and not isinstance(form, dict):
        raise LogError("metaData.format is not an object")
    columns = fields.get("partitionColumns")
    if columns is None:
        columns = []
    if not isinstance(columns, list) or not all(isinstance(column, str) for column in columns):
        raise LogError("metaData.partitionColumns is not an array of strings")
    return Metadata(
        id=_text(fields, where, "id"),
        schema_string=_text(fields, where, "schemaString"),
        partition_columns=tuple(columns),
        configuration=_settings(fields.get("configuration"), "metaData.configuration"),
        format=_format(form or {}),
        name=_optional_text(fields, where, "name"),
        description=_optional_text(fields, where, "description"),
        created_time=_optional_integer(fields, where, "createdTime"),
    )


def _format(fields: Json) -> Format:
    provider = _optional_text(fields, "metaData.format", "provider") or "parquet"
    return Format(provider, _settings(fields.get("options"), "metaData.format.options"))


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
    name = paths.decode(_text(fields, "sidecar", "path"))
    if "/" in name or name in ("", ".", ".."):
        raise LogError(f"sidecar.path {name!r} is not a file name")
    size = _integer(fields, "sidecar", "sizeInBytes", 0)
    return Sidecar(name, size, _integer(fields, "sidecar", "modificationTime", 0))


def commit_info(fields: Json) -> CommitInfo:
    """What derivation needs of a `commitInfo` action. It is free form: fields of unexpected types are as good as absent."""
    metrics = fields.get("operationMetrics")
    return CommitInfo(
        timestamp=_integer_or_none(fields.get("timestamp")),
        in_commit_timestamp=_integer_or_none(fields.get("inCommitTimestamp")),
        operation=fields["operation"] if isinstance(fields.get("operation"), str) else None,
        operation_metrics={name: str(value) for name, value in metrics.items()} if isinstance(metrics, dict) else {},
        engine_info=fields["engineInfo"] if isinstance(fields.get("engineInfo"), str) else None,
    )


# --- one field --------------------------------------------------------------------------------------------------------------------------


def _is_long(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


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


def _size(fields: Json, where: str) -> int:
    size = _integer(fields, where, "size", 0)
    if size < 0:
        raise LogError(f"{where}.size is negative")
    return size


def _flag(fields: Json, where: str, name: str, *, default: bool = True) -> bool:
    value = default if fields.get(name) is None else fields[name]
    if not isinstance(value, bool):
        raise LogError(f"{where}.{name} is not a boolean")
    return value


def _partition_values(value: object) -> Mapping[str, str | None]:
    return _strings(value, "partitionValues")


def _strings(value: object, where: str) -> Mapping[str, str | None]:
    """A JSON object of strings. Numbers and booleans, which some writers leave unquoted, become their JSON text."""
    if value is None:
        return NO_VALUES
    if not isinstance(value, dict):
        raise LogError(f"{where} is not an object")
    if all(item is None or isinstance(item, str) for item in value.values()):
        return value
    return {name: _scalar_text(item, where) for name, item in value.items()}


def _settings(value: object, where: str) -> Mapping[str, str]:
    """`_strings` of table properties: one that is null is not set."""
    return {name: text for name, text in _strings(value, where).items() if text is not None}


def _scalar_text(item: object, where: str) -> str | None:
    if item is None or isinstance(item, str):
        return item
    if isinstance(item, int | float):
        return orjson.dumps(item).decode()
    raise LogError(f"{where} has a value that is not a string")
