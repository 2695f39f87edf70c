import io
import json
import socket
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from cdfd.encode.encoding import EncodedRows
from cdfd.encode.formats import EncoderOptions, EncodingName, FormatChoice, encoding_of
from cdfd.encode.records import Origin
from cdfd.encode.registered import Registration
from cdfd.errors import ConfigError, SchemaChangedError, SinkError
from cdfd.model.columns import CHANGE_COLUMNS
from cdfd.sinks.kafka.client.schema_registry import SchemaRegistry, basic
from tests.support.change_rows import Row, change_rows
from tests.support.schema_registry import Registry, serving


def record(**fields: Any) -> str:
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Value", "fields": listed})


@pytest.fixture
def server() -> Iterator[Registry]:
    with serving() as registry:
        yield registry


@pytest.fixture
def client(server: Registry) -> Iterator[SchemaRegistry]:
    registry = SchemaRegistry(server.url, backoff=0.001, timeout=5)
    yield registry
    registry.close()


def test_one_schema_has_one_id(server: Registry, client: SchemaRegistry) -> None:
    first = client.register("orders-value", record(a="int"))
    other = client.register("customers-value", record(b="int"))
    assert first != other
    assert client.register("orders-key", record(a="int")) == first
    assert server.subjects == {"orders-value": [first], "customers-value": [other], "orders-key": [first]}


def test_a_schema_is_asked_for_once(server: Registry, client: SchemaRegistry) -> None:
    assert client.register("orders-value", record(a="int")) == client.register("orders-value", record(a="int"))
    assert server.requests == ["POST /subjects/orders-value/versions"]


def test_the_schemas_of_a_subject_are_told(server: Registry, client: SchemaRegistry) -> None:
    first = client.register("orders-value", record(a="int"))
    client.register("customers-value", record(b="int"))
    second = client.register("orders-value", record(a="long"))
    assert client.versions("orders-value") == {first: record(a="int"), second: record(a="long")}
    with pytest.raises(ConfigError, match="no subject elsewhere-value"):
        client.versions("elsewhere-value")
    server.failures += [403]
    with pytest.raises(SinkError, match="answered 403"):
        client.versions("orders-value")


def test_names_and_paths_are_quoted() -> None:
    with serving("/apis/ccompat/v7") as server:
        client = SchemaRegistry(server.url + "/", backoff=0.001)
        client.check()
        client.register("a/b ü?-value", record(a="int"))
        client.close()
        assert list(server.subjects) == ["a/b ü?-value"]


def test_an_incompatible_schema(client: SchemaRegistry) -> None:
    client.register("orders-value", record(a="string"))
    with pytest.raises(
        SchemaChangedError, match=r"subject orders-value: Schema being registered is incompatible"
    ) as info:
        client.register("orders-value", record(a="int"))
    assert "another topic" in str(info.value)
    assert not info.value.retriable


def test_a_schema_that_is_none(client: SchemaRegistry) -> None:
    with pytest.raises(SinkError, match=r"answered 422 for subject orders-value: Invalid schema"):
        client.register("orders-value", record(a="nothing"))


def test_registry_is_asked_with_the_configured_password(server: Registry, client: SchemaRegistry) -> None:
    server.require("ada", "pa:ßword")
    with pytest.raises(SinkError, match=r"answered 401.*username"):
        client.register("orders-value", record(a="int"))
    known = SchemaRegistry(server.url, username="ada", password="pa:ßword")
    assert known.register("orders-value", record(a="int")) == 1
    known.check()
    known.close()
    assert "ß" not in repr(known)


@pytest.mark.parametrize("failure", [500, 503, 429, None])
def test_what_may_pass_is_tried_again(server: Registry, client: SchemaRegistry, failure: int | None) -> None:
    server.failures += [failure] * 4
    assert client.register("orders-value", record(a="int")) == 1
    assert len(server.requests) == 5


@pytest.mark.parametrize("failure", [500, None])
def test_what_does_not_pass_is_an_error_that_may_later(
    server: Registry, client: SchemaRegistry, failure: int | None
) -> None:
    server.failures += [failure] * 5
    with pytest.raises(SinkError, match="schema registry") as info:
        client.register("orders-value", record(a="int"))
    assert info.value.retriable
    assert client.register("orders-value", record(a="int")) == 1


