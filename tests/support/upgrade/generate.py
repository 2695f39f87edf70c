"""Writes golden copies that are missing: `python -m tests.support.upgrade.generate`. It never changes one that is there."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa

from cdfd.trevni import write_table
from tests.support.upgrade.copies import GOLDEN
from tests.support.upgrade.documents import DOCUMENTS, Documents
from tests.support.upgrade.names import names_file
from tests.support.upgrade.pipelines import SINKS, kafka_pipelines, write_pipeline
from tests.support.upgrade.plans import PLANS
from tests.support.upgrade.rows import KEYS
from tests.support.upgrade.stores import FOLDERS, write_folder, write_ledger, write_source
from tests.support.upgrade.tables import TABLES, copy_tables


def generate() -> None:
    """Write each copy by today's code, tables first."""
    for name, write in TABLES.items():
        _missing(f"tables/{name}", write)
    _missing("rows.trv", lambda path: write_table(pa.table(KEYS), path))
    _missing("ledger", write_ledger)
    _missing("source", write_source)
    for name in FOLDERS:
        _missing(f"folders/{name}", partial(write_folder, name))
    _missing("names.json", lambda path: path.write_bytes(names_file()))
    for each in DOCUMENTS:
        _missing(each.name, partial(_write_documents, each))
    with tempfile.TemporaryDirectory() as folder:
        lake = copy_tables(Path(folder))
        for name, content in PLANS.items():
            _missing(name, lambda path, content=content: path.write_bytes(content(lake)))
    _missing("kafka/pipelines.jsonl", lambda path: path.write_bytes(kafka_pipelines()))
    for name in SINKS:
        _missing(f"pipelines/{name}", partial(_write_pipeline, name))


def _write_pipeline(name: str, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_pipeline(name, Path(folder), path)


def _write_documents(documents: Documents, path: Path) -> None:
    path.write_bytes(b"".join(documents.write(value) + b"\n" for value in documents.values))


def _missing(name: str, write: Callable[[Path], object]) -> None:
    path = GOLDEN / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
        print(f"written: {name}")


if __name__ == "__main__":
    generate()
