"""Records of side topics: a table's schema changes, and where each of its versions begins and ends.

Both are JSON with JSON keys. A topic of either kind takes the records of all tables of a pipeline:

    <prefix>.schema        {"table":"orders"}               -> what changed at a version, and the whole schema since then
    <prefix>.transactions  {"table":"orders","id":"12"}     -> BEGIN, then END with the number of rows of each kind

A compacted schema topic keeps the newest schema of each table. BEGIN and END look as those of Debezium's transaction
topic, with more fields; their id is the version, as in `transaction.id` of events.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdfd.delta.types.schema_change import SchemaChange
from cdfd.delta.types.schema_string import serialize
from cdfd.encode.cells.pieces import pool
from cdfd.encode.encoding import EncodedRows
from cdfd.encode.images import KeyedRows, check_change_columns
from cdfd.encode.json import JsonEncoding
from cdfd.encode.records import Origin, Records
from cdfd.encode.values import Rules
from cdfd.model.columns import CHANGE_TYPE, CHANGE_TYPES, change_codes
from cdfd.model.plan import ChangePlan

_TYPE_NAMES: Final[tuple[str, ...]] = tuple(CHANGE_TYPES.to_pylist())

EVENTS: Final = "events"
"""The name of the count of events, next to those of rows."""


class RowCounts:
    """Counts the change rows of a version by their type.

    Args:
        key: columns of the key, where records are events: one for both images of an update that keeps its key. None: each row has one.
        rules: forms of the key's values. Two values may have one form, such as times of one millisecond.

    Attributes:
        events: of all rows; None if they are not counted.
    """

    def __init__(self, key: Sequence[str] | None = None, rules: Rules | None = None) -> None:
        self._counts = np.zeros(len(_TYPE_NAMES), np.int64)
        self._keys = EncodedRows(JsonEncoding(rules), "Key", key) if key else None
        self.events: int | None = None if key is None else 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch. `DataError` where it does not end in the change columns."""
        check_change_columns(batch.schema)
        self._counts += np.bincount(change_codes(batch.column(CHANGE_TYPE)), minlength=len(_TYPE_NAMES))
        if self.events is not None and batch.num_rows:
            self.events += batch.num_rows - len(KeyedRows.of(batch, self._keys).pairs())

    def by_type(self) -> dict[str, int]:
        """Rows of each change type, all four of them."""
        return dict(zip(_TYPE_NAMES, self._counts.tolist(), strict=True))


def schema_record(origin: Origin, plan: ChangePlan, change: SchemaChange | None) -> Records:
    """The schema in force from a version on.

    Args:
        origin: the table.
        plan: of the version.
        change: how it differs from the version before; None where the table is delivered for the first time.
    """
    changes = None
    if change is not None:
        changes = {
            "added": [".".join(path) for path in change.added],
            "dropped": [".".join(path) for path in change.dropped],
            "renamed": [{"old": ".".join(each.old), "new": ".".join(each.new)} for each in change.renamed],
            "type_changed": [asdict(each) | {"path": ".".join(each.path)} for each in change.type_changed],
            "nullability": [asdict(each) | {"path": ".".join(each.path)} for each in change.nullability],
            "comment": [asdict(each) | {"path": ".".join(each.path)} for each in change.comment],
            "reordered": change.reordered,
            "repartitioned": change.repartitioned,
            "additive": change.additive,
        }
    value = {
        **_place(origin, plan),
        "changes": changes,
        "description": [] if change is None else list(change.describe()),
        "partition_columns": list(plan.schema.partition_columns),
        # As in the table's own log, so that readers who know Delta know it; Spark's `DataType.fromJson` takes it.
        "schema": json.loads(serialize(plan.schema.struct)),
    }
    return _record({"table": origin.table}, value)


def begin_record(origin: Origin, plan: ChangePlan) -> Records:
    """Rows of this version follow."""
    value = {
        "status": "BEGIN",
        "id": str(plan.version),
        "event_count": None,
        "data_collections": None,
        **_place(origin, plan),
        "rows_from": plan.origin,
    }
    return _record({"table": origin.table, "id": str(plan.version)}, value)


def end_record(origin: Origin, plan: ChangePlan, counts: Mapping[str, int]) -> Records:
    """All rows of this version were sent before this.

    Args:
        origin: the table.
        plan: of the version.
        counts: change rows by type, as `RowCounts.by_type` has them; of all parts of the version. With `EVENTS`, those are counted.
    """
    rows = {name: count for name, count in counts.items() if name != EVENTS}
    total = counts.get(EVENTS, sum(rows.values()))
    value = {
        "status": "END",
        "id": str(plan.version),
        "event_count": total,
        "data_collections": [{"data_collection": origin.topic, "event_count": total}],
        **_place(origin, plan),
        "rows_from": plan.origin,
        "rows": rows,
    }
    return _record({"table": origin.table, "id": str(plan.version)}, value)


def _place(origin: Origin, plan: ChangePlan) -> dict[str, Any]:
    return {
        "pipeline": origin.pipeline,
        "table": origin.table,
        "table_id": origin.table_id,
        "topic": origin.topic,
        "version": plan.version,
        "ts_ms": plan.timestamp_ms,
    }


def _record(key: Mapping[str, Any], value: Mapping[str, Any]) -> Records:
    return Records(pool(json_bytes(key)), pool(json_bytes(value)))


def json_bytes(document: Mapping[str, Any]) -> bytes:
    """A document as compact JSON."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
