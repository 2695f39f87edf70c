"""Tables of a catalog in S3, read with the credentials that the catalog vends."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cdfd
from cdfd.catalogs.glue import GlueCatalog
from cdfd.demo.writer import TableWriter
from cdfd.errors import NotATableError, StorageError, UnsupportedError
from cdfd.log.table import Table
from cdfd.storage.local import LocalStorage
from cdfd.storage.s3.loop import request_loop
from tests.support.catalogs.memory import NAME, ManagedTable, MemoryCatalog
from tests.support.catalogs.unity_server import Fault, UnityServer, unity_server
from tests.support.lake import SCHEMA, rows, run
from tests.support.s3.proxy import Fault as StoreFault
from tests.support.s3.proxy import Proxy
from tests.support.s3.server import KEY_ID, SECRET, Server

LONG = 4_102_444_800_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[UnityServer]:
    with unity_server(tmp_path) as server:
        yield server


def put(moto: Server, bucket: str, files: dict[str, bytes]) -> None:
    client = boto3.client(
        "s3", endpoint_url=moto.url, aws_access_key_id=KEY_ID, aws_secret_access_key=SECRET, region_name="us-east-1"
    )
    try:
        for key, data in files.items():
            client.put_object(Bucket=bucket, Key=key, Body=data)
    finally:
        client.close()


def upload(moto: Server, bucket: str, table: ManagedTable, prefix: str) -> str:
    """The table in a bucket. Its location."""
    files = {
        path.relative_to(table.folder).as_posix(): path.read_bytes()
        for path in table.folder.rglob("*")
        if path.is_file()
    }
    put(moto, bucket, {f"{prefix}/{name}": data for name, data in files.items()})
    return f"s3://{bucket}/{prefix}"


def upload_plain(moto: Server, bucket: str, folder: Path) -> None:
    """A table without a catalog at `plain`, with a row 7."""

    async def write() -> None:
        writer = TableWriter(LocalStorage(str(folder / "plain")), SCHEMA)
        await writer.create()
        await writer.insert(rows(7))

    run(write())
    files = (path for path in (folder / "plain").rglob("*") if path.is_file())
    put(moto, bucket, {path.relative_to(folder).as_posix(): path.read_bytes() for path in files})


def keys(prefix: str, *, ends_ms: int | None = LONG, key_id: str = KEY_ID, secret: str = SECRET) -> dict[str, Any]:
    config = {"s3.access-key-id": key_id, "s3.secret-access-key": secret, "s3.session-token": "token"}
    return {"prefix": prefix, "config": config, "expiration-time-ms": ends_ms}


@pytest.fixture
def table(server: UnityServer, moto_server: Server, bucket: str, tmp_path: Path) -> ManagedTable:
    """A table with two versions in a bucket, the second one ratified only."""
    table = ManagedTable(tmp_path / "orders", MemoryCatalog())
    made = table.commit()
    assert made.file_name is not None
    server.add_table(NAME, upload(moto_server, bucket, table, "lake/orders"))
    server.ratify(NAME, 1, made.file_name, size=made.size, modified_ms=made.modified_ms)
    server.credentials = lambda requested: [keys(requested.location)]
    return table


def options(server: UnityServer, moto: Server, **more: object) -> dict[str, object]:
    own = {"s3.endpoint_url": moto.url, "s3.region": "us-east-1", "s3.deadline": 10}
    return {"endpoint": server.url, "deadline": 5, **own, **more}


@pytest.mark.usefixtures("table")
class TestVended:
    def test_rows_are_read_with_them(self, server: UnityServer, moto_server: Server) -> None:
        conf = options(server, moto_server)
        assert cdfd.changes(f"uc://{NAME}", storage_options=conf).read_all()["id"].to_pylist() == [1]
        assert cdfd.snapshot(f"uc://{NAME}", storage_options=conf).read_all()["id"].to_pylist() == [1]
        assert server.count("/credentials[?]operation=READ$") == 1

    def test_external_table_with_a_plain_log(
        self, server: UnityServer, moto_server: Server, bucket: str, tmp_path: Path
    ) -> None:
        upload_plain(moto_server, bucket, tmp_path)
        server.add_table("main.sales.plain", f"s3://{bucket}/plain", type="EXTERNAL", managed=False)
        actual = cdfd.changes("uc://main.sales.plain", storage_options=options(server, moto_server, scope="plain"))
        assert actual.read_all()["id"].to_pylist() == [7]

    def test_one_request_for_all_tables_below_a_prefix(
        self, server: UnityServer, proxy: Proxy, moto_server: Server, bucket: str, table: ManagedTable
    ) -> None:
        for number in range(4):
            location = upload(moto_server, bucket, table, f"lake/t{number}")
            copy = server.add_table(f"main.sales.t{number}", location)
            copy.latest, copy.commits = server.tables[NAME].latest, server.tables[NAME].commits
        server.credentials = lambda _: [
            keys(f"s3://{bucket}", key_id="wrong", secret="wrong"),
            keys(f"s3://{bucket}/lake/"),
            keys(f"s3://{bucket}/lak", key_id="wrong", secret="wrong"),
        ]
        conf = options(server, Server(proxy.url), scope="shared")

        async def all_of_them() -> list[int]:
            async def newest(number: int) -> int:
                return await Table.open(f"uc://main.sales.t{number}", conf).log.latest_version()

            return list(await asyncio.gather(*map(newest, range(4))))

        assert asyncio.run(all_of_them()) == [1] * 4
        assert server.count("/credentials") == 1
        # The longest prefix is that of a folder, not of letters.
        assert all(f"Credential={KEY_ID}/" in asked.key for asked in proxy.asked)

    def test_they_are_renewed_before_they_end_while_a_file_is_read(
        self, server: UnityServer, moto_server: Server, bucket: str
    ) -> None:
        """The store would not take those that have ended; here, each request has the keys of its time."""
        large = pa.table({"id": range(2_000_000)})
        data = io.BytesIO()
        pq.write_table(large, data, compression="none", use_dictionary=False, row_group_size=100_000)
        put(moto_server, bucket, {"lake/orders/large.parquet": data.getvalue()})
        server.credentials = lambda requested: [keys(requested.location, ends_ms=int(time.time() * 1000) + 1500)]
        storage = Table.open(f"uc://{NAME}", options(server, moto_server, scope="renewed")).log.storage
        with storage.open_input_file("large.parquet", len(data.getvalue())) as file:
            reader = pq.ParquetFile(file)
            for group in range(4):
                assert reader.read_row_group(group).num_rows == 100_000
                time.sleep(0.5)
        assert server.count("/credentials") >= 2

    def test_those_that_end_early_are_asked_for_again(self, server: UnityServer, proxy: Proxy) -> None:
        """The store says so: a role was revoked, or the clocks differ."""
        conf = options(server, Server(proxy.url), scope="early")
        server.credentials = lambda requested: [keys(requested.location, key_id="old-key")]
        table = Table.open(f"uc://{NAME}", conf)
        asyncio.run(table.log.latest_version())
        proxy.faults = [StoreFault("answer", 99, 400, "ExpiredToken", concerns=lambda asked: "old-key" in asked.key)]
        server.credentials = lambda requested: [keys(requested.location, key_id="new-key")]
        assert asyncio.run(table.log.entry(1)).commit.version == 1
        with table.log.storage.open_input_file("_delta_log/00000000000000000000.json") as file:
            assert file.read(1) == b"{"
        assert server.count("/credentials") == 2

    def test_they_outlive_a_catalog_that_is_down(self, server: UnityServer, moto_server: Server) -> None:
        ends_ms = int(time.time() * 1000) + 20_000
        server.credentials = lambda requested: [keys(requested.location, ends_ms=ends_ms)]
        table = Table.open(f"uc://{NAME}", options(server, moto_server, scope="outlive", deadline=0.2))
        asyncio.run(table.log.latest_version())
        server.faults += [Fault("credentials", status=503)] * 50
        time.sleep(0.1)
        assert asyncio.run(table.log.entry(1)).commit.version == 1

    def test_refusal_says_which_grant_is_missing(self, server: UnityServer, moto_server: Server) -> None:
        body = '{"error": {"message": "no", "type": "PermissionDeniedException", "code": 403}}'
        server.faults.append(Fault("credentials", status=403, body=body))
        with pytest.raises(StorageError, match=r"EXTERNAL USE SCHEMA on main\.sales") as caught:
            cdfd.changes(f"uc://{NAME}", storage_options=options(server, moto_server, scope="refused"))
        assert "SELECT on main.sales.orders" in str(caught.value)
        assert caught.value.table == f"uc://{NAME}"

    @pytest.mark.parametrize(
        "vended",
        [[], [{"prefix": "s3://other", "config": {}, "expiration-time-ms": None}]],
        ids=["none", "of another place"],
    )
    def test_credentials_of_another_place_are_not_used(
        self, server: UnityServer, moto_server: Server, vended: list[dict[str, Any]]
    ) -> None:
        server.credentials = lambda _: vended
        with pytest.raises(StorageError, match="credentials are for other locations"):
            cdfd.changes(f"uc://{NAME}", storage_options=options(server, moto_server, scope=str(len(vended))))

    def test_credentials_of_another_kind_of_store(self, server: UnityServer, moto_server: Server) -> None:
        server.credentials = lambda requested: [
            {"prefix": requested.location, "config": {"azure.sas-token": "x"}, "expiration-time-ms": None}
        ]
        with pytest.raises(StorageError, match="vends no keys for s3://"):
            cdfd.changes(f"uc://{NAME}", storage_options=options(server, moto_server, scope="azure"))

    def test_own_credentials(self, server: UnityServer, moto_server: Server) -> None:
        own = {"credentials": "own", "s3.access_key_id": KEY_ID, "s3.secret_access_key": SECRET}
        actual = cdfd.changes(f"uc://{NAME}", storage_options=options(server, moto_server, **own))
        assert actual.read_all()["id"].to_pylist() == [1]
        assert not server.count("/credentials")

    def test_first_read_takes_four_round_trips_of_the_catalog_and_the_log(
        self, server: UnityServer, moto_server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A busy machine may take longer between two listings than an answer is used for.
        monkeypatch.setattr("cdfd.catalogs.storage.SHARED_SECONDS", 20.0)
        table = Table.open(f"uc://{NAME}", options(server, moto_server, scope="trips"))
        asyncio.run(table.log.header())
        assert len(server.requests) == 3
        assert request_loop()


@pytest.mark.parametrize("location", ["parameter", "descriptor"])
def test_table_of_glue(moto_server: Server, bucket: str, tmp_path: Path, location: str) -> None:
    upload_plain(moto_server, bucket, tmp_path)
    place = f"s3://{bucket}/plain"
    client = boto3.client(
        "glue",
        endpoint_url=moto_server.url,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    database = bucket.replace("-", "_")
    try:
        client.create_database(DatabaseInput={"Name": database})
        if location == "parameter":  # as Spark writes it
            descriptor = {
                "Location": f"s3://{bucket}/orders-__PLACEHOLDER__",
                "SerdeInfo": {"Parameters": {"path": place}},
            }
            parameters = {"spark.sql.sources.provider": "delta"}
        else:
            descriptor, parameters = {"Location": f"{place}/"}, {"table_type": "DELTA"}
        for name, details in (("orders", parameters), ("csv", {"classification": "csv"})):
            client.create_table(
                DatabaseName=database, TableInput={"Name": name, "StorageDescriptor": descriptor, "Parameters": details}
            )
    finally:
        client.close()
    details = {
        "endpoint_url": moto_server.url,
        "region": "us-east-1",
        "access_key_id": KEY_ID,
        "secret_access_key": SECRET,
        "s3.endpoint_url": moto_server.url,
    }
    actual = cdfd.changes(f"glue://{database}.orders", storage_options=details)
    assert actual.read_all()["id"].to_pylist() == [7]
    with pytest.raises(UnsupportedError, match="is not a Delta table in Glue"):
        cdfd.changes(f"glue://{database}.csv", storage_options=details)
    with pytest.raises(NotATableError, match="Glue has no table or database"):
        cdfd.changes(f"glue://{database}.nothing", storage_options=details)
    catalog = GlueCatalog(details)
    assert request_loop().submit(catalog.tables(database)).result(60) == ["orders"]
