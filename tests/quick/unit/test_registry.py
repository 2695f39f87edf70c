import contextlib
import io
import json
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from cdfd.config.parser import parse
from cdfd.encode.encoding import EncodedRows
from cdfd.encode.formats import EncoderOptions, EncodingName, FormatChoice, encoding_of
from cdfd.encode.records import Origin
from cdfd.encode.registered import Registration, Strategy
from cdfd.errors import ConfigError, SchemaChangedError, SinkError
from cdfd.model.columns import CHANGE_COLUMNS
from cdfd.sinks.base import connector
from cdfd.sinks.kafka.client.schema_registry import SchemaRegistry, basic, login_of, tls_of
from cdfd.sinks.kafka.settings import SchemaRegistry as Settings
from tests.support.change_rows import Row, change_rows
from tests.support.protobuf import message_type
from tests.support.schema_registry import Registry, serving
from tests.support.schemas import Catalog

ORIGIN = Origin("shop", "orders", "table-id", "orders")


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
    known = SchemaRegistry(server.url, login=lambda: basic("ada", "pa:ßword"))
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
    [
        "",
        "<html>",
        "[]",
        "{}",
        '{"id": "7"}',
        '{"id": -1}',
        '{"id": 4294967296}',
        '{"id": true}',
        '{"error_code": {}}',
        "[" * 100_000,
    ],
)
def test_answers_that_are_no_id(server: Registry, client: SchemaRegistry, answer: str) -> None:
    server.answer = lambda *_: (200, answer)  # type: ignore[method-assign]  # a server that answers nonsense
    with pytest.raises(SinkError, match="answered 200 for subject orders-value"):
        client.register("orders-value", record(a="int"))


# With the encoder


def values_of(client: SchemaRegistry, encoding: EncodingName = "avro") -> EncodedRows:
    options = EncoderOptions(ORIGIN, registration=Registration(client))
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


_INT = pa.array([1], pa.int32())
_LONG = pa.array([1], pa.int64())
_STRUCT = pa.array([{"x": 2.5}])
_BOTH, _BACKWARD, _FORWARD, _NEITHER = (True, True), (True, False), (False, True), (False, False)


@pytest.mark.parametrize(
    ("old", "new", "avro", "json_schema", "protobuf"),
    [
        pytest.param({}, {"new": _INT}, _BOTH, _BACKWARD, _BOTH, id="added"),
        pytest.param({"old": _INT}, {}, _BOTH, _FORWARD, _BOTH, id="dropped"),
        pytest.param({"old": _INT}, {"new": _INT}, _BOTH, _NEITHER, _BOTH, id="renamed"),
        pytest.param({"old": _INT}, {"old": _LONG}, _BACKWARD, _BACKWARD, _BOTH, id="widened"),
        pytest.param({}, {"new": _STRUCT}, _BOTH, _BACKWARD, _BACKWARD, id="struct-added"),
        pytest.param({"old": _STRUCT}, {}, _BOTH, _FORWARD, _FORWARD, id="struct-dropped"),
        pytest.param({"old": _STRUCT}, {"new": _STRUCT}, _BOTH, _NEITHER, _NEITHER, id="struct-renamed"),
        pytest.param({"old": _INT}, {"old": pa.array(["1"])}, _NEITHER, _NEITHER, _NEITHER, id="another-type"),
    ],
)
@pytest.mark.parametrize("encoding", ["avro", "json_schema", "protobuf"])
def test_which_schemas_a_registry_takes(
    old: dict[str, pa.Array],
    new: dict[str, pa.Array],
    avro: tuple[bool, bool],
    json_schema: tuple[bool, bool],
    protobuf: tuple[bool, bool],
    encoding: EncodingName,
) -> None:
    """BACKWARD is the registry's rule. FORWARD is that rule for the schemas in the other order."""
    expected = {"avro": avro, "json_schema": json_schema, "protobuf": protobuf}
    assert (is_taken(encoding, old, new), is_taken(encoding, new, old)) == expected[encoding]


def is_taken(encoding: EncodingName, *columns: dict[str, pa.Array]) -> bool:
    """Whether the schema of rows with the first columns can be followed by that with the second ones."""
    with serving() as server, contextlib.closing(SchemaRegistry(server.url, attempts=1)) as client:
        encode = values_of(client, encoding)
        for number, each in enumerate(columns):
            batch = change_rows([Row("insert", 1, 1, "a")])
            for name, values in each.items():
                batch = batch.append_column(name, values)
            try:
                encode(batch.select(["id", "note", *each, *(field.name for field in CHANGE_COLUMNS)]))
            except SchemaChangedError:
                assert number == 1
                return False
        return True


