"""Tables that commands are given."""

from pathlib import Path

import pytest

from cdfd.demo.writer import TableWriter
from tests.support.commands import history
from tests.support.lake import run


@pytest.fixture
def writer(tmp_path: Path) -> TableWriter:
    return run(history(tmp_path / "orders"))


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table that stays unchanged."""
    folder = tmp_path_factory.mktemp("lake") / "orders"
    run(history(folder))
    return str(folder)
