import json
from typing import Any

from cdfd.delta.types.schema import TableSchema
from cdfd.delta.types.schema_change import compare
from cdfd.delta.types.schema_string import parse
from cdfd.encode.records import Origin, Records
from cdfd.encode.side import RowCounts, begin_record, end_record, schema_record
from cdfd.model.plan import ChangePlan
from tests.support.change_rows import TIME, Row, change_rows, flattened

ORIGIN = Origin("shop", "orders", "0b1c", "shop.orders")
PLACE = {
    "pipeline": "shop",
    "table": "orders",
    "table_id": "0b1c",
    "topic": "shop.orders",
    "version": 12,
    "ts_ms": TIME,
}


def schema(*fields: tuple[str, Any]) -> TableSchema:
    listed = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields]
    return TableSchema(parse(json.dumps({"type": "struct", "fields": listed})), ("day",))


OLD = schema(("id", "integer"), ("Größe", "string"), ("day", "date"))
NEW = schema(("id", "long"), ("added", "double"), ("day", "date"))


def plan(table: TableSchema) -> ChangePlan:
    return ChangePlan(12, TIME, table, (), "cdc")


def parsed(records: Records) -> tuple[Any, Any]:
    ((key, value, headers),) = flattened([records])
    assert not headers
    return json.loads(key or b""), json.loads(value or b"")


def test_schema_change_is_a_record_of_what_changed() -> None:
    key, value = parsed(schema_record(ORIGIN, plan(NEW), compare(OLD, NEW)))
    assert key == {"table": "orders"}
    assert value == {
        **PLACE,
        "changes": {
            "added": ["added"],
            "dropped": ["Größe"],
            "renamed": [],
            "type_changed": [{"path": "id", "old": "integer", "new": "long", "widening": True}],
            "nullability": [],
            "comment": [],
            "reordered": False,
            "repartitioned": False,
            "additive": False,
        },
        "description": ["added added", "dropped Größe", "widened id from integer to long"],
        "partition_columns": ["day"],
        "schema": json.loads(
            '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}},'
            '{"name":"added","type":"double","nullable":true,"metadata":{}},'
            '{"name":"day","type":"date","nullable":true,"metadata":{}}]}'
        ),
    }


def test_first_schema_is_a_record_without_changes() -> None:
    _, value = parsed(schema_record(ORIGIN, plan(OLD), None))
    assert (value["changes"], value["description"]) == (None, [])
    assert [field["name"] for field in value["schema"]["fields"]] == ["id", "Größe", "day"]


def test_a_version_begins_and_ends() -> None:
    counts = RowCounts()
    counts.add(change_rows([Row("insert", 12, 1), Row("delete", 12, 1)]))
    counts.add(change_rows([]))
    counts.add(change_rows([Row("insert", 12, 1)]))
    begin, end = parsed(begin_record(ORIGIN, plan(NEW))), parsed(end_record(ORIGIN, plan(NEW), counts.by_type()))
    assert begin[0] == end[0] == {"table": "orders", "id": "12"}
    assert begin[1] == {
        **PLACE,
        "status": "BEGIN",
        "id": "12",
        "event_count": None,
        "data_collections": None,
        "rows_from": "cdc",
    }
    assert end[1] == {
        **PLACE,
        "status": "END",
        "id": "12",
        "event_count": 3,
        "data_collections": [{"data_collection": "shop.orders", "event_count": 3}],
        "rows_from": "cdc",
        "rows": {"insert": 2, "update_preimage": 0, "update_postimage": 0, "delete": 1},
    }
