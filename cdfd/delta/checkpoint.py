"""Checkpoint rows to actions: single, multi-part and V2, Parquet and JSON.

Source: specification, "Checkpoints" and "Checkpoint Format"; sidecars as deployed writers write them. Reading is in two steps, because a
reader often needs only the first: `HEADER` columns (protocol, metadata), then the file rows, a record batch at a time and never as objects.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from cdfd.delta import action_fields, paths
from cdfd.delta.actions import DomainMetadata, Metadata, Protocol, Sidecar, Txn
from cdfd.delta.commit import Commit
from cdfd.delta.files import ALL_FIELDS, DELETION_VECTOR, FILES, TEXT, pack
from cdfd.delta.statistics import counts_only
from cdfd.delta.write.checkpoint_structs import documents
from cdfd.errors import LogError
from cdfd.runtime import compute as pc

_PARSED = "stats_parsed"
HEADER = ("protocol", "metaData")
STATE = (*HEADER, "txn", "domainMetadata", "sidecar")

_TEXTS = pa.list_(TEXT)
_PAIRS = pa.map_(TEXT, TEXT)
_TYPES: dict[str, list[tuple[str, pa.DataType]]] = {
    "protocol": [
        ("minReaderVersion", pa.int64()),
        ("minWriterVersion", pa.int64()),
        ("readerFeatures", _TEXTS),
        ("writerFeatures", _TEXTS),
    ],
    "metaData": [
        ("id", TEXT),
        ("name", TEXT),
        ("description", TEXT),
        ("format", pa.struct([("provider", TEXT), ("options", _PAIRS)])),
        ("schemaString", TEXT),
        ("partitionColumns", _TEXTS),
        ("createdTime", pa.int64()),
        ("configuration", _PAIRS),
    ],
    "txn": [("appId", TEXT), ("version", pa.int64()), ("lastUpdated", pa.int64())],
    "domainMetadata": [("domain", TEXT), ("configuration", TEXT), ("removed", pa.bool_())],
    "sidecar": [("path", TEXT), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())],
    "add": [
        ("path", TEXT),
        ("partitionValues", _PAIRS),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", TEXT),
        ("deletionVector", DELETION_VECTOR),
    ],
}
_TYPES["remove"] = [("deletionTimestamp" if name == "modificationTime" else name, kind) for name, kind in _TYPES["add"]]
"""The fields of each action to read, in the order of `FILES` for files. Writers only differ in widths, dictionaries and views."""
_MORE = [
    ("baseRowId", pa.int64()),
    ("defaultRowCommitVersion", pa.int64()),
    ("clusteringProvider", TEXT),
    ("tags", _PAIRS),
]
_ALL_TYPES = _TYPES | {action: [*_TYPES[action], *_MORE] for action in ("add", "remove")}
"""The same for files in the order of `ALL_FIELDS`. No `remove` has a `clusteringProvider`."""


@dataclass(slots=True)
class State:
    """The content of a checkpoint except files. In a valid checkpoint, later rows do not contradict earlier ones."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: dict[str, Txn] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)
    sidecars: list[Sidecar] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Whether all there can be of an action was found; there is one protocol and one metadata."""
        return (name == "protocol" and self.protocol is not None) or (name == "metaData" and self.metadata is not None)


def key(schema: pa.Schema, action: str) -> str | None:
    """Dotted name of a column that is not null in the rows of an action; None where the file has no such rows."""
    if action not in schema.names:
        return None
    field = _TYPES[action][0][0]
    if schema.field(action).type.get_field_index(field) < 0:
        raise LogError(f"a checkpoint without {action}.{field}")
    return f"{action}.{field}"


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns of file rows to read.

    Attributes:
        partitioned, vectors, stats: which parts of the rows.
        counts: whether row counts are all that is left of statistics.
        tombstones: whether `remove` rows too.
        all_fields: whether with those of `ALL_FIELDS`.
        names: dotted names; if there are any, these columns are all of them.
    """

    partitioned: bool = False
    vectors: bool = False
    stats: bool = False
    counts: bool = False
    tombstones: bool = False
    all_fields: bool = False
    names: tuple[str, ...] = ()

    def leaves(self, schema: pa.Schema) -> list[str]:
        """Dotted names of these columns, of those that a checkpoint file of this Arrow schema has."""
        optional = {"partitionValues": self.partitioned, "deletionVector": self.vectors, "stats": self.stats}
        wanted = []
        for action in ("add", "remove") if self.tombstones else ("add",):
            if action in schema.names:
                present = {child.name for child in schema.field(action).type if optional.get(child.name, True)}
                types = (_ALL_TYPES if self.all_fields else _TYPES)[action]
                wanted += [f"{action}.{name}" for name, _ in types if name in present]
                if action == "add" and self.all_fields and _PARSED in present:
                    wanted.append(f"add.{_PARSED}")
        return [name for name in wanted if not self.names or name in self.names]


def check_schema(schema: pa.Schema) -> None:
    """Refuse a Parquet file that is no checkpoint.

    Raises:
        LogError: none of the actions' columns, one of them twice, or one that is not a struct.
    """
    names = [name for name in (*STATE, "add", "remove") if name in schema.names]
    if not names:
        raise LogError("not a checkpoint: it has none of the columns of one")
    for name in names:
        if schema.names.count(name) > 1:
            raise LogError(f"not a checkpoint: it has several columns {name}")
        if not pa.types.is_struct(schema.field(name).type):
            kind = schema.field(name).type
            actual = "has nulls alone, and no type" if pa.types.is_null(kind) else f"is {kind}"
            raise LogError(f"not a checkpoint: column {name} {actual}, not a struct")


