"""`cdfd sample` prints records as they would be sent, and sends nothing."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdfd.cli.commands.sample import run
from cdfd.errors import ConfigError, UnsupportedError
from tests.support.schema_registry import serving

CONFIG = """
pipeline: shop
tables: [{{uri: orders, key: [id], topic: shop.orders}}]
sink: {{kind: kafka, bootstrap_servers: "127.0.0.1:9", format: {form}{more}}}
"""


def config(folder: Path, form: str, more: str = "") -> Path:
    path = folder / "config.yaml"
    path.write_text(CONFIG.format(form=form, more=more))
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two rows, of which one is changed."""
    rows = pa.table({"id": [1, 2], "name": ["a", "b"]})
    write_deltalake(tmp_path / "orders", rows, configuration={"delta.enableChangeDataFeed": "true"})
    DeltaTable(tmp_path / "orders").update(predicate="id = 2", updates={"name": "'c'"})
    return tmp_path


def test_an_update_is_one_event_though_one_row_was_asked_for(table: Path) -> None:
    found = json.loads(run(config(table, "debezium"), "orders", rows=1, as_json=True))
    (record,) = found["records"]
    event = json.loads(record["value"])
    assert (found["topic"], record["key"]) == ("shop.orders", '{"id":2}')
    assert (event["op"], event["before"]["name"], event["after"]["name"]) == ("u", "b", "c")
    assert record["size"] == len(record["key"]) + len(record["value"])


def test_rows_of_another_version(table: Path) -> None:
    text = run(config(table, "flat"), "orders", start="0")
    assert "record 2 of topic shop.orders" in text
    assert '"_change_type":"insert","_commit_version":0' in text


def test_schemas_are_looked_up_and_not_registered(table: Path) -> None:
    with serving() as registry:
        path = config(table, "{encoding: protobuf}", f", schema_registry: {{url: '{registry.url}'}}")
        text = run(path, "orders")
        assert "schema of subject shop.orders-value (PROTOBUF), not registered yet" in text
        assert "optional string name = 2;" in text
        assert registry.subjects == {}


def test_a_registry_that_is_down_is_said(table: Path) -> None:
    path = config(table, "avro", ", schema_registry: {url: 'http://127.0.0.1:9'}")
    assert "id unknown: the schema registry http://127.0.0.1:9 does not answer" in run(path, "orders")


def test_a_table_that_is_not_configured(table: Path) -> None:
    with pytest.raises(ConfigError, match="no table 'customers'"):
        run(config(table, "flat"), "customers")


def test_a_sink_without_records(table: Path) -> None:
    path = table / "config.yaml"
    path.write_text("pipeline: shop\ntables: [{uri: orders}]\nsink: {kind: files, path: out}\n")
    with pytest.raises(UnsupportedError, match="no records"):
        run(path, "orders")
