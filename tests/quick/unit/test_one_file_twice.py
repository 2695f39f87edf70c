"""A file that a log names by several spellings of its path, or twice in one version."""

from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

import cdfd
from cdfd.cli import app
from cdfd.delta import commit as commits
from cdfd.delta import paths
from cdfd.demo.writer import TableWriter
from cdfd.errors import LogError
from cdfd.storage.local import LocalStorage
from tests.support import checkpoint_layout
from tests.support.lake import entry_path, manual_clock, run, table

SPELLINGS = ["./{}", "d/../{}", ".//{}", "d//..//{}"]


async def respelled(folder: Path, spelling: str) -> str:
    """Version 1 adds a file, 2 adds it again by another spelling, 3 removes it by its name."""
    writer: TableWriter = await table(LocalStorage(folder), 2, manual_clock())
    lines = map(orjson.loads, (folder / entry_path(1)).read_bytes().splitlines())
    add = next(action["add"] for action in lines if "add" in action)
    name = str(add["path"])
    await writer.commit("WRITE", [("add", add | {"path": spelling.format(name), "dataChange": False})])
    await writer.commit("DELETE", [writer._remove(next(iter(writer._files.values())))])
    return name


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_are_one_file(tmp_path: Path, spelling: str) -> None:
    run(respelled(tmp_path, spelling))
    assert cdfd.snapshot(str(tmp_path), 2).read_all().column("id").to_pylist() == [1]
    assert cdfd.snapshot(str(tmp_path), 3).read_all().num_rows == 0
    changes = cdfd.changes(str(tmp_path)).read_all().to_pylist()
    assert [(row["_change_type"], row["_commit_version"]) for row in changes] == [("insert", 1), ("delete", 3)]


VECTORS = [
    None,
    {"storageType": "u", "pathOrInlineDv": "ab", "offset": 1, "sizeInBytes": 40, "cardinality": 1},
    {"storageType": "u", "pathOrInlineDv": "ab", "offset": 41, "sizeInBytes": 40, "cardinality": 2},
]


@pytest.mark.parametrize("second", [0, 2])
@pytest.mark.parametrize("others", [0, 5000])
def test_one_path_twice_in_one_version_is_refused(second: int, others: int) -> None:
    """The specification forbids it, because its rows would count twice."""
    fields = {"partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    entries = [{"add": fields | {"path": f"{number}.parquet"}} for number in range(others)]
    entries.insert(others // 2, {"add": fields | {"path": "x.parquet", "deletionVector": VECTORS[1]}})
    entries.append({"add": fields | {"path": "./x.parquet", "deletionVector": VECTORS[second]}})
    data = b"\n".join(map(orjson.dumps, entries))
    with pytest.raises(LogError, match="two actions of one kind for one data file") as caught:
        commits.parse(7, data)
    assert (caught.value.version, caught.value.path) == (7, "x.parquet")
    entries[-1] = entries[others // 2]
    assert len(commits.parse(7, b"\n".join(map(orjson.dumps, entries))).adds) == others + 1


async def added_again(folder: Path, *, checkpointed: bool) -> None:
    """Version 1 adds a file, and version 2 adds it again with a deletion vector, but does not remove it as it was."""
    storage = LocalStorage(folder)
    writer: TableWriter = await table(storage, 2, manual_clock())
    lines = map(orjson.loads, (folder / entry_path(1)).read_bytes().splitlines())
    add = next(action["add"] for action in lines if "add" in action)
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7} | features
    again = add | {"deletionVector": VECTORS[1]}
    await writer.commit("DELETE", [("protocol", protocol), ("add", again)])
    if checkpointed:
        first = map(orjson.loads, (folder / entry_path(0)).read_bytes().splitlines())
        metadata = next(action["metaData"] for action in first if "metaData" in action)
        metadata |= {"format": {"provider": "parquet", "options": []}, "configuration": []}
        files = [{"add": file | {"partitionValues": []}} for file in (add, again)]
        for name, data in checkpoint_layout.single(2, [{"protocol": protocol}, {"metaData": metadata}, *files]).items():
            await storage.put(f"{paths.LOG}/{name}", data)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_two_live_adds_of_one_path_are_refused(tmp_path: Path, *, checkpointed: bool) -> None:
    """A reader of all files finds the conflict. A reader that follows the log publishes each version as it is."""
    run(added_again(tmp_path, checkpointed=checkpointed))
    with pytest.raises(LogError, match="is in the table twice, with different deletion vectors") as caught:
        cdfd.snapshot(str(tmp_path)).read_all()
    assert (caught.value.table, caught.value.version) == (str(tmp_path), 2)
    assert cdfd.snapshot(str(tmp_path), 1).read_all().num_rows == 1
    description = CliRunner().invoke(app, ["inspect", str(tmp_path)]).output
    assert "is in the table twice" in description
    assert str(tmp_path) in description


def test_file_whose_vector_is_replaced() -> None:
    """An add and a remove of one path with different vectors are what every delete of rows writes. Change data may be there too."""
    remove = {"path": "x", "dataChange": True, "deletionVector": VECTORS[1]}
    add = {"path": "x", "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    data = orjson.dumps({"remove": remove}) + b"\n" + orjson.dumps({"add": add | {"deletionVector": VECTORS[2]}})
    data += b"\n" + orjson.dumps({"cdc": {"path": "x", "partitionValues": {}, "size": 1, "dataChange": False}})
    actual = commits.parse(1, data)
    assert (len(actual.adds), len(actual.removes), len(actual.cdcs)) == (1, 1, 1)
