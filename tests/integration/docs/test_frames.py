"""pandas, Polars, DuckDB and pyarrow take what the Python API returns through the Arrow PyCapsule interface."""

import json
import subprocess
from pathlib import Path

import pytest

import cdfd
from tests.support.commands import history
from tests.support.lake import run
from tests.support.spark import environments

TAKERS = {
    "pandas": "import pandas; rows = pandas.DataFrame.from_arrow(reader).to_dict('records')",
    "polars": "import polars; rows = polars.DataFrame(reader).to_dicts()",
    "duckdb": "import duckdb; rows = duckdb.sql('FROM reader').to_arrow_table().to_pylist()",
    "pyarrow": "import pyarrow; rows = pyarrow.table(Capsule(reader)).to_pylist()",
}
SCRIPT = """
import json, sys
import cdfd

class Capsule:  # nothing but the interface
    def __init__(self, reader):
        self._reader = reader

    def __arrow_c_stream__(self, requested_schema=None):
        return self._reader.__arrow_c_stream__(requested_schema)

reader = %s
%s
print(json.dumps([[row["id"], row["v"], row["_change_type"], row["_commit_version"]] for row in rows]))
"""
CALLS = {
    "changes": "cdfd.changes('orders')",
    "snapshot": "cdfd.snapshot('orders')",
    "views": "cdfd.changes('orders', string_views=True)",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    run(history(folder / "orders"))
    return folder


def read(call: str, taker: str, folder: Path) -> subprocess.CompletedProcess[str]:
    python = environments.python(*environments.FRAMES)
    script = SCRIPT % (CALLS[call], TAKERS[taker])
    return subprocess.run(
        [str(python), "-c", script],
        cwd=folder,
        env=environments.variables(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("taker", TAKERS)
def test_library_gets_every_row_in_order(call: str, taker: str, folder: Path) -> None:
    done = read(call, taker, folder)
    assert done.returncode == 0, done.stderr
    orders = folder / "orders"
    reader = cdfd.snapshot(orders) if call == "snapshot" else cdfd.changes(orders)
    columns = ("id", "v", "_change_type", "_commit_version")
    assert json.loads(done.stdout) == [[row[name] for name in columns] for row in reader.read_all().to_pylist()]


@pytest.mark.parametrize("taker", TAKERS)
def test_error_while_reading_reaches_the_user_of_the_library(taker: str, tmp_path: Path) -> None:
    run(history(tmp_path / "orders"))
    [change_data] = (tmp_path / "orders").glob("_change_data/*")
    change_data.write_bytes(b"PAR1")
    done = read("changes", taker, tmp_path)
    assert done.returncode != 0
    assert f"_change_data/{change_data.name}" in done.stderr
