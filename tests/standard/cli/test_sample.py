"""`cdfd sample` prints records as they would be sent, and sends nothing."""

import asyncio
import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdfd.cli.commands.sample import run
from cdfd.config.parser import parse
from cdfd.errors import CdfdError, ConfigError, LogError, MissingColumnError, UnsupportedError
from cdfd.model.columns import change_schema
from cdfd.sinks.base import connector
from cdfd.storage.local import LocalStorage
from tests.support.lake import manual_clock
from tests.support.renamed_column import renamed_table
from tests.support.sampling import sample
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
    actual = json.loads(run(config(table, "debezium"), "orders", rows=1, as_json=True))
    (record,) = actual["records"]
    event = json.loads(record["value"])
    assert (actual["topic"], record["key"]) == ("shop.orders", '{"id":2}')
    assert (event["op"], event["before"]["name"], event["after"]["name"]) == ("u", "b", "c")
    assert record["size"] == len(record["key"]) + len(record["value"])


@pytest.mark.parametrize("start", [None, "0", "1"])
@pytest.mark.parametrize(("mask", "error"), [("tax_id", MissingColumnError), ("snn", ConfigError)])
def test_a_value_that_no_mask_hides_is_not_shown(
    tmp_path: Path, start: str | None, mask: str, error: type[CdfdError]
) -> None:
    """The column has another name in older rows, or the name is misspelled."""
    asyncio.run(renamed_table(LocalStorage(tmp_path / "orders"), manual_clock()))
    path = config(tmp_path, "flat")
    path.write_text(path.read_text().replace("key: [id]", f"mask: {{{mask}: {{method: nullify}}}}"))
    if (start, mask) == (None, "tax_id"):
        assert "secret" not in run(path, "orders", start=start)
        return
    with pytest.raises(error, match=mask):
        run(path, "orders", start=start)


def test_spaces_that_are_not_ascii_are_text(tmp_path: Path) -> None:
    name = "山田\u3000太郎\u00a0\u202e"
    write_deltalake(tmp_path / "orders", pa.table({"id": [1], "name": [name]}))
    path = config(tmp_path, "flat")
    assert '"name":"山田\\u3000太郎\\xa0\\u202e"' in run(path, "orders")
    (record,) = json.loads(run(path, "orders", as_json=True))["records"]
    assert json.loads(record["value"])["name"] == name


def test_rows_of_another_version(table: Path) -> None:
    text = run(config(table, "flat"), "orders", start="0")
    assert "record 2 of topic shop.orders" in text
    assert '"_change_type":"insert","_commit_version":0' in text


@pytest.mark.parametrize(
    ("start", "version"), [("earliest", 0), ("1", 1), ("after 1", 3), ("2", 3), ("-1", 3), ("1 hour ago", 0)]
)
def test_a_start_is_the_first_version_with_changes_from_there_on(table: Path, start: str, version: int) -> None:
    lake = DeltaTable(table / "orders")
    lake.alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    lake.update(predicate="id = 1", updates={"name": "'d'"})
    text = run(config(table, "flat"), "orders", start=start)
    assert f'"_commit_version":{version}' in text


def test_a_start_after_the_newest_change_is_said(table: Path) -> None:
    for start in ("latest", "2"):
        with pytest.raises(ConfigError, match=f"no row changed from {start} on"):
            run(config(table, "flat"), "orders", start=start)
    with pytest.raises(LogError, match="no version 9 yet"):
        run(config(table, "flat"), "orders", start="9")


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
    with pytest.raises(ConfigError, match="no records"):
        run(path, "orders")


def test_check_names_a_column_that_an_encoding_does_not_have(tmp_path: Path) -> None:
    """Without a broker, the check of the columns alone."""
    text = CONFIG.format(form="{encoding: connect_json}", more="")
    settings = parse(text, {}, folder=str(tmp_path))
    schema = change_schema(pa.schema([("id", pa.int64()), ("nothing", pa.null())]))
    with pytest.raises(UnsupportedError, match="column nothing: a value of type void") as info:
        connector(settings).check_columns(settings.listed[0], "table-id", schema)
    assert "columns" in (info.value.hint or "")
    connector(settings).check_columns(settings.listed[0], "table-id", change_schema(pa.schema([("id", pa.int64())])))


@pytest.mark.parametrize("encoding", sample(["json", "json_schema", "connect_json", "avro", "protobuf", "arrow"], 3))
def test_columns_of_every_type_are_checked_without_rows(tmp_path: Path, encoding: str) -> None:
    more = ", schema_registry: {url: 'http://127.0.0.1:9'}"
    settings = parse(CONFIG.format(form=f"{{encoding: {encoding}}}", more=more), {}, folder=str(tmp_path))
    kinds = [pa.int64(), pa.string(), pa.bool_(), pa.float32(), pa.date32(), pa.timestamp("us", "UTC"), pa.binary()]
    kinds += [
        pa.decimal128(38, 10),
        pa.list_(pa.string()),
        pa.struct([("x", pa.int8())]),
        pa.map_(pa.string(), pa.int32()),
    ]
    schema = pa.schema([("id", pa.int64()), *((f"c{number}", kind) for number, kind in enumerate(kinds))])
    connector(settings).check_columns(settings.listed[0], "table-id", change_schema(schema))