def test_changed_credentials_are_used_for_the_next_request(server: Registry) -> None:
    pairs = [("ada", "first"), ("ada", "first"), ("ada", "second")]
    server.require("ada", "first")
    known = SchemaRegistry(server.url, login=lambda: basic(*pairs.pop(0)))
    known.check()
    server.require("ada", "second")
    with pytest.raises(SinkError, match="answered 401"):
        known.check()
    known.check()
    known.close()


# Settings


def test_the_next_address_is_asked_where_one_does_not_answer(server: Registry) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    client = SchemaRegistry([closed, server.url], attempts=1, timeout=5)
    assert client.register("orders-value", record(a="int")) == 1
    server.failures += [503]
    with pytest.raises(SinkError, match="schema registry"):
        client.register("orders-value", record(a="long"))
    client.close()


def test_an_answer_of_a_proxy_in_html_is_an_error(server: Registry, client: SchemaRegistry) -> None:
    server.answer = lambda *_: (200, "<html>Sign in</html>")  # type: ignore[method-assign]  # as a proxy does
    for ask in (client.check, lambda: client.history("orders-value"), lambda: client.register("s", record(a="int"))):
        with pytest.raises(SinkError, match=r"answered 200 .*Sign in"):
            ask()


def test_an_answer_that_drips_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as drip:
        thread = threading.Thread(target=dripping, args=(drip,), daemon=True)
        thread.start()
        client = SchemaRegistry(f"http://127.0.0.1:{drip.getsockname()[1]}", attempts=1, timeout=0.5)
        with pytest.raises(SinkError, match=r"too slow|timed out"):
            client.check()
        client.check()  # by another connection
        client.close()
        thread.join(10)


def dripping(server: socket.socket) -> None:
    """A server that sends a byte every tenth of a second, until its client leaves. It answers the next one at once."""
    connection, _ = server.accept()
    with connection, contextlib.suppress(OSError):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(100):
            connection.sendall(b" ")
            time.sleep(0.1)
    connection, _ = server.accept()
    with connection:
        connection.recv(1 << 16)
        connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n["AVRO"]')


def test_schemas_are_looked_up_where_they_must_not_be_registered(server: Registry, client: SchemaRegistry) -> None:
    reader = SchemaRegistry(server.url, backoff=0.001, auto_register=False)
    for _ in range(2):
        with pytest.raises(SchemaChangedError, match="does not have the schema for subject orders-value"):
            reader.register("orders-value", record(a="long"))
        client.register("orders-value", record(a="int"))
    number = client.register("orders-value", record(a="long"))
    assert reader.register("orders-value", record(a="long")) == number
    reader.close()


def test_a_token_is_sent(server: Registry) -> None:
    server.authorization = "Bearer t0ken"
    settings = Settings.model_validate({"url": server.url, "oauth": {"token": "t0ken"}})
    client = SchemaRegistry(settings.url, login=login_of(settings))
    client.check()
    client.close()


def test_a_header_that_http_does_not_allow_is_not_shown(server: Registry) -> None:
    client = SchemaRegistry(server.url, login=lambda: "Bearer s3cret\n", attempts=1)
    with pytest.raises(SinkError, match="a header of the request has a character that HTTP does not allow") as info:
        client.register("orders-value", record(a="int"))
    client.close()
    shown = "".join(traceback.format_exception(info.value))
    assert "s3cret" not in shown


def test_a_token_that_cannot_be_had_names_its_setting(server: Registry) -> None:
    oauth = {"token_url": f"{server.url}/token", "client_id": "cdfd", "client_secret": "s3cret"}
    settings = Settings.model_validate({"url": server.url, "oauth": oauth})
    client = SchemaRegistry(settings.url, login=login_of(settings), attempts=1)
    with pytest.raises(SinkError, match=r"sink.schema_registry.oauth.token_url") as info:
        client.check()
    assert "s3cret" not in str(info.value)
    client.close()


def test_certificates_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    settings = Settings.model_validate({"url": "https://registry:8081", "ca_path": str(tmp_path / "ca.pem")})
    with pytest.raises(ConfigError, match=r"certificates of sink.schema_registry cannot be used"):
        tls_of(settings)


