"""The sink's interface to Spark, and its handling of rows. Neither needs Spark."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdfd.errors import ConfigError, DataError, UnsupportedError
from cdfd.model.columns import CHANGE_COLUMNS, CHANGE_TYPES
from cdfd.plan.shape.chosen import Chosen
from cdfd.plan.shape.masks import Mask
from cdfd.spark.engine.kafka_sink import snapshot_version
from cdfd.spark.engine.sink_options import SinkOptions
from cdfd.spark.source.change_rows import ChangeRows
from cdfd.spark.source.offsets import Offset

INLINE = {"pipeline": "p", "uri": "/lake/orders", "kafka.bootstrap.servers": "a:1,b:2"}

CHANGES = [
    ("_change_type", "string", pa.array(["insert", "delete"])),
    ("_commit_version", "long", pa.array([3, 4])),
    ("_commit_timestamp", "timestamp", pa.array([5000, 6000], pa.timestamp("us", "Europe/Rome"))),
    ("_change_ordinal", "long", pa.array([0, 1])),
]


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def schema(*fields: dict[str, Any], changes: int = 4) -> str:
    told = [*fields, *(field(name, kind) for name, kind, _ in CHANGES[:changes])]
    return json.dumps({"type": "struct", "fields": told})


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({**columns, **{name: values for name, _, values in CHANGES}})


class TestOptions:
    def test_filter_and_masks_are_read(self) -> None:
        told = {
            "key": "id",
            "where": "id > 1",
            "columns": "id, amount as value",
            "exclude_change_types": "delete",
            "mask.ID": '{"method": "hmac_sha256", "hmac_key": "${KEY}"}',
            "mask.amount": "truncate:2",
            "headers.x-id": "id",
            "shaped": "TRUE",
        }
        actual = SinkOptions.parse(INLINE | told, {"KEY": "sixteen letters!"})
        shape = actual.table.shape
        assert actual.shaped
        assert (str(shape.where), shape.columns) == ("id > 1", (Chosen("id"), Chosen("amount", "value")))
        assert shape.excluded == ("delete",)
        assert shape.masks == (
            ("id", Mask("hmac_sha256", key=b"sixteen letters!")),
            ("amount", Mask("truncate", length=2)),
        )
        assert actual.table.published_headers == {"x-id": "id"}
        with pytest.raises(ConfigError):
            SinkOptions.parse(INLINE | {"shaped": "maybe"})
        with pytest.raises(ConfigError, match="there is no mask"):
            SinkOptions.parse(INLINE | {"mask.a": "hide"})

    def test_options_of_table_and_sink_are_read(self) -> None:
        told = {
            "table": "sold",
            "topic": "shop.sold",
            "key": "id, region",
            "FORMAT": "debezium",
            "topics.partitions": "3",
            "kafka.topics.config.retention.ms": "1000",
            "security.protocol": "SASL_SSL",
            "security.mechanism": "PLAIN",
            "security.username": "u",
            "security.password": "${PASSWORD}",
            "storage.s3.region": "eu-west-1",
            "checkpointLocation": "/cp",
            "job": "june",
            "snapshotVersion": "7",
        }
        actual = SinkOptions.parse(INLINE | told, {"PASSWORD": "hunter2"})
        table, sink = actual.table, actual.sink
        assert (table.uri, table.name, table.topic, table.key) == (
            "/lake/orders",
            "sold",
            "shop.sold",
            ("id", "region"),
        )
        assert (sink.bootstrap_servers, str(sink.format), sink.topics.partitions) == (("a:1", "b:2"), "debezium", 3)
        assert sink.topics.config == {"retention.ms": "1000"}
        assert sink.security.password is not None
        assert sink.security.password.reveal() == "hunter2"
        assert "hunter2" not in repr(actual)
        assert actual.config.storage.s3.region == "eu-west-1"
        assert (actual.job, actual.snapshot) == ("june", 7)

    def test_table_of_a_configuration_file_is_chosen_by_name(self, tmp_path: Path) -> None:
        path = tmp_path / "shop.yaml"
        tables = [{"uri": "/lake/orders"}, {"uri": "/lake/customers"}]
        document = {"pipeline": "p", "tables": tables, "sink": {"kind": "kafka", "bootstrap_servers": "a:1"}}
        path.write_text(json.dumps(document))
        assert SinkOptions.parse({"config": str(path), "table": "customers"}).table.uri == "/lake/customers"
        with pytest.raises(ConfigError, match=r"`table` is required.*orders, customers"):
            SinkOptions.parse({"config": str(path)})
        with pytest.raises(ConfigError, match="no table 'x'"):
            SinkOptions.parse({"config": str(path), "table": "x"})
        with pytest.raises(ConfigError, match="'format' with `config`"):
            SinkOptions.parse({"config": str(path), "table": "orders", "format": "avro"})
        path.write_text(json.dumps(document | {"tables": [{"discover": "/lake/*"}]}))
        with pytest.raises(ConfigError, match="no table 'x'"):
            SinkOptions.parse({"config": str(path), "table": "x"})
        path.write_text(json.dumps(document | {"sink": {"kind": "files", "path": "out"}}))
        with pytest.raises(UnsupportedError, match="kind files"):
            SinkOptions.parse({"config": str(path), "table": "orders"})

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"fromat": "flat"}, "did you mean"),
            ({"uri": ""}, "`uri` is required"),
            ({"topics.partitions": "many"}, "sink.topics.partitions"),
            ({"snapshotVersion": "-1"}, "snapshotVersion"),
            ({"format.x": "y", "format": "flat"}, "repeats another one"),
        ],
    )
    def test_wrong_option_is_named(self, options: dict[str, str], said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            SinkOptions.parse(INLINE | options, {})


class TestRows:
    def test_as_the_table_has_them(self) -> None:
        struct = {"type": "struct", "fields": [field("street", "string"), field("doc", "string")]}
        spark = schema(
            field("ID", "long"), field("docs", {"type": "array", "elementType": struct, "containsNull": True})
        )
        element = pa.struct([pa.field("street", pa.string(), False), pa.field("doc", pa.json_(pa.string()))])
        table = pa.schema(
            [
                pa.field("id", pa.int64(), False),
                pa.field("docs", pa.list_(pa.field("element", element, False))),
            ]
        )
        rows = ChangeRows.plan(spark, table)
        assert list(rows.schema) == [*table, *CHANGE_COLUMNS]
        docs = pa.array([None, [{"street": "Elm", "doc": '{"a":1}'}, {"street": "Oak", "doc": None}]])
        actual = rows(batch(ID=pa.array([1, 2]), docs=docs))
        assert actual.schema == rows.schema
        actual.validate(full=True)
        assert actual["docs"].to_pylist() == docs.to_pylist()
        assert actual["_change_type"].dictionary.equals(CHANGE_TYPES)
        assert actual["_commit_timestamp"].cast(pa.int64()).to_pylist() == [5, 6]
        part = rows(batch(ID=pa.array([1, 2]), docs=docs).slice(1))
        assert part["docs"].to_pylist() == docs.to_pylist()[1:]

    def test_columns_that_the_table_has_otherwise_or_not_at_all(self) -> None:
        spark = schema(field("id", "integer"), field("more", "string"), field("v", "string"))
        table = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])
        assert ChangeRows.plan(spark, table).schema.field("id").type == pa.int32()
        assert ChangeRows.plan(spark, table, ["v"]).schema.names == ["v", *(each.name for each in CHANGE_COLUMNS)]

    def test_what_are_no_change_rows(self) -> None:
        with pytest.raises(ConfigError, match="no column _change_ordinal"):
            ChangeRows.plan(schema(field("id", "long"), changes=3), pa.schema([]))
        with pytest.raises(ConfigError, match="cannot be delivered"):
            ChangeRows.plan(schema(field("id", "interval")), pa.schema([]))
        rows = ChangeRows.plan(schema(field("id", "long")), pa.schema([]))
        wrong = batch(id=pa.array([1, 2])).set_column(1, "_change_type", pa.array(["insert", "upsert"]))
        with pytest.raises(DataError, match="upsert"):
            rows(wrong)
        with pytest.raises(DataError, match="without version"):
            rows(batch(id=pa.array([1, 2])).set_column(2, "_commit_version", pa.array([1, None])))


class TestCheckpoints:
    def test_what_a_stream_began_with(self, tmp_path: Path) -> None:
        folder = tmp_path / "offsets"
        assert snapshot_version(str(tmp_path)) is None
        folder.mkdir()
        (folder / ".9.crc").write_bytes(b"\0")
        for number, phase in ((2, "stream"), (10, "snapshot")):
            offset = {"table_id": "T", "version": 9, "part": 0, "phase": "stream", "ordinal": 0}
            offset |= {"first_version": 7, "first_phase": phase}
            assert Offset.from_json(offset).to_json() == offset
            (folder / str(number)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
        assert snapshot_version(str(tmp_path)) == 7
        assert snapshot_version(tmp_path.as_uri()) == 7

    @pytest.mark.parametrize("text", ["", "v1\n{}", 'v1\n{}\n{"logOffset":0}', "v1\n{}\nno JSON", "v1\n{}\n[1]"])
    def test_checkpoint_of_another_source_has_no_snapshot(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "offsets").mkdir()
        (tmp_path / "offsets" / "0").write_text(text)
        assert snapshot_version(str(tmp_path)) is None

    def test_where_it_cannot_be_read(self) -> None:
        assert snapshot_version("hdfs://name/checkpoints") is None