def test_registry_that_refuses_connections_is_retried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    client = SchemaRegistry(f"http://127.0.0.1:{port}", attempts=2, backoff=0.001, timeout=5)
    with pytest.raises(
        SinkError, match=rf"127.0.0.1:{port} does not answer for its types of schemas: .*refused"
    ) as info:
        client.check()
    assert info.value.retriable
    client.close()


def test_registry_that_does_not_answer_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = SchemaRegistry(f"http://127.0.0.1:{silent.getsockname()[1]}", attempts=2, backoff=0.001, timeout=0.05)
        with pytest.raises(SinkError, match=r"does not answer.*timed out"):
            client.register("orders-value", record(a="int"))
        client.close()


def test_it_is_no_registry(server: Registry) -> None:
    client = SchemaRegistry(server.url + "/wrong")
    with pytest.raises(SinkError, match=r"answered 404 .*schema_registry.url"):
        client.register("orders-value", record(a="int"))
    with pytest.raises(SinkError, match=r"answered 404 for its types of schemas"):
        client.check()
    client.close()


def test_redirects_are_not_followed(server: Registry, client: SchemaRegistry) -> None:
    server.failures.append(307)
    with pytest.raises(SinkError, match="answered 307"):
        client.register("orders-value", record(a="int"))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "answer",
    ["", "<html>", "[]", "{}", '{"id": "7"}', '{"id": -1}', '{"id": 4294967296}', '{"id": true}', "[" * 100_000],
)
def test_answers_that_are_no_id(server: Registry, client: SchemaRegistry, answer: str) -> None:
    server.answer = lambda *_: (200, answer)  # type: ignore[method-assign]  # a server that answers nonsense
    with pytest.raises(SinkError, match="answered 200 for subject orders-value"):
        client.register("orders-value", record(a="int"))


# With the encoder


def values_of(client: SchemaRegistry, encoding: EncodingName = "avro") -> EncodedRows:
    options = EncoderOptions(Origin("shop", "orders", "table-id", "orders"), registration=Registration(client))
    return EncodedRows(encoding_of(FormatChoice("flat", encoding), options, "value"), "orders.Value")


def test_a_table_that_evolves_keeps_its_subject(server: Registry, client: SchemaRegistry) -> None:
    encode = values_of(client)
    plain = change_rows([Row("insert", 1, 1, "a")])
    wider = plain.append_column("added", pa.array([{"x": 2.5}])).select(
        ["id", "note", "added", *(field.name for field in CHANGE_COLUMNS)]
    )
    batches = [plain, wider, wider.drop_columns("note"), plain]
    values = [encode(batch)[0].as_py() for batch in batches]
    assert [value[:5] for value in values] == [b"\0\0\0\0\1", b"\0\0\0\0\2", b"\0\0\0\0\3", b"\0\0\0\0\1"]
    assert server.subjects == {"orders-value": [1, 2, 3]}
    schemas = {number: fastavro.parse_schema(json.loads(text)) for number, text in server.schemas.items()}
    for value in values:
        for reader in schemas.values():
            row = fastavro.schemaless_reader(io.BytesIO(value[5:]), schemas[value[4]], reader)
            assert row["id"] == 1
            assert row.get("note") in (None, "a")


def test_a_column_of_another_type_is_refused(client: SchemaRegistry) -> None:
    encode = values_of(client)
    batch = change_rows([Row("insert", 1, 1, "a")])
    encode(batch)
    with pytest.raises(SchemaChangedError, match="incompatible"):
        encode(batch.set_column(0, "id", pa.array(["1"])))


def test_changed_credentials_are_used_for_the_next_request(server: Registry) -> None:
    given = [("ada", "first"), ("ada", "first"), ("ada", "second")]
    server.require("ada", "first")
    known = SchemaRegistry(server.url, login=lambda: basic(*given.pop(0)))
    known.check()
    server.require("ada", "second")
    with pytest.raises(SinkError, match="answered 401"):
        known.check()
    known.check()
    known.close()