# Other kinds of schemas, read by the deserializers of Confluent


@pytest.mark.parametrize("kind", ["avro", "json_schema", "protobuf"])
def test_confluents_deserializers_read_values(server: Registry, client: SchemaRegistry, kind: EncodingName) -> None:
    batch = change_rows([Row("insert", 1, 1, "a"), Row("delete", 2, 7, None)])
    values = values_of(client, kind)(batch).to_pylist()
    registry = SchemaRegistryClient({"url": server.url})
    context = SerializationContext("orders", MessageField.VALUE)
    rows = [deserialized(kind, registry, server.schemas[1], value, context) for value in values]
    assert [(row["id"], row["note"], row["_change_type"]) for row in rows] == [(1, "a", "insert"), (7, None, "delete")]


def deserialized(kind: str, registry: Any, schema: str, value: bytes, context: Any) -> dict[str, Any]:
    if kind == "avro":
        return dict(AvroDeserializer(registry)(value, context))
    if kind == "json_schema":
        return dict(JSONDeserializer(None, schema_registry_client=registry)(value, context))
    reader = ProtobufDeserializer(message_type(schema), {"use.deprecated.format": False}, registry)
    message = reader(value, context)
    optional = {"note"}
    return {
        name: None if name in optional and not message.HasField(name) else getattr(message, name) for name in ROW_NAMES
    }


ROW_NAMES = ("id", "note", "_change_type")


def test_fields_of_protobuf_keep_their_numbers_over_a_restart(server: Registry, client: SchemaRegistry) -> None:
    plain = change_rows([Row("insert", 1, 1, "a")])
    values_of(client, "protobuf")(plain)
    wider = plain.add_column(0, "added", pa.array([5]))
    values_of(client, "protobuf")(wider)
    assert "optional int64 id = 1;" in server.schemas[2]
    assert "optional int64 added = 7;" in server.schemas[2]


def test_apicurios_headers_have_the_id() -> None:
    for kind, prefix, headers in [
        ("avro", b"", {"apicurio.value.encoding": b"BINARY"}),
        ("json_schema", b"{", {}),
        ("protobuf", b"\x07\x0a\x05Value", {"apicurio.protobuf.type": b"Value"}),
    ]:
        options = EncoderOptions(ORIGIN, registration=Registration(Catalog(first=7), framing="apicurio"))
        rows = EncodedRows(encoding_of(FormatChoice("flat", kind), options, "value"), "orders.Value")
        (value,) = rows(change_rows([Row("insert", 1, 1, "a")])).to_pylist()
        assert value.startswith(prefix)
        assert dict(rows.encoding.headers) == {"apicurio.value.contentId": (7).to_bytes(8, "big"), **headers}


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("topic", "shop-eu.orders-value"),
        ("record", "shop_eu.orders.Value"),
        ("topic_record", "shop-eu.orders-shop_eu.orders.Value"),
    ],
)
@pytest.mark.parametrize("encoding", ["avro", "json_schema", "protobuf"])
def test_subjects_have_the_record_name_of_the_schema(strategy: Strategy, subject: str, encoding: EncodingName) -> None:
    """JSON Schema takes every title."""
    known = Catalog()
    origin = Origin("shop", "orders", "table-id", "shop-eu.orders")
    options = EncoderOptions(origin, registration=Registration(known, strategy))
    EncodedRows(encoding_of(FormatChoice("flat", encoding), options, "value"), "shop-eu.orders.Value")(change_rows([]))
    expected = subject.replace("shop_eu", "shop-eu") if encoding == "json_schema" else subject
    assert [name for name, _ in known.subjects] == [expected]


def test_tokens_endpoint_and_certificates_are_checked_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    oauth = "oauth: {token_url: 'http://idp.example/token', client_id: cdfd, client_secret: s3cret}"
    text = "pipeline: shop\ntables: [{uri: /lake/orders}]\nsink: {kind: kafka, bootstrap_servers: 'a:1', format: avro, schema_registry: {%s}}"
    connector(parse(text % f"url: 'https://registry', {oauth}", {})).preflight()
    assert "sink.schema_registry.oauth.token_url has no TLS" in caplog.text
    with pytest.raises(ConfigError, match="certificates of sink"):
        connector(parse(text % f"url: 'https://registry', ca_path: {tmp_path / 'ca.pem'}", {})).preflight()
