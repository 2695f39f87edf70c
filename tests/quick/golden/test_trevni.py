"""Trevni files that the reference wrote, where their folder is there: cdfd finds in them what the reference's own reader finds."""

import json
from pathlib import Path

import pytest

from cdfd.cli.commands.trevni import physical_document
from cdfd.trevni.rows import Reader
from tests.support.trevni.memory import memory_source

FOLDER = Path(__file__).parents[4] / "shared" / "golden" / "trevni"
FILES = sorted(path for path in FOLDER.glob("*.trv") if path.with_suffix(".json").exists())

pytestmark = pytest.mark.skipif(not FILES, reason="there is no folder of golden files beside this checkout")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_columns_are_those_of_the_reference(path: Path) -> None:
    actual = b"".join(physical_document(Reader(memory_source(path.read_bytes()))))
    assert json.loads(actual) == json.loads(path.with_suffix(".json").read_text())
