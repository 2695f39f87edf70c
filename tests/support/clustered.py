"""A Delta table that another writer clusters."""

import json
from pathlib import Path
from typing import Any


def cluster(folder: Path, *columns: str) -> None:
    """Cluster a table by columns, in a version of another writer."""
    actions = _actions(folder)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, **_last(actions, "protocol")}
    features = {*protocol.get("writerFeatures", ()), "domainMetadata", "clustering"}
    changed = {**protocol, "minWriterVersion": 7, "writerFeatures": sorted(features)}
    paths = [[physical] for name in columns for physical, each in _names(actions).items() if each == name]
    domain = {
        "domain": "delta.clustering",
        "configuration": json.dumps({"clusteringColumns": paths, "domainName": "delta.clustering"}),
        "removed": False,
    }
    log = folder / "_delta_log"
    entry = log / f"{len(list(log.glob('*.json'))):020}.json"
    entry.write_text("\n".join(map(json.dumps, ({"protocol": changed}, {"domainMetadata": domain}))))


def clustering(folder: Path) -> list[str]:
    """The columns by which a table is clustered. An error if it does not have one of them."""
    actions = _actions(folder)
    document = json.loads(_last(actions, "domainMetadata")["configuration"])
    assert document["domainName"] == "delta.clustering"
    return [_names(actions)[name] for (name,) in document["clusteringColumns"]]


def _names(actions: list[dict[str, Any]]) -> dict[str, str]:
    """The names of the columns by their physical names."""
    metadata = _last(actions, "metaData")
    fields = json.loads(metadata["schemaString"])["fields"]
    return {each["metadata"].get("delta.columnMapping.physicalName", each["name"]): each["name"] for each in fields}


def _last(actions: list[dict[str, Any]], name: str) -> dict[str, Any]:
    last: dict[str, Any] = [each[name] for each in actions if name in each][-1]
    return last


def _actions(folder: Path) -> list[dict[str, Any]]:
    log = sorted((folder / "_delta_log").glob("*.json"))
    return [json.loads(line) for path in log for line in path.read_text().splitlines()]
