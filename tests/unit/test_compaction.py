"""Log compaction files: of actions that reconcile with each other, the first one counts."""

import json

from cdfd.delta import compaction

DV = {"storageType": "u", "pathOrInlineDv": "vBn[lx{q8@P<9BNH/isA", "offset": 1, "sizeInBytes": 36, "cardinality": 2}


def entry(*actions: dict[str, object]) -> bytes:
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)


def add(path: str, **more: object) -> dict[str, object]:
    return {"add": {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True, **more}}


def remove(path: str, **more: object) -> dict[str, object]:
    return {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True, **more}}


def test_the_newest_action_of_a_file_comes_first_and_counts() -> None:
    merged = compaction.parse(9, entry(remove("a"), add("b"), add("a"), add("b", size=7), remove("b")))
    assert [each.path for each in merged.removes] == ["a"]
    assert [(each.path, each.size) for each in merged.adds] == [("b", 1)]


def test_files_with_different_vectors_are_different_files() -> None:
    merged = compaction.parse(9, entry(remove("a", deletionVector=DV), add("a"), add("a", deletionVector=DV)))
    assert [each.deletion_vector is None for each in merged.adds] == [True]
    assert [each.deletion_vector is None for each in merged.removes] == [False]


def test_first_of_everything_else_and_no_change_data() -> None:
    merged = compaction.parse(
        9,
        entry(
            {"txn": {"appId": "x", "version": 5}},
            {"txn": {"appId": "x", "version": 4}},
            {"domainMetadata": {"domain": "d", "configuration": "new", "removed": False}},
            {"domainMetadata": {"domain": "d", "configuration": "old", "removed": False}},
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}},
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"cdc": {"path": "c", "partitionValues": {}, "size": 1, "dataChange": False}},
        ),
    )
    assert [(each.app_id, each.version) for each in merged.txns] == [("x", 5)]
    assert [each.configuration for each in merged.domains] == ["new"]
    assert merged.protocol is not None
    assert merged.protocol.min_reader_version == 3
    assert merged.version == 9
    assert not merged.cdcs
