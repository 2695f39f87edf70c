"""Tables by the names of their catalogs: in the configuration, in discovery, on the command line and in Spark's options."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import cdfd
from cdfd.catalogs.glue import GlueCatalog
from cdfd.cli.parameters import catalog_options
from cdfd.config.discovery import FolderPattern
from cdfd.config.parser import parse
from cdfd.config.settings import Settings
from cdfd.daemon.telemetry.lineage import source_dataset
from cdfd.errors import ConfigError
from cdfd.storage.s3.options import parse as parse_s3
from tests.support.catalogs.memory import ManagedTable, MemoryCatalog
from tests.support.catalogs.unity_server import UnityServer, unity_server
from tests.support.searches import search


@pytest.fixture
def server(tmp_path: Path) -> Iterator[UnityServer]:
    with unity_server(tmp_path) as server:
        yield server


def config(tables: str, more: str = "", path: str = "/out") -> Settings:
    return parse(f"pipeline: p\ntables: {tables}\nsink: {{kind: files, path: {path}}}\n{more}")


class TestConfiguration:
    def test_names_of_a_table_are_those_of_the_catalog(self) -> None:
        [table] = config("[{uri: 'uc://main.sales.orders'}]").listed
        assert (table.uri, table.name, table.topic) == ("uc://main.sales.orders", *["main.sales.orders"] * 2)
        [table] = config("[{uri: 'glue://sales.orders'}]").listed
        assert (table.uri, table.name) == ("glue://sales.orders", "sales.orders")

    @pytest.mark.parametrize(
        "uri", ["uc://orders", "uc://main..orders", "uc://main.sales/orders", "uc:orders", "uc://"]
    )
    def test_malformed_name_is_refused(self, uri: str) -> None:
        with pytest.raises(ConfigError, match="expected a"):
            config(f"[{{uri: '{uri}'}}]")

    def test_cdfd_writes_into_no_table_of_a_catalog(self) -> None:
        with pytest.raises(ConfigError, match="only reads the tables of a catalog"):
            config("[{uri: /t}]", "progress: {ledger: 'uc://main.sales.ledger'}")
        with pytest.raises(ConfigError, match="only reads the tables of a catalog"):
            parse("pipeline: p\ntables: [{uri: /t}]\nsink: {kind: delta, path: 'uc://main.sales.copies'}")

    def test_catalog_and_store_have_their_options(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("t0ken\n")
        more = f"""
catalogs:
  uc: {{endpoint: 'https://catalog.example', token_file: {tmp_path}/token}}
