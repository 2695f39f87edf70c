"""Discovery in a bucket: tables that appear are delivered, and a search asks about each table once."""

import asyncio
import json
from pathlib import Path

import pytest

from cdfd.config.parser import parse
from cdfd.daemon.membership.discovery import FolderSearch
from cdfd.demo.writer import TableWriter
from cdfd.errors import CdfdError
from cdfd.storage.location import open_storage
from tests.support.commands import started
from tests.support.lake import SCHEMA, rows
from tests.support.s3.fixtures import new_bucket
from tests.support.s3.proxy import proxied
from tests.support.s3.server import Server, s3_section


async def create(server: Server, uri: str) -> None:
    writer = TableWriter(open_storage(uri, server.options()), SCHEMA)
    await writer.create()
    await writer.insert(rows(1))


def document(url: str, pattern: str, folder: Path) -> str:
    s3 = s3_section(url)
    return json.dumps(
        {
            "pipeline": "lake",
            "tables": [{"discover": pattern, "exclude": ["tmp_*"], "interval": "300ms"}],
            "sink": {"kind": "files", "path": str(folder / "out")},
            "storage": {"s3": s3},
            "http": {"listen": None},
        }
    )


def test_tables_of_a_bucket_are_found_and_those_that_appear(server: Server, tmp_path: Path) -> None:
    bucket = new_bucket(server)
    for name in ("orders", "tmp_1", "_hidden"):
        asyncio.run(create(server, f"s3://{bucket}/sales/{name}"))
    path = tmp_path / "cdfd.yaml"
    path.write_text(document(server.url, f"s3://{bucket}/sales/*", tmp_path))
    with started("run", "-c", path) as daemon:
        assert json.loads(daemon.log_line("added:"))["message"].endswith("added: orders")
        daemon.log_line("completed")
        asyncio.run(create(server, f"s3://{bucket}/sales/items"))
        daemon.log_line("added: items")
        daemon.log_line("completed")
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["items", "orders"]


def test_a_search_without_news_is_one_listing(moto_server: Server, bucket: str, tmp_path: Path) -> None:
    for name in ("orders", "items"):
        asyncio.run(create(moto_server, f"s3://{bucket}/sales/{name}"))
    with proxied(moto_server.url) as proxy:
        config = parse(document(proxy.url, f"s3://{bucket}/sales/*", tmp_path), {})

        async def scenario() -> list[int]:
            search, counts = FolderSearch(config, config.discoveries[0]), []
            for _ in range(3):
                before = len(proxy.asked)
                assert (await search.search()).tables == [("items",), ("orders",)]
                counts.append(len(proxy.asked) - before)
            return counts

        assert asyncio.run(scenario())[1:] == [1, 1]


def test_a_bucket_that_is_not_there_is_an_error(moto_server: Server, tmp_path: Path) -> None:
    config = parse(document(moto_server.url, "s3://no-such-bucket-here/*", tmp_path), {})
    with pytest.raises(CdfdError, match="bucket"):
        asyncio.run(FolderSearch(config, config.discoveries[0]).search())
