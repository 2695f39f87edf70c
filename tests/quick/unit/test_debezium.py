import io
import json
from typing import Any

import fastavro
import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdfd import __version__
from cdfd.encode.debezium import DebeziumEncoder
from cdfd.encode.formats import EncoderOptions, EncodingName, FormatChoice, record_format
from cdfd.encode.json import JsonEncoding
from cdfd.encode.records import Origin, SnapshotPart
from cdfd.encode.side import RowCounts
from cdfd.encode.values import Rules
from cdfd.errors import DataError
from cdfd.model.columns import CHANGE_COLUMNS, CHANGE_TYPES
from tests.support.change_rows import whole_batches
from tests.support.protobuf import parse
from tests.support.schemas import Catalog

pytestmark = pytest.mark.usefixtures("kernels")

KINDS = CHANGE_TYPES.to_pylist()
SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string()), *CHANGE_COLUMNS])
TIME = 1_767_225_600_123


def change_rows(changes: list[tuple[str, int]], first: int = 0) -> pa.RecordBatch:
    """Rows of (change type, version), numbered from `first` on by id and ordinal."""
    count = len(changes)
    ids = np.arange(first, first + count)
    columns = [
        pa.array(ids),
        pa.array([f'row "{number}"' if number % 3 else None for number in ids], pa.string()),
        pa.DictionaryArray.from_arrays(pa.array([KINDS.index(kind) for kind, _ in changes], pa.int8()), CHANGE_TYPES),
        pa.array([version for _, version in changes], pa.int64()),
        pa.array([TIME + version for _, version in changes], pa.timestamp("ms", "UTC")),
        pa.array(ids),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def image(number: int) -> dict[str, Any]:
    return {"id": number, "note": f'row "{number}"' if number % 3 else None}


def event(before: int | None, after: int | None, op: str, version: int) -> dict[str, Any]:
    """The envelope of rows given by their numbers."""
    ordinal = after if after is not None else before
    time = TIME + version
    snapshot = ("true" if ordinal else "first") if op == "r" else "false"
    return {
        "before": None if before is None else image(before),
        "after": None if after is None else image(after),
        "source": {
            "version": __version__,
            "connector": "cdfd",
            "name": "shop",
            "ts_ms": time,
            "snapshot": snapshot,
            "db": "",
            "sequence": f'["{version}","{ordinal}"]',
            "ts_us": time * 1_000,
            "ts_ns": time * 1_000_000,
            "schema": "",
            "table": 'or"ders',
            "txId": version,
            "commit_version": version,
            "change_ordinal": ordinal,
        },
        "transaction": None,
        "op": op,
        "ts_ms": time,
        "ts_us": time * 1_000,
        "ts_ns": time * 1_000_000,
    }


def expected(changes: list[tuple[str, int]]) -> list[dict[str, Any]]:
    """The oracle: one row after the other."""
    events, waiting = [], None
    for number, (kind, version) in enumerate(changes):
        if waiting is not None and not (kind == "update_postimage" and changes[waiting][1] == version):
            events.append(event(waiting, None, "d", changes[waiting][1]))
            waiting = None
        if kind == "update_preimage":
            waiting = number
        elif kind == "insert":
            events.append(event(None, number, "c", version))
        elif kind == "delete":
            events.append(event(number, None, "d", version))
        else:
            events.append(event(waiting, number, "c" if waiting is None else "u", version))
            waiting = None
    return events if waiting is None else [*events, event(waiting, None, "d", changes[waiting][1])]


def encoder(*, longs_as_strings: bool = False, **options: Any) -> DebeziumEncoder:
    origin = Origin("shop", 'or"ders', "table-id", "shop.orders")
    return DebeziumEncoder(origin, JsonEncoding(Rules(longs_as_strings)), **options)


def parsed(lines: pa.Buffer) -> list[Any]:
    text = lines.to_pybytes().decode()
    assert not text or text.endswith("\n")
    return [json.loads(line) for line in text.split("\n")[:-1]]


CHANGES = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 2)), max_size=20)


@given(CHANGES, st.lists(st.integers(0, 20), max_size=4))
def test_events_are_the_same_however_rows_are_cut_into_batches(changes: list[tuple[str, int]], cuts: list[int]) -> None:
    actual, values = [], []
    for batch in whole_batches(change_rows(changes), cuts):
        actual += parsed(encoder().lines(batch))
        (records,) = encoder().encode(batch)
        values += [json.loads(value.as_py()) for value in records.values]
    assert actual == values == expected(changes)


