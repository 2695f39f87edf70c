"""Tables that are large in one way, in a megabyte or so: whatever costs the square of it shows."""

import json
from random import Random
from typing import Any

import pyarrow as pa

import cdfd
from cdfd.delta import paths
from tests.support.checkpoint_layout import part_name, v2_name
from tests.support.fuzz import lakes, stores
from tests.support.fuzz.cases import Case, Target, guarded
from tests.support.fuzz.lakes import Files, commit, entry
from tests.support.fuzz.reading import Enough, lines_of

_ID = pa.schema({"id": pa.int64()})
_DATA = lakes.parquet(pa.table({"id": [1]}))
_ADD = {"path": "a.parquet", "partitionValues": {}, "size": len(_DATA), "modificationTime": 1, "dataChange": True}


def _column(name: str, kind: Any = "long") -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _nested(depth: int, kind: str) -> Any:
    field_type: Any = "long"
    for _ in range(depth):
        if kind == "array":
            field_type = {"type": "array", "elementType": field_type, "containsNull": True}
        else:
            field_type = {
                "type": "struct",
                "fields": [_column("a", field_type), _column("b", field_type if depth < 12 else "long")],
            }
    return field_type


def tables(kind: str, count: int) -> Files:
    """A table with so many of something."""
    columns, partitions, settings, add = _of_schema(kind, count)
    header = _header(columns, partitions, settings)
    first, others = _of_log(kind, count, header, add)
    return {"a.parquet": _DATA, commit(0): entry(*header), commit(1): entry(*(first or [{"add": add}]))} | others


def _of_schema(kind: str, count: int) -> tuple[list[dict[str, Any]], list[str], dict[str, str], dict[str, Any]]:
    """Columns, partition columns, properties, and the action that adds the file."""
    columns, add = [_column("id")], dict(_ADD)
    match kind:
        case "columns":
            columns += [_column(f"c{n}") for n in range(count)]
        case "same columns":
            columns += [_column("x" * (n % 2 + 1)) for n in range(count)]
        case "partitions":
            columns += [_column(f"c{n}", "string") for n in range(count)]
            add["partitionValues"] = {f"c{n}": "x" for n in range(count)}
        case "other case":
            columns += [_column(f"c{n}", "string") for n in range(count)]
            add["partitionValues"] = {f"C{n}": "x" for n in range(count)}
        case "long name":
            columns.append(_column("x" * count))
        case "arrays" | "structs":
            columns.append(_column("n", _nested(min(count, 78), "array" if kind == "arrays" else "struct")))
        case "bushy":
            columns.append(_column("n", _nested(11, "struct")))
        case "stats":
            add["stats"] = json.dumps({"numRecords": 1, "minValues": {f"c{n}": n for n in range(count)}})
    settings = {f"s{n}": "x" for n in range(count)} if kind == "settings" else {}
    return columns, [*add["partitionValues"]], settings, add


def _of_log(kind: str, count: int, header: list[Any], add: dict[str, Any]) -> tuple[list[dict[str, Any]], Files]:
    """Actions of version 1, and other files."""
    actions: dict[str, Any] = {
        "adds": lambda n: {"add": {**add, "path": f"{n}.parquet"}},
        "same add": lambda n: {"add": add},
        "txns": lambda n: {"txn": {"appId": f"a{n}", "version": n}},
        "domains": lambda n: {"domainMetadata": {"domain": f"a{n}", "configuration": "{}", "removed": n % 2 == 0}},
        "unknown": lambda n: {f"u{n}": {}},
    }
    if kind in actions:
        removes = [{"remove": {"path": f"{n}.parquet", "dataChange": True}} for n in range(count)]
        return [actions[kind](n) for n in range(count)], {commit(2): entry(*removes)} if kind == "adds" else {}
    match kind:
        case "empty lines":
            return [], {commit(2): b"\n" * count}
        case "commits":
            return [], {commit(n): entry({"txn": {"appId": "a", "version": n}}) for n in range(2, min(count, 600))}
        case "parts":
            return [], {f"{paths.LOG}/{part_name(1, n + 1, count)}": b"x" for n in range(min(count, 3000))}
        case "junk":
            return [], {f"{paths.LOG}/{n:020d}.crc": b"x" for n in range(min(count, 5000))}
        case "escapes":
            return [{"add": {**add, "path": "%25" * count}}], {"%" * count: _DATA}
        case "dots":
            return [{"add": {**add, "path": "./" * count + "a.parquet"}}], {}
        case "sidecars":
            extra = [
                {"sidecar": {"path": f"{n}.parquet", "sizeInBytes": 1, "modificationTime": 1}} for n in range(count)
            ]
            name = v2_name(1, "00000000-0000-0000-0000-000000000007", "json")
            return [], {f"{paths.LOG}/{name}": entry(*header, {"checkpointMetadata": {"version": 1}}, *extra)}
    return [], {}


def _header(columns: list[dict[str, Any]], partitions: list[str], settings: dict[str, str]) -> list[dict[str, Any]]:
    schema = json.dumps({"type": "struct", "fields": columns})
    return [lakes.protocol("v2Checkpoint"), lakes.metadata(schema, partitions, **settings)]


KINDS = (
    *(
        "columns",
        "same columns",
        "partitions",
        "long name",
        "arrays",
        "structs",
        "bushy",
        "settings",
        "adds",
        "same add",
    ),
    *("txns", "domains", "empty lines", "unknown", "commits", "parts", "junk", "escapes", "dots", "sidecars", "stats"),
)


def check_large(case: Case) -> str:
    files = tables(case.args["kind"], case.args["count"])
    with stores.in_memory(Case("", files, case.args)) as uri:

        def read() -> str:
            lines_of(cdfd.snapshot(uri))
            return f"rows {len(lines_of(cdfd.changes(uri, 0))) > 0}"

        try:
            return guarded(read, uri)
        except Enough:
            return "enough"


def _make_large(random: Random) -> Case:
    args = {
        "kind": random.choice(KINDS),
        "count": random.choice((1, 100, 1000, 10_000)),
        "remote": random.random() < 0.3,
    }
    return Case("large", {}, args)


TARGETS = (Target("large", _make_large, check_large, 0.3),)
