"""`cdfd inspect`: describes a table, its unsupported features, and the source of its changes."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from cdfd import escaping as plain
from cdfd.delta.protocol import cdf_enabled, features_report, in_commit_timestamps_enabled
from cdfd.delta.snapshot import Snapshot
from cdfd.delta.types.arrow_types import arrow_type
from cdfd.delta.types.datatypes import StructField
from cdfd.errors import CdfdError, UnsupportedError, Within
from cdfd.log.bounds import Start
from cdfd.log.start import state_version
from cdfd.log.table import Table
from cdfd.sinks.ledger.txn_positions import is_part


def report(uri: str, version: Start | None = None, *, as_json: bool = False, **access: Any) -> str:
    """The report as text for people or as JSON, with a final line feed. `access`: as for `Table.open`.

    Raises:
        CdfdError: there is no table, or its log is damaged. An unsupported feature is part of the report instead.
    """
    table = Table.open(uri, **access)
    with Within(table.uri):
        facts = asyncio.run(_gather(table, version))
    return f"{plain.as_json(facts, indent=2)}\n" if as_json else "".join(f"{line}\n" for line in _lines(facts))


async def _gather(table: Table, version: Start | None) -> dict[str, Any]:
    wanted = None if version is None else await state_version(table.log, version)
    header = await table.log.partial_header(wanted, state_only=True)
    protocol, metadata = header.protocol, header.metadata
    if protocol is None or metadata is None:
        header.finish()
    assert protocol is not None
    assert metadata is not None
    features = features_report(protocol, metadata, by_catalog=table.log.by_catalog)
    first, last, checkpoints = None, None, set[int]()
    async for name, _ in table.log.list_names():
        if name.kind == "commit":
            first = name.version if first is None else first
            last = name.version
        elif name.kind in ("checkpoint", "part", "v2"):
            checkpoints.add(name.version)
    facts: dict[str, Any] = {
        "table": table.uri,
        "version": header.version,
        "id": metadata.id,
        "name": metadata.name,
        "protocol": {
            "minReaderVersion": protocol.min_reader_version,
            "minWriterVersion": protocol.min_writer_version,
        },
        "features": [{"name": f.name, "kind": f.kind, "status": f.status, "enabled": f.enabled} for f in features],
        "stopped_by": None,
        "partition_columns": list(metadata.partition_columns),
        "configuration": dict(sorted(metadata.configuration.items())),
        "changes": {
            "from": "cdc files if a version has them, else add and remove actions"
            if cdf_enabled(metadata)
            else "add and remove actions",
            "change_data_feed": cdf_enabled(metadata),
            "timestamps": "in-commit" if in_commit_timestamps_enabled(metadata) else "log file modification time",
        },
        "log": {"first_version": first, "last_version": last, "checkpoints": sorted(checkpoints)},
    }
    try:
        snapshot = await table.log.snapshot(header.version)
        with Within(table.uri):
            return facts | _state(snapshot)
    except CdfdError as error:
        facts["stopped_by"] = str(error)
        return facts


def _state(snapshot: Snapshot) -> dict[str, Any]:
    live = snapshot.live()
    schema = snapshot.header.schema
    vectors = live.table.column("deletion_vector")
    return {
        "schema": [
            {"name": column.name, "type": _type_of(column), "nullable": column.nullable} for column in schema.struct
        ],
        "column_mapping": str(schema.mapping),
        "live_files": len(live),
        "live_bytes": live.total_size(),
        "files_with_deletion_vectors": len(vectors) - vectors.null_count,
        "transactions": {txn.app_id: txn.version for txn in snapshot.txns.values() if not is_part(txn.app_id)},
        "domains": sorted(snapshot.domains),
    }


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    protocol, log = facts["protocol"], facts["log"]
    checkpoints = log["checkpoints"]
    has_log = log["first_version"] is not None
    entries = f"log entries {log['first_version']} to {log['last_version']}" if has_log else "no log entries"
    rows = [
        ("table", facts["table"]),
        ("id", facts["id"]),
        ("version", f"{facts['version']} ({entries})"),
        ("checkpoints", f"{len(checkpoints)}, newest at version {checkpoints[-1]}" if checkpoints else "none"),
        ("protocol", f"reader {protocol['minReaderVersion']}, writer {protocol['minWriterVersion']}"),
        (
            "features",
            ", ".join(f"{each['name']}{_NOTES.get(each['status'], '')}" for each in facts["features"]) or "none",
        ),
        ("partitioned by", ", ".join(facts["partition_columns"]) or "nothing"),
        ("changes from", facts["changes"]["from"]),
        ("timestamps", facts["changes"]["timestamps"]),
    ]
    if facts["stopped_by"] is not None:
        rows.append(("cannot be read", facts["stopped_by"]))
    else:
        rows.append(("live files", f"{facts['live_files']:,} of {facts['live_bytes']:,} bytes"))
        if facts["files_with_deletion_vectors"]:
            rows.append(("", f"{facts['files_with_deletion_vectors']:,} with deletion vectors"))
        for number, column in enumerate(facts["schema"]):
            text = f"{column['name']}: {column['type']}{'' if column['nullable'] else ' not null'}"
            rows.append(("" if number else "schema", text))
    yield from (plain.one_line(f"{label:<16}{text}") for label, text in rows)


_NOTES = {"refused": " (NOT SUPPORTED)", "ignored": " (writers only)"}


def _type_of(column: StructField) -> str:
    """The Arrow type of a column; if cdfd cannot read it, its own type."""
    try:
        return str(arrow_type(column.type))
    except UnsupportedError:
        return f"{column.type} (not readable)"
