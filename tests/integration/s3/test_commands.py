"""Commands and the Python API over a table in S3, as over one in a folder."""

import asyncio
import json
import subprocess
import sys

import pyarrow.compute as pc
import pytest

import cdfd as api
from cdfd.demo.writer import TableWriter
from cdfd.errors import ConfigError
from cdfd.storage.location import open_storage
from tests.standard.s3.test_requests import new_table
from tests.support.commands import ALL, brief, cdfd, one_line
from tests.support.kafka.shared import SharedBroker
from tests.support.lake import rows
from tests.support.s3.server import SECRET, Server


@pytest.fixture
def uri(moto_server: Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table of six versions; the environment leads to its server."""
    for name, value in moto_server.environment().items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    address = f"s3://{bucket}/lake/orders"

    async def write() -> None:
        writer: TableWriter = await new_table(moto_server, address, 4)
        await writer.update(pc.field("id") == 1, {"v": pc.scalar("b")})
        await writer.delete(pc.field("id") == 2)

    asyncio.run(write())
    return address


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_tail(uri: str, scheme: str) -> None:
    ended = cdfd("tail", uri.replace("s3", scheme, 1), "--from", "0", "--until", "now")
    assert brief(ended) == ALL, ended
    assert cdfd("tail", uri, "--snapshot", "--until", "now").lines()


def test_inspect(uri: str) -> None:
    ended = cdfd("inspect", uri)
    assert f"table           {uri}" in ended.lines(), ended
    assert "version         5 (log entries 0 to 5)" in ended.lines()


def test_errors_name_the_table_and_no_secret(uri: str, moto_server: Server) -> None:
    said = one_line(cdfd("inspect", f"{uri}-none"), 1)
    assert "not a Delta table" in said
    assert f"{uri}-none" in said
    assert SECRET not in said
    said = one_line(cdfd("inspect", "s3://no-such-bucket/x"), 1)
    assert "Check the name of the bucket" in said
    assert "password" not in one_line(cdfd("inspect", "s3://user:password@bucket/x"), 2)


def test_python(uri: str, moto_server: Server) -> None:
    options = moto_server.options()
    actual = api.changes(uri, 1, storage_options=options).read_all()
    assert actual.column("id").to_pylist() == [id for _, _, id in ALL]
    assert api.snapshot(uri, 3, storage_options=options).read_all().num_rows == 3
    with pytest.raises(ConfigError, match="Did you mean access_key_id"):
        api.changes(uri, storage_options={"aws_acces_key_id": "x"})


async def test_a_deletion_vector_in_a_file(uri: str, moto_server: Server) -> None:
    writer = await new_table(moto_server, f"{uri}/more")
    await writer.insert(rows(*range(100, 200)))
    await writer.delete(pc.field("id") > 150)
    actual = api.changes(f"{uri}/more", 4, storage_options=moto_server.options()).read_all()
    assert actual.column("id").to_pylist() == list(range(151, 200))


def test_demo(uri: str) -> None:
    ended = cdfd("demo", uri.replace("/orders", "/demo/"))
    assert "All 15 changes applied in order: equal to the table's 7 rows." in ended.lines(), ended
    assert any(line.startswith("A Delta table at s3://") for line in ended.lines())


def test_demo_into_kafka(uri: str, broker: SharedBroker) -> None:
    ended = cdfd("demo", uri.replace("/orders", "/demo"), "--kafka", broker.bootstrap_servers)
    assert "All 15 records applied by key: equal to the table's 7 rows." in ended.lines(), ended
    assert any(line.strip().startswith('progress: {ledger: "s3://') for line in ended.lines())


def test_local_tables_do_without_the_client() -> None:
    code = "import sys, cdfd; cdfd.changes; from cdfd.cli import main; print([n for n in sys.modules if 'boto' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.replace("'", '"')) == []


def test_one_client_for_equal_options(moto_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    options = moto_server.options()
    first = open_storage("s3://a-bucket/x", options)
    # The process's loop would keep another one, although it is not used.
    monkeypatch.setattr("cdfd.storage.s3.client.S3Client", None)
    second = open_storage("s3a://another/y", options)
    assert first._client is second._client  # type: ignore[attr-defined]
    assert (first.uri, second.uri) == ("s3://a-bucket/x", "s3://another/y")
