"""A daemon with two sinks and a table on S3: one of the sinks asks for a file, and one asks for the next entry."""

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

from cdfd.demo.writer import TableWriter
from cdfd.storage.location import open_storage
from tests.support.kafka.daemon_process import Daemon, until
from tests.support.lake import SCHEMA, rows
from tests.support.s3.proxy import Proxy
from tests.support.s3.server import Server, s3_section

COMMITS = 12
POLL_SECONDS, IDLE_SECONDS = 0.5, 5.0


def at(place: Path) -> int:
    """The version after those that are delivered."""
    try:
        version: int = json.loads((place / "orders" / "_position.json").read_text())["version"]
    except FileNotFoundError:
        return -1
    return version


def test_one_listing_finds_the_tables_of_all_sinks(
    moto_server: Server, bucket: str, proxy: Proxy, tmp_path: Path
) -> None:
    options = {key: str(value) for key, value in moto_server.options().items()}
    config = tmp_path / "cdfd.yaml"
    document = {
        "pipeline": "shop",
        "tables": [{"discover": f"s3://{bucket}/*", "interval": f"{POLL_SECONDS}s", "start": "earliest"}],
        "sinks": {name: {"kind": "files", "path": str(tmp_path / name)} for name in ("one", "two", "three")},
        "storage": {"s3": s3_section(proxy.url)},
        "http": {"listen": None},
    }
    config.write_text(json.dumps(document))
    with Daemon(config) as daemon:
        writer = TableWriter(open_storage(f"s3://{bucket}/orders", options), SCHEMA)
        asyncio.run(writer.create())
        until(lambda: all((tmp_path / name / "orders").exists() for name in document["sinks"]))
        proxy.asked.clear()
        time.sleep(IDLE_SECONDS)
        listings = [each for each in proxy.asked if "list-type=2" in each.query and "_delta_log" not in each.query]
        assert 0 < len(listings) <= IDLE_SECONDS / POLL_SECONDS + 2
        daemon.stop()


def test_files_are_asked_for_once_and_polls_are_shared(
    moto_server: Server, bucket: str, proxy: Proxy, tmp_path: Path
) -> None:
    options = {key: str(value) for key, value in moto_server.options().items()}
    writer = TableWriter(open_storage(f"s3://{bucket}/orders", options), SCHEMA)
    folders = [tmp_path / name for name in ("one", "two")]
    config = tmp_path / "cdfd.yaml"
    document = {
        "pipeline": "shop",
        "tables": [{"uri": f"s3://{bucket}/orders", "start": "earliest"}],
        "sinks": {folder.name: {"kind": "files", "path": str(folder), "format": "jsonl"} for folder in folders},
        "storage": {"s3": s3_section(proxy.url)},
        "poll": {"interval": f"{POLL_SECONDS}s", "max_interval": f"{POLL_SECONDS}s"},
        "http": {"listen": None},
    }
    config.write_text(json.dumps(document))

    async def commit() -> None:
        await writer.insert(rows(writer.version))

    asyncio.run(writer.create())
    asyncio.run(commit())
    with Daemon(config) as daemon:
        until(lambda: min(map(at, folders)) > writer.version)
        proxy.asked.clear()
        for _ in range(COMMITS):
            asyncio.run(commit())
            until(lambda: min(map(at, folders)) > writer.version)
        asked = Counter(each.path.rsplit("/", 1)[-1] for each in proxy.asked if each.method == "GET")
        files = {name: count for name, count in asked.items() if name.endswith(".parquet")}
        assert len(files) == COMMITS
        # A reader that comes a moment later asks again, if the first one has not begun.
        assert sum(files.values()) <= COMMITS + 2, files
        proxy.asked.clear()
        time.sleep(IDLE_SECONDS)
        following = f"{writer.version + 1:020d}.json"
        assert 0 < proxy.count("GET", following) <= IDLE_SECONDS / POLL_SECONDS + 2
        daemon.stop()
    actual = [
        [
            json.loads(line)
            for file in sorted((folder / "orders").glob("*.jsonl"))
            for line in file.read_text().splitlines()
        ]
        for folder in folders
    ]
    assert [row["id"] for row in actual[0]] == list(range(COMMITS + 1))
    assert actual[0] == actual[1]
