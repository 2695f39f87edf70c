"""A daemon with `sink.kind: delta`: its configuration, its source, and the rows of its target."""

import json
import time
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

import cdfd as package
from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.commands import WITHIN
from tests.support.lake import SCHEMA, rows


def configure(folder: Path, **sink: object) -> Path:
    path = folder / "cdfd.yaml"
    settings = {
        "pipeline": "shop",
        "tables": [{"uri": str(folder / "lake" / "orders"), "start": "earliest"}],
        "sink": {"kind": "delta", "path": str(folder / "copies")} | sink,
        "poll": {"interval": "50ms", "max_interval": "100ms"},
        "http": {"listen": "127.0.0.1:0"},
    }
    path.write_text(json.dumps(settings))
    return path


async def write(folder: Path, versions: int, random: Random) -> TableWriter:
    # Nothing kills the writer, so it need not wait for the disk.
    writer = TableWriter(LocalStorage(folder / "lake" / "orders", sync=False), SCHEMA)
    await writer.create()
    await writer.insert(rows(*range(400, 800)))
    for number in range(versions):
        match random.randrange(3):
            case 0:
                await writer.update(pc.field("id").isin(range(number, 800, 7)), {"v": pc.scalar(f"u{number}")})
            case 1:
                await writer.delete(pc.field("id").isin(range(number, 800, 11)))
            case _:
                await writer.insert(rows(*range(10 * number, 10 * number + 10)))
    return writer


def change_rows(target: Path) -> list[dict[str, object]]:
    content = DeltaTable(target).to_pyarrow_table()
    ordered = content.sort_by([("_commit_version", "ascending"), ("_change_ordinal", "ascending")])
    result: list[dict[str, object]] = ordered.to_pylist()
    return result


def is_table(target: Path) -> bool:
    """Whether there is a target. Before that, its folder may have data files."""
    return DeltaTable.is_deltatable(str(target))


def wait_for_target(folder: Path) -> None:
    """Wait until the target has the newest version of the source."""
    deadline, target = time.monotonic() + WITHIN, folder / "copies" / "orders"
    newest = DeltaTable(folder / "lake" / "orders").version()
    while not is_table(target) or DeltaTable(target).transaction_version("cdfd/shop/orders") != newest:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def expected(folder: Path) -> list[dict[str, object]]:
    content: pa.Table = package.changes(folder / "lake" / "orders", 0).read_all()
    result: list[dict[str, object]] = content.to_pylist()
    return result


def configure_mirror(folder: Path, **sink: object) -> Path:
    path = configure(folder, mode="mirror", **sink)
    settings = json.loads(path.read_text())
    settings["tables"][0] |= {"key": ["id"], "start": "snapshot"}
    path.write_text(json.dumps(settings))
    return path


def live_rows(table: Path, version: int | None = None) -> list[dict[str, object]]:
    content = package.snapshot(table, version).read_all().select(["id", "v"]).sort_by("id")
    result: list[dict[str, object]] = content.to_pylist()
    return result
