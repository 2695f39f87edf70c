"""Checkpoint rows to actions: single, multi-part and V2, Parquet and JSON.

Source: specification, "Checkpoints" and "Checkpoint Format"; sidecars as deployed writers write them. Reading is in two steps, because a
reader often needs only the first: `HEADER` columns (protocol, metadata), then the file rows, a record batch at a time and never as objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdfd.delta import commit as commits
from cdfd.delta import paths
from cdfd.delta.actions import DomainMetadata, Metadata, Protocol, Sidecar, Txn
from cdfd.delta.commit import Commit
from cdfd.delta.files import DELETION_VECTOR, FILES, pack
from cdfd.errors import LogError

HEADER = ("protocol", "metaData")
STATE = (*HEADER, "txn", "domainMetadata", "sidecar", "checkpointMetadata")

_ADD = {"path": "path", "size": "size", "time": "modificationTime", "data_change": "dataChange"}
_REMOVE = {"path": "path", "size": "size", "time": "deletionTimestamp", "data_change": "dataChange"}


@dataclass(slots=True)
class State:
    """What a checkpoint holds beside files; later rows do not contradict earlier ones in a valid checkpoint."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: dict[str, Txn] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)
    sidecars: list[Sidecar] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Whether all there can be of an action was found; there is one protocol and one metadata."""
        return (name == "protocol" and self.protocol is not None) or (name == "metaData" and self.metadata is not None)


def leaves(
    schema: pa.Schema, *, files: bool, partitioned: bool, vectors: bool, stats: bool, tombstones: bool
) -> list[str]:
    """Dotted names of the columns to read, of those that the file has.

    Args:
        schema: the checkpoint file's Arrow schema.
        files: whether file rows are wanted; else only `STATE`.
        partitioned, vectors, stats: which parts of the file rows.
        tombstones: whether `remove` rows too.
    """
    wanted = [name for name in STATE if name in schema.names]
    if not files:
        return wanted
    parts = ["path", "size", "modificationTime", "deletionTimestamp", "dataChange"]
    parts += ["partitionValues"] * partitioned + ["deletionVector"] * vectors + ["stats"] * stats
    for action in ("add", "remove") if tombstones else ("add",):
        if action in schema.names:
            present = {child.name for child in schema.field(action).type}
            wanted += [f"{action}.{part}" for part in parts if part in present]
    return wanted


def check_schema(schema: pa.Schema) -> None:
    """Refuse a Parquet file that is no checkpoint.

    Raises:
        LogError: none of the actions' columns, or a column that is not a struct.
    """
    known = [name for name in (*STATE, "add", "remove") if name in schema.names]
    if not known:
        raise LogError("not a checkpoint: it has none of the columns of one")
    for name in known:
        if not pa.types.is_struct(schema.field(name).type):
            raise LogError(f"not a checkpoint: column {name} is {schema.field(name).type}, not a struct")


def read_state(batch: pa.RecordBatch, state: State) -> None:
    """Add a batch's protocol, metadata, transactions, domains and sidecars to `state`.

    Raises:
        LogError: a row whose required fields are missing.
    """
    for name, fields in _rows(batch, STATE):
        match name:
            case "protocol":
                state.protocol = state.protocol or commits.protocol(fields)
            case "metaData":
                state.metadata = state.metadata or commits.metadata(_maps(fields))
            case "txn":
                txn = commits.txn(fields)
                state.txns[txn.app_id] = txn
            case "domainMetadata":
                domain = commits.domain_metadata(fields)
                state.domains[domain.domain] = domain
            case "sidecar":
                state.sidecars.append(commits.sidecar(fields))


def adds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The `add` rows of a checkpoint batch, in the `FILES` schema."""
    return _files(batch, "add", _ADD)


def removes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The `remove` rows of a checkpoint batch, in the `FILES` schema."""
    return _files(batch, "remove", _REMOVE)


def from_commit(commit: Commit, state: State) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """A JSON checkpoint, parsed like a log entry: its state into `state`, its (adds, removes) in the `FILES` schema."""
    state.protocol = state.protocol or commit.protocol
    state.metadata = state.metadata or commit.metadata
    state.txns.update((txn.app_id, txn) for txn in commit.txns)
    state.domains.update((domain.domain, domain) for domain in commit.domains)
    state.sidecars.extend(commit.sidecars)
    return pack(commit.adds), pack(commit.removes)


def _rows(batch: pa.RecordBatch, names: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in names:
        if name in batch.schema.names:
            column = batch.column(name)
            if column.null_count < len(column):
                # A handful of rows in a checkpoint of any size; transactions and domains are few by nature.
                yield from ((name, fields) for fields in column.drop_null().to_pylist())


def _maps(fields: dict[str, Any]) -> dict[str, Any]:
    """Arrow's maps come as lists of pairs."""
    result = dict(fields)
    result["configuration"] = dict(fields.get("configuration") or ())
    if isinstance(fields.get("format"), dict):
        result["format"] = {**fields["format"], "options": dict(fields["format"].get("options") or ())}
    return result


def _files(batch: pa.RecordBatch, action: str, names: dict[str, str]) -> pa.RecordBatch:
    if action not in batch.schema.names:
        return pack(())
    column = batch.column(action)
    fields = {field.name for field in column.type}
    if "path" not in fields:
        raise LogError(f"a checkpoint without {action}.path")
    chosen = column.filter(pc.is_valid(pc.struct_field(column, "path")))
    count = len(chosen)

    def take(name: str, kind: pa.DataType) -> pa.Array:
        return pc.struct_field(chosen, name).cast(kind) if name in fields else pa.nulls(count, kind)

    try:
        columns = {name: take(source, FILES.field(name).type) for name, source in names.items()}
        columns["stats"] = take("stats", pa.string())
        columns["partition_values"] = take("partitionValues", FILES.field("partition_values").type)
        columns["deletion_vector"] = _vectors(chosen, count)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise LogError(
            f"the checkpoint's {action} column does not have the types of the specification: {error}"
        ) from None
    columns["path"] = paths.decode_column(columns["path"])
    columns["data_change"] = pc.fill_null(columns["data_change"], False)
    return pa.record_batch([columns[name] for name in FILES.names], schema=FILES)


def _vectors(chosen: pa.StructArray, count: int) -> pa.Array:
    if chosen.type.get_field_index("deletionVector") < 0:
        return pa.nulls(count, DELETION_VECTOR)
    vector = pc.struct_field(chosen, "deletionVector")
    kind = pc.struct_field(vector, "storageType")
    present = {field.name for field in vector.type}
    children = [
        pc.struct_field(vector, field.name).cast(field.type) if field.name in present else pa.nulls(count, field.type)
        for field in DELETION_VECTOR
    ]
    # Some writers write a struct of nulls where there is no vector.
    return pa.StructArray.from_arrays(children, fields=list(DELETION_VECTOR), mask=pc.is_null(kind))
