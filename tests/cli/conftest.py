"""Tables that commands are given."""

from pathlib import Path

import pytest
from commands import history
from lake import run

from cdfd.demo.writer import TableWriter


@pytest.fixture
def writer(tmp_path: Path) -> TableWriter:
    return run(history(tmp_path / "orders"))


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table that nobody changes."""
    folder = tmp_path_factory.mktemp("lake") / "orders"
    run(history(folder))
    return str(folder)