storage: {{s3: {{region: eu-west-1, access_key_id: k, secret_access_key: s3cret}}}}"""
        settings = config("[{uri: 'uc://main.sales.orders'}]", more)
        options = settings.options("uc://main.sales.orders")
        assert options["token"] == "t0ken"
        assert options["token_file"] == f"{tmp_path}/token"
        assert options["s3.region"] == "eu-west-1"
        assert not any("secret_access_key" in name for name in options)
        assert not any(secret in json.dumps(settings.public()) for secret in ("t0ken", "s3cret"))
        own = config(
            "[{uri: 'uc://main.sales.orders'}]", more.replace("catalog.example'", "catalog.example', credentials: own")
        )
        assert own.options("UC://main.sales.orders")["s3.secret_access_key"] == "s3cret"
        glue = settings.options("glue://sales.orders")
        assert (glue["secret_access_key"], glue["s3.secret_access_key"]) == ("s3cret", "s3cret")


@pytest.mark.parametrize("schema", ["uc://main.sales", "glue://sales"])
def test_schema_is_no_table(schema: str) -> None:
    options = {"endpoint": "http://localhost"} if schema.startswith("uc:") else {}
    for read in (cdfd.changes, cdfd.snapshot):
        with pytest.raises(ConfigError, match=f"{schema} names a schema, and no table. Write {schema}.TABLE"):
            read(schema, storage_options=options)


@pytest.mark.parametrize("prefix", ["", "aws_", "AWS_"])
def test_credentials_of_glue_are_those_of_its_tables(prefix: str) -> None:
    own = {"access_key_id": "id", "secret_access_key": "s3cret", "session_token": "t0ken"}
    catalog = GlueCatalog({f"{prefix}{name}": value for name, value in own.items()} | {"s3.deadline": 5})
    assert catalog.store_options("s3://lake/orders") == own | {"deadline": 5}
    of_store = {f"s3.{prefix}access_key_id": "other", f"s3.{prefix}secret_access_key": "secret"}
    actual = parse_s3(GlueCatalog(own | of_store).store_options("s3://lake/orders"), {})
    assert (actual.access_key_id, actual.secret_access_key, actual.session_token) == ("other", "secret", None)


def test_dataset_of_run_events() -> None:
    assert source_dataset("uc://main.sales.orders") == ("uc", "main.sales.orders")
    assert source_dataset("s3://lake/orders") == ("s3://lake", "orders")
    assert source_dataset("s3://lake") == ("s3://lake", "/")
    assert source_dataset("s3://lake/a?b/c#1") == ("s3://lake", "a?b/c#1")
    assert source_dataset("file:///data/c#1") == source_dataset("/data/c#1") == ("file", "/data/c#1")


class TestDiscovery:
    def test_pattern_of_a_schema(self) -> None:
        pattern = FolderPattern.parse("uc://main.sales.or*")
        assert (pattern.root, pattern.levels) == ("uc://main.sales", ("or*",))
        assert pattern.uri(["orders"]) == "uc://main.sales.orders"
        assert FolderPattern.parse("glue://sales.*").root == "glue://sales"

    @pytest.mark.parametrize("text", ["uc://main.*.*", "uc://*", "uc://main.sales.orders"])
    def test_pattern_of_more_than_a_schema_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="wildcards in the name of the table only"):
            FolderPattern.parse(text)

    def test_tables_of_a_schema_are_found_by_include_and_exclude(self, server: UnityServer, tmp_path: Path) -> None:
        catalog = MemoryCatalog()
        for name in ("orders", "items", "orders_old"):
            table = ManagedTable(tmp_path / name, catalog, f"main.sales.{name}")
            server.add_table(table.name, table.folder.as_uri())
        (tmp_path / "empty").mkdir()
        server.add_table("main.sales.order_dropped", (tmp_path / "empty").as_uri(), managed=False)
        entry = "{discover: 'uc://main.sales.*', include: ['or*'], exclude: ['*_old'], name: '{parent}.{table}'}"
        settings = config(f"[{entry}]", f"catalogs: {{uc: {{endpoint: '{server.url}'}}}}")
        actual = asyncio.run(search(settings))
        assert {name: each.table.uri for name, each in actual.entries.items()} == {
            "main.sales.orders": "uc://main.sales.orders"
        }
        assert not actual.unread

    @pytest.mark.parametrize("location", ["hdfs://node/odd", "wasbs://lake@account.blob.core.windows.net/odd"])
    def test_table_in_another_store_keeps_no_other_from_being_found(
        self, server: UnityServer, tmp_path: Path, location: str
    ) -> None:
        table = ManagedTable(tmp_path / "orders", MemoryCatalog(), "main.sales.orders")
        server.add_table(table.name, table.folder.as_uri())
        server.add_table("main.sales.odd", location, managed=False)
        settings = config("[{discover: 'uc://main.sales.*'}]", f"catalogs: {{uc: {{endpoint: '{server.url}'}}}}")
        actual = asyncio.run(search(settings))
        assert list(actual.entries) == ["orders"]
        assert [error.table for error in actual.unread] == ["uc://main.sales.odd"]

    def test_name_that_cannot_be_written_keeps_no_other_from_being_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The API of Glue takes any name."""

        async def tables(_: GlueCatalog, __: str) -> list[str]:
            return ["a.b"]

        monkeypatch.setattr(GlueCatalog, "tables", tables)
        actual = asyncio.run(search(config("[{discover: 'glue://sales.*'}]", "catalogs: {glue: {region: eu-west-1}}")))
        assert not actual.entries
        assert [error.table for error in actual.unread] == ["glue://sales.a.b"]


class TestCommandLine:
    def test_options_keep_later_equals_signs(self) -> None:
        assert catalog_options(["endpoint=http://h", "s3.region=a=b"]) == {"endpoint": "http://h", "s3.region": "a=b"}
        assert catalog_options(None) is None

    @pytest.mark.parametrize("text", ["endpoint", "=x", "token=x", "s3.secret_access_key=x", "client_secret=x"])
    def test_secrets_are_refused(self, text: str) -> None:
        with pytest.raises(typer.BadParameter):
            catalog_options([text])


class TestSpark:
    def test_table_is_a_name(self) -> None:
        from cdfd.spark.source.options import SourceOptions

        actual = SourceOptions.parse({"table": "main.sales.orders", "storage.token": "t0ken"})
        assert (actual.path, actual.storage) == ("uc://main.sales.orders", {"token": "t0ken"})
        assert "t0ken" not in repr(actual)
        assert SourceOptions.parse({"table": "glue://sales.orders"}).path == "glue://sales.orders"
        with pytest.raises(ConfigError, match="path and table"):
            SourceOptions.parse({"table": "a.b.c", "path": "/t"})