def read_state(batch: pa.RecordBatch, state: State) -> None:
    """Add a batch's protocol, metadata, transactions, domains and sidecars to `state`.

    Raises:
        LogError: a row whose required fields are missing or of the wrong type.
    """
    for name, fields in _rows(batch, STATE):
        match name:
            case "protocol":
                state.protocol = state.protocol or action_fields.protocol(fields)
            case "metaData":
                state.metadata = state.metadata or action_fields.metadata(_maps(fields))
            case "txn":
                txn = action_fields.txn(fields)
                state.txns[txn.app_id] = txn
            case "domainMetadata":
                domain = action_fields.domain_metadata(fields)
                state.domains[domain.domain] = domain
            case "sidecar":
                state.sidecars.append(action_fields.sidecar(fields))


def from_commit(commit: Commit, state: State, *, all_fields: bool = False) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """A JSON checkpoint, parsed like a log entry: its state into `state`, its (adds, removes) in the `FILES` or the `ALL_FIELDS` schema."""
    state.protocol = state.protocol or commit.protocol
    state.metadata = state.metadata or commit.metadata
    state.txns.update((txn.app_id, txn) for txn in commit.txns)
    state.domains.update((domain.domain, domain) for domain in commit.domains)
    state.sidecars.extend(commit.sidecars)
    schema = ALL_FIELDS if all_fields else FILES
    return pack(commit.adds, schema), pack(commit.removes, schema)


def _rows(batch: pa.RecordBatch, names: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in names:
        if name in batch.schema.names:
            column = batch.column(name)
            if column.null_count < len(column):
                # A handful of rows in a checkpoint of any size; transactions and domains are few by nature.
                for fields in _cast(column, name).drop_null().to_pylist():
                    # Some writers write a struct of nulls where there is no action.
                    if any(value is not None for value in fields.values()):
                        yield name, fields


def _cast(column: pa.StructArray, action: str, *, all_fields: bool = False) -> pa.StructArray:
    """The fields of an action that are read, in the types of the specification; those that are not there are null."""
    try:
        typed = column.cast(pa.struct((_ALL_TYPES if all_fields else _TYPES)[action]))
        typed.validate(full=True)  # Parquet's readers take any bytes for text
    except pa.ArrowException as error:
        raise LogError(
            f"the checkpoint's {action} column does not have the types of the specification: {error}"
        ) from None
    return typed


def _maps(fields: dict[str, Any]) -> dict[str, Any]:
    """Arrow's maps come as lists of pairs."""
    result, form = dict(fields), fields["format"]
    if fields["configuration"] is not None:
        result["configuration"] = dict(fields["configuration"])
    if form is not None:
        result["format"] = form | {"options": dict(form["options"] or ())}
    return result


def counted(adds: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of `add`, with how many rows a file has as all that is left of its statistics."""
    place = FILES.get_field_index("stats")
    return adds.set_column(place, FILES.field(place), counts_only(adds.column(place)))


def file_rows(batch: pa.RecordBatch, action: Literal["add", "remove"], *, all_fields: bool = False) -> pa.RecordBatch:
    """The rows of a file action in a checkpoint batch, in the `FILES` or the `ALL_FIELDS` schema.

    Raises:
        LogError: a column of another type, or a value that an action cannot have.
    """
    schema = ALL_FIELDS if all_fields else FILES
    if action not in batch.schema.names:
        return pack((), schema)
    column = batch.column(action)
    if column.type.get_field_index("path") < 0:
        raise LogError(f"a checkpoint without {action}.path")
    typed = _cast(column, action, all_fields=all_fields)
    rows = pc.is_valid(pc.struct_field(typed, "path"))
    chosen = typed.filter(rows)
    path, values, size, time, data_change, stats, vector, *more = chosen.flatten()
    if all_fields and action == "add" and column.type.get_field_index(_PARSED) >= 0:
        # A writer of a checkpoint must not lose statistics that files have as structs alone. Readers do without: the writer of a struct
        # computed it as it liked.
        parsed = pc.struct_field(column, _PARSED).filter(rows)
        if stats.null_count:
            missing = stats.is_null()
            try:
                parsed.validate(full=True)
                stats = pc.replace_with_mask(stats, missing, documents(parsed.filter(missing)))
            except pa.ArrowException as error:
                raise LogError(f"the checkpoint's add.{_PARSED} column has values that are none: {error}") from None
    _refuse_negative(f"{action}.size", size)
    if action == "add":
        # Fields that a log entry may leave out get the same defaults (`cdfd.delta.commit`).
        size, time = pc.fill_null(size, 0), pc.fill_null(time, 0)
    columns = [
        paths.decode_column(path),
        values,
        size,
        time,
        pc.fill_null(data_change, False),
        stats,
        _vectors(vector),
        *more,
    ]
    columns += [pa.nulls(len(chosen), kind) for kind in schema.types[len(columns) :]]
    return pa.record_batch(columns, schema=schema)


def _vectors(vector: pa.StructArray) -> pa.Array:
    children = vector.flatten()
    kind, path, offset, size, cardinality = children
    # Some writers write a struct of nulls where there is no vector.
    missing = pc.is_null(kind)
    for name, child in (("pathOrInlineDv", path), ("sizeInBytes", size), ("cardinality", cardinality)):
        if pc.any(pc.and_(pc.is_valid(kind), pc.is_null(child))).as_py():
            raise LogError(f"a checkpoint with a deletionVector without {name}")
    for name, child in (("offset", offset), ("sizeInBytes", size), ("cardinality", cardinality)):
        _refuse_negative(f"deletionVector.{name}", child)
    return pa.StructArray.from_arrays(children, fields=list(DELETION_VECTOR), mask=missing)


def _refuse_negative(name: str, numbers: pa.Array) -> None:
    if pc.any(pc.less(numbers, 0)).as_py():
        raise LogError(f"a checkpoint with a negative {name}")