@given(CHANGES)
def test_values_are_the_lines(changes: list[tuple[str, int]]) -> None:
    """Their wrapping has the constants of the envelope."""
    rows = change_rows(changes)
    options = EncoderOptions(Origin("shop", 'or"ders', "table-id", "shop.orders"))
    (records,) = record_format(FormatChoice("debezium")).encoder(options).encode(rows)
    assert b"".join(value + b"\n" for value in records.whole_values if value) == encoder().lines(rows).to_pybytes()
    assert not changes or b'"ts_ns":' in records.value_wrapping[1] or len({version for _, version in changes}) > 1


def test_field_order_and_text_of_an_update() -> None:
    lines = encoder().lines(change_rows([("update_preimage", 4), ("update_postimage", 4)]))
    assert lines.to_pybytes().decode() == (
        '{"before":{"id":0,"note":null},"after":{"id":1,"note":"row \\"1\\""},"source":{"version":"'
        + __version__
        + '",'
        '"connector":"cdfd","name":"shop","ts_ms":1767225600127,"snapshot":"false","db":"",'
        '"sequence":"[\\"4\\",\\"1\\"]","ts_us":1767225600127000,"ts_ns":1767225600127000000,"schema":"","table":"or\\"ders",'
        '"txId":4,"commit_version":4,"change_ordinal":1},"transaction":null,"op":"u",'
        '"ts_ms":1767225600127,"ts_us":1767225600127000,"ts_ns":1767225600127000000}\n'
    )


def test_rows_of_a_snapshot_are_reads() -> None:
    rows = change_rows([("insert", 3), ("insert", 3)])
    assert parsed(encoder().lines(rows, snapshot=True)) == [event(None, 0, "r", 3), event(None, 1, "r", 3)]


def test_plain_change_types_and_other_dictionaries_do_too() -> None:
    rows = change_rows([("insert", 1), ("delete", 1)])
    plain = rows.set_column(2, "_change_type", pa.array(["insert", "delete"]))
    other = rows.set_column(
        2, "_change_type", pa.array(["delete", "insert"]).dictionary_encode().take(pa.array([1, 0]))
    )
    assert parsed(encoder().lines(plain)) == parsed(encoder().lines(other)) == parsed(encoder().lines(rows))


def test_batches_without_change_columns_are_refused() -> None:
    with pytest.raises(DataError, match="change rows have to end in _change_type"):
        encoder().lines(change_rows([("insert", 1)]).select(["id", "note"]))


def test_longs_as_strings_in_rows() -> None:
    (actual,) = parsed(encoder(longs_as_strings=True).lines(change_rows([("insert", 1)])))
    assert actual["after"]["id"] == "0"
    assert actual["source"]["commit_version"] == 1


def test_time_of_processing_is_the_clocks() -> None:
    rows = change_rows([("insert", 1), ("delete", 2)])
    (records,) = encoder(clock=lambda: 1_800_000_000_123_456_789).encode(rows)
    for value in records.values.to_pylist():
        document = json.loads(value)
        assert document["ts_ms"] == 1_800_000_000_123
        assert document["ts_us"] == 1_800_000_000_123_456
        assert document["ts_ns"] == 1_800_000_000_123_456_789
        assert document["source"]["ts_ms"] in (TIME + 1, TIME + 2)


def test_events_have_their_transaction_where_it_is_announced() -> None:
    rows = change_rows([("insert", 4), ("update_preimage", 4), ("update_postimage", 4)])
    (records,) = encoder(transactions=True).encode(rows)
    assert [json.loads(value)["transaction"] for value in records.values.to_pylist()] == [
        {"id": "4", "total_order": 1, "data_collection_order": 1},
        {"id": "4", "total_order": 3, "data_collection_order": 3},
    ]


@pytest.mark.parametrize("encoding", ["json", "json_schema", "connect_json", "avro", "protobuf"])
@pytest.mark.parametrize("keys", [[float("nan"), float("inf")], [-1, -999]], ids=["no numbers", "one millisecond"])
def test_as_many_events_are_counted_as_are_sent(encoding: EncodingName, keys: list[float]) -> None:
    rows = change_rows([("update_preimage", 1), ("update_postimage", 1)])
    column = pa.array(keys) if isinstance(keys[0], float) else pa.array(keys, pa.timestamp("us", "UTC"))
    rows = rows.set_column(0, "id", column)
    choice = FormatChoice("debezium", encoding, time="connect")
    options = EncoderOptions(Origin("shop", "orders", "7f", "t"), ("id",), registration=Catalog().registration)
    counts = RowCounts(("id",), choice.rules)
    counts.add(rows)
    assert counts.events == sum(map(len, record_format(choice).encoder(options).encode(rows)))


