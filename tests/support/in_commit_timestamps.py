"""A target in which another writer enables in-commit timestamps, and the rules for the entries that follow."""

import json
from pathlib import Path


def enable(folder: Path) -> int:
    """Another writer, whose clock is ahead, commits the properties and the feature. Its time."""
    log = sorted((folder / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for path in log for line in path.read_text().splitlines()]
    metadata = [each["metaData"] for each in actions if "metaData" in each][-1]
    metadata["configuration"]["delta.enableInCommitTimestamps"] = "true"
    protocol = [each["protocol"] for each in actions if "protocol" in each][-1]
    upgraded = {"minReaderVersion": protocol["minReaderVersion"], "minWriterVersion": 7}
    features = {*protocol.get("writerFeatures", ("appendOnly", "invariants")), "inCommitTimestamp"}
    upgraded |= {"readerFeatures": protocol["readerFeatures"]} if "readerFeatures" in protocol else {}
    info = {"inCommitTimestamp": 1 << 42, "operation": "SET TBLPROPERTIES"}
    entry = [
        {"commitInfo": info},
        {"protocol": {**upgraded, "writerFeatures": sorted(features)}},
        {"metaData": metadata},
    ]
    (folder / "_delta_log" / f"{len(log):020}.json").write_text("\n".join(map(json.dumps, entry)))
    return 1 << 42


def check_entries(folder: Path, since: int, time: int) -> list[str]:
    """The entries since a version have in-commit timestamps after a time, and one `txn` of an appId at most. Their operations."""
    operations = []
    for path in sorted((folder / "_delta_log").glob("*.json"))[since:]:
        first, *others = map(json.loads, path.read_text().splitlines())
        assert first["commitInfo"]["inCommitTimestamp"] > time, path.name
        time = first["commitInfo"]["inCommitTimestamp"]
        operations.append(first["commitInfo"]["operation"])
        apps = [each["txn"]["appId"] for each in others if "txn" in each]
        assert len(apps) == len(set(apps)), path.name
    return operations
