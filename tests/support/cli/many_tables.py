"""A daemon of many tables: their writers, its configuration, and the rows of its topics."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.commands import WITHIN, Running
from tests.support.lake import SCHEMA, rows


async def create(place: Path, *ids: int, **properties: str) -> TableWriter:
    writer = TableWriter(
        LocalStorage(place), SCHEMA, properties={f"cdfd.{name}": properties[name] for name in properties}
    )
    await writer.create()
    for each in ids:
        await writer.insert(rows(each))
    return writer


def configure(folder: Path, *entries: dict[str, object], **sections: object) -> Path:
    """Write the configuration as editors and volumes do: a new file that replaces the old one."""
    path = folder / "cdfd.yaml"
    settings = {
        "pipeline": "shop",
        "tables": list(entries),
        "sink": {"kind": "files", "path": str(folder / "out")},
        "poll": {"interval": "100ms", "max_interval": "200ms"},
        "http": {"listen": "127.0.0.1:0"},
    } | sections
    (folder / "new.yaml").write_text(json.dumps(settings))
    (folder / "new.yaml").rename(path)
    return path


def delivered(folder: Path, topic: str) -> list[int]:
    """The ids of a topic's rows."""
    files = sorted((folder / "out" / topic).glob("*.jsonl"))
    return [json.loads(line)["id"] for file in files for line in file.read_text().splitlines()]


def wait_until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def message(daemon: Running, containing: str) -> str:
    return str(json.loads(daemon.log_line(containing))["message"])