def test_places_of_events_do_not_depend_on_batches() -> None:
    first = change_rows([("insert", 4), ("update_preimage", 4), ("update_postimage", 4)])
    second = change_rows([("insert", 4), ("delete", 4)], first=3)
    for batches in ((first, second), (second,)):
        made = encoder(transactions=True)
        events = [json.loads(value) for batch in batches for value in made.encode(batch)[0].values.to_pylist()]
        assert [event["transaction"]["total_order"] for event in events] == [1, 3, 4, 5][-len(events) :]


def test_headers_of_a_changed_key_are_the_other_key_without_its_schema() -> None:
    """Kafka Connect's default converter of headers fails at a key with a schema."""
    options = EncoderOptions(Origin("shop", "orders", "table-id", "shop.orders"), key=("id",))
    (records,) = (
        record_format(FormatChoice("debezium", "connect_json"))
        .encoder(options)
        .encode(change_rows([("update_preimage", 1), ("update_postimage", 1)]))
    )
    assert [json.loads(key)["payload"] for key in records.whole_keys] == [{"id": 0}, {"id": 1}]
    assert [(column.name, column.whole_values) for column in records.header_columns] == [
        ("__debezium.newkey", [b'{"id":1}', None]),
        ("__debezium.oldkey", [None, b'{"id":0}']),
    ]


def test_parts_of_a_snapshot() -> None:
    rows = change_rows([("insert", 3)] * 3)
    marks = {
        part: [
            json.loads(value)["source"]["snapshot"]
            for value in encoder().encode(rows, snapshot=True, part=part)[0].values.to_pylist()
        ]
        for part in SnapshotPart
    }
    assert marks == {
        SnapshotPart.MIDDLE: ["first", "true", "true"],
        SnapshotPart.END: ["first", "true", "last"],
        SnapshotPart.INCREMENTAL: ["incremental"] * 3,
    }


@given(CHANGES, st.booleans())
@settings(deadline=None)
def test_events_are_the_same_in_every_encoding(changes: list[tuple[str, int]], transactions: bool) -> None:
    """Read by fastavro and by Google's library."""
    rows, known = change_rows(changes), Catalog()
    options = EncoderOptions(
        Origin("shop", 'or"ders', "table-id", "shop.orders"), registration=known.registration, transactions=transactions
    )
    (plain,) = record_format(FormatChoice("debezium")).encoder(options).encode(rows)
    (avro,) = record_format(FormatChoice("debezium", "avro")).encoder(options).encode(rows)
    (connect,) = record_format(FormatChoice("debezium", "connect_json")).encoder(options).encode(rows)
    (validated,) = record_format(FormatChoice("debezium", "json_schema")).encoder(options).encode(rows)
    events = [json.loads(value) for value in plain.whole_values]
    schemas = [schema for _, schema in known.subjects]
    writer = fastavro.parse_schema(json.loads(schemas[0]))
    values = [io.BytesIO(value[5:]) for value in avro.values.to_pylist()]
    assert [fastavro.schemaless_reader(value, writer) for value in values] == events
    assert [json.loads(value)["payload"] for value in connect.whole_values] == events
    assert [json.loads(value[5:]) for value in validated.values.to_pylist()] == events
    validator = jsonschema.Draft7Validator(json.loads(schemas[1]))
    for event in events:
        validator.validate(event)


def test_an_event_in_protobuf() -> None:
    known = Catalog()
    options = EncoderOptions(
        Origin("shop", "orders", "table-id", "shop.orders"), registration=known.registration, transactions=True
    )
    rows = change_rows([("update_preimage", 4), ("update_postimage", 4), ("delete", 5)])
    (records,) = record_format(FormatChoice("debezium", "protobuf")).encoder(options).encode(rows)
    update, delete = (parse(known.subjects[0][1], value[6:]) for value in records.values.to_pylist())
    assert (update.op, update.before.id, update.after.id, update.after.note) == ("u", 0, 1, 'row "1"')
    assert (update.before.HasField("note"), update.source.sequence, update.source.txId) == (False, '["4","1"]', 4)
    assert (update.transaction.id, update.transaction.total_order) == ("4", 2)
    assert (delete.op, delete.before.id, delete.HasField("after")) == ("d", 2, False)
