"""Modules that few calls need are not imported by others. pandas takes longer than most of what cdfd is asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

CALLS = {
    "import": "import cdfd",
    "changes": "import cdfd; assert cdfd.changes('t').read_all().num_rows == 5",
    "few late rows": "import cdfd; assert cdfd.changes('merged').read_all().num_rows == 10",
    "snapshot": "import cdfd; assert cdfd.snapshot('t').read_all().num_rows == 3",
    "changes where": "import cdfd; assert cdfd.changes('t', where='id > 1 OR name IS NULL').read_all().num_rows == 3",
    "snapshot where": "import cdfd; assert cdfd.snapshot('t', where='id = 1').read_all().num_rows == 2",
    "tail": "import sys; sys.argv[1:] = ['tail', 't', '--from', 'earliest', '--until', 'now']; from cdfd.cli import main; main()",
    "inspect": "import sys; sys.argv[1:] = ['inspect', 't']; from cdfd.cli import main; main()",
}


IMPORTED = """
import pathlib, traceback
ours = [frame for frame in traceback.extract_stack() if "cdfd" in frame.filename]
lines = [f"{frame.filename}:{frame.lineno} {frame.line}" for frame in ours]
pathlib.Path(__file__).with_name("imported").write_text("".join(f"{line}\\n" for line in lines))
raise ImportError
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table `t`, and a module `pandas` that says that it was imported."""
    folder = tmp_path_factory.mktemp("first")
    feed = {"delta.enableChangeDataFeed": "true"}
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", None]})
    write_deltalake(folder / "t", rows, configuration=feed, partition_by=["name"])

    DeltaTable(folder / "t").delete("id = 2")
    write_deltalake(folder / "t", rows.slice(0, 1), mode="append")

    # Two change data files, in each of which an insert, which is published after the deletes of both, follows two deletes.
    rows = pa.table({"id": range(6), "name": ["a", "b"] * 3})
    write_deltalake(folder / "merged", rows.slice(0, 4), configuration=feed, partition_by=["name"])
    merge = DeltaTable(folder / "merged").merge(rows, "new.id = old.id", source_alias="new", target_alias="old")
    merge.when_matched_delete().when_not_matched_insert_all().execute()
    (folder / "pandas").mkdir()
    (folder / "pandas" / "__init__.py").write_text(IMPORTED)
    return folder


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_pandas_is_not_imported(call: str, folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{Path.cwd()}"}
    done = subprocess.run(
        [sys.executable, "-c", call],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    marker = folder / "pandas" / "imported"
    stack = marker.read_text() if marker.exists() else ""
    marker.unlink(missing_ok=True)
    assert stack.splitlines()[-3:] == []


@pytest.mark.parametrize("call", ["changes", "few late rows"])
def test_reading_a_local_table_imports_nothing_that_it_does_without(call: str, folder: Path) -> None:
    rare = (
        "pyarrow.compute",
        "tempfile",
        "cdfd.plan.shape.predicate",
        "cdfd.scan.updates.refined",
        "cdfd.log.notifications",
    )
    rare += ("watchdog", "importlib.metadata", "email", "cdfd.scan.variant", "cdfd.storage.s3.storage")
    code = f"import sys; before = {{*sys.modules}}; {CALLS[call]}; print(*({{*sys.modules}} - before).intersection({rare}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == []
