import io
import itertools
import json
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdfd.encode.arrow import ArrowRecords
from cdfd.encode.records import Origin, RecordEncoder, Records
from cdfd.errors import ConfigError, DataError, MissingColumnError
from cdfd.runtime.arrays import to_numpy
from tests.support.change_rows import (
    KINDS,
    SCHEMA,
    TIME_TEXTS,
    Record,
    Row,
    change_rows,
    flattened,
    record_encoder,
    whole_batches,
)
from tests.support.schemas import Catalog
from tests.support.typed_values import arrays

ORIGIN = Origin("shop", "orders", "0b1c", "shop.orders")
ROWS = st.lists(
    st.builds(Row, st.sampled_from(KINDS), st.integers(1, 2), st.sampled_from([1, 2, None]), st.sampled_from("ab")),
    max_size=16,
)
CUTS = st.lists(st.integers(0, 16), max_size=4)


def lots_of(encoder: RecordEncoder, rows: pa.RecordBatch, cuts: list[int], **options: bool) -> list[Records]:
    """The records of rows that come in batches."""
    return [records for batch in whole_batches(rows, cuts) for records in encoder.encode(batch, **options)]


def everything(encoder: RecordEncoder, rows: list[Row], cuts: list[int], **options: bool) -> list[Record]:
    """All records of rows that come in batches."""
    return flattened(lots_of(encoder, change_rows(rows), cuts, **options))


def key_of(row: Row) -> bytes:
    return json.dumps({"id": row.id}, separators=(",", ":")).encode()


def value_of(row: Row, ordinal: int, kind: str | None = None) -> dict[str, Any]:
    return {
        "id": row.id,
        "note": row.note,
        "_change_type": kind or row.kind,
        "_commit_version": row.version,
        "_commit_timestamp": TIME_TEXTS[row.version],
        "_change_ordinal": ordinal,
    }


def expected(rows: list[Row], *, tombstones: bool) -> list[tuple[bytes, Any, dict[str, bytes]]]:
    """The oracle: one row after the other."""
    records: list[tuple[bytes, Any, dict[str, bytes]]] = []
    for ordinal, row in enumerate(rows):
        kind, headers = row.kind, {}
        after = rows[ordinal + 1] if ordinal + 1 < len(rows) else None
        before = rows[ordinal - 1] if ordinal else None
        if after and is_move(row, after):
            kind, headers = "delete", {"__cdfd.newkey": key_of(after)}
        elif before and is_move(before, row):
            kind, headers = "insert", {"__cdfd.oldkey": key_of(before)}
        records.append((key_of(row), value_of(row, ordinal, kind), headers))
        if kind == "delete" and tombstones:
            records.append((key_of(row), None, {}))
    return records


def is_move(row: Row, after: Row) -> bool:
    return is_pair(row, after) and row.id != after.id


@given(ROWS, CUTS, st.booleans())
def test_flat_records_are_the_same_however_rows_are_cut(rows: list[Row], cuts: list[int], tombstones: bool) -> None:
    subject = record_encoder("flat", ORIGIN, key=["id"], tombstones=tombstones)
    actual = everything(subject, rows, cuts)
    assert [(key, value and json.loads(value), headers) for key, value, headers in actual] == expected(
        rows, tombstones=tombstones
    )


@given(ROWS, CUTS)
def test_without_a_key_every_row_is_a_record_as_it_is(rows: list[Row], cuts: list[int]) -> None:
    actual = everything(record_encoder("flat", ORIGIN, tombstones=True), rows, cuts)
    assert [json.loads(record.value or b"") for record in actual] == [value_of(row, n) for n, row in enumerate(rows)]
    assert all(record.key is None and not record.headers for record in actual)


def test_flat_values_are_json_rows() -> None:
    (record,) = everything(record_encoder("flat", ORIGIN, key=["note", "ID"]), [Row("insert", 4, 7, 'say "hi"')], [])
    assert record == Record(
        b'{"note":"say \\"hi\\"","id":7}',
        b'{"id":7,"note":"say \\"hi\\"","_change_type":"insert","_commit_version":4,'
        b'"_commit_timestamp":"2026-01-01T00:00:00.127000Z","_change_ordinal":0}',
        {},
    )


def test_a_changed_key_is_a_delete_and_an_insert() -> None:
    rows = [Row("update_preimage", 3, 1, "old"), Row("update_postimage", 3, 2, "new"), Row("insert", 3, 1)]
    actual = everything(record_encoder("flat", ORIGIN, key=["id"], tombstones=True), rows, [1])
    old, new = b'{"id":1}', b'{"id":2}'
    assert [(record.key, record.headers) for record in actual] == [
        (old, {"__cdfd.newkey": new}),
        (old, {}),
        (new, {"__cdfd.oldkey": old}),
        (old, {}),
    ]
    kinds = [json.loads(record.value)["_change_type"] if record.value else None for record in actual]
    assert kinds == ["delete", None, "insert", "insert"]


# Keys


def test_a_key_that_the_table_does_not_have() -> None:
    with pytest.raises(MissingColumnError, match=r"no column 'order_id', which is in its `key`. It has id, note"):
        record_encoder("flat", ORIGIN, key=["order_id"]).encode(change_rows([Row("insert", 1, 1)]))
    with pytest.raises(MissingColumnError, match=r"Did you mean 'note'"):
        record_encoder("flat", ORIGIN, key=["notes"]).encode(change_rows([Row("insert", 1, 1)]))
    with pytest.raises(MissingColumnError, match="no column '_change_type'"):
        record_encoder("flat", ORIGIN, key=["_change_type"]).encode(change_rows([Row("insert", 1, 1)]))


def test_a_key_that_the_table_no_longer_has() -> None:
    subject = record_encoder("flat", ORIGIN, key=["note"])
    batch = change_rows([Row("insert", 1, 1)])
    subject.encode(batch)
    with pytest.raises(MissingColumnError, match="no column 'note', which is in its `key`"):
        subject.encode(batch.drop_columns("note"))


@pytest.mark.parametrize("kind", ["flat", "debezium", "arrow", "cloudevents"])
@pytest.mark.parametrize("key", [[], ["id"]])
def test_rows_without_change_columns(kind: Any, key: list[str]) -> None:
    subject = record_encoder(kind, ORIGIN, key=key, partitioner=lambda keys: np.zeros(len(keys), np.int64))
    with pytest.raises(DataError, match="have to end in _change_type"):
        subject.encode(pa.record_batch({"id": pa.array([1])}))


@pytest.mark.parametrize("kind", ["flat", "debezium", "arrow", "cloudevents"])
@pytest.mark.parametrize("key", [[], ["id"]])
def test_a_batch_without_rows_makes_no_records(kind: Any, key: list[str]) -> None:
    subject = record_encoder(kind, ORIGIN, key=key, partitioner=lambda keys: np.zeros(len(keys), np.int64))
    assert flattened(subject.encode(change_rows([]))) == []


# Debezium


def events(rows: list[Row], *, tombstones: bool) -> list[tuple[bytes, Any, dict[str, bytes]]]:
    """The oracle: key, op and notes before and after, headers."""
    records: list[tuple[bytes, Any, dict[str, bytes]]] = []
    waiting: Row | None = None

    def add(row: Row, op: str, before: Row | None, after: Row | None, **headers: bytes) -> None:
        images = tuple(image and (image.id, image.note) for image in (before, after))
        records.append((key_of(row), (op, *images), {f"__debezium.{name}": key for name, key in headers.items()}))
        if op == "d" and tombstones:
            records.append((key_of(row), None, {}))

    for row in rows:
        old, waiting = waiting, None
        if old and not (row.kind == "update_postimage" and old.version == row.version):
            add(old, "d", old, None)
            old = None
        if row.kind == "update_preimage":
            waiting = row
        elif old and old.id != row.id:
            add(old, "d", old, None, newkey=key_of(row))
            add(row, "c", None, row, oldkey=key_of(old))
        elif row.kind == "update_postimage":
            add(row, "u" if old else "c", old, row)
        elif row.kind == "insert":
            add(row, "c", None, row)
        else:
            add(row, "d", row, None)
    if waiting:
        add(waiting, "d", waiting, None)
    return records


def is_pair(row: Row, after: Row) -> bool:
    return (row.kind, after.kind) == ("update_preimage", "update_postimage") and row.version == after.version


@given(ROWS, CUTS, st.booleans())
def test_debezium_records_are_the_same_however_rows_are_cut(rows: list[Row], cuts: list[int], tombstones: bool) -> None:
    subject = record_encoder("debezium", ORIGIN, key=["id"], tombstones=tombstones)
    actual = everything(subject, rows, cuts)
    assert [(key, value and summary(value), headers) for key, value, headers in actual] == events(
        rows, tombstones=tombstones
    )


@pytest.mark.parametrize(("kind", "key"), [("debezium", ["id"]), ("debezium", []), ("flat", ["id"])])
def test_images_whose_numbers_do_not_follow_each_other_are_no_pair(kind: Any, key: list[str]) -> None:
    rows = change_rows([Row("update_preimage", 1, 1), Row("update_postimage", 1, 2)])
    rows = rows.set_column(rows.num_columns - 1, rows.schema.field(rows.num_columns - 1), pa.array([0, 2]))
    actual = everything_of(record_encoder(kind, ORIGIN, key=key), rows)
    assert len(actual) == 2
    assert not any(record.headers for record in actual)


def everything_of(encoder: RecordEncoder, rows: pa.RecordBatch) -> list[Record]:
    return flattened(encoder.encode(rows))


@given(ROWS, CUTS)
def test_debezium_records_without_a_key(rows: list[Row], cuts: list[int]) -> None:
    actual = everything(record_encoder("debezium", ORIGIN, tombstones=True), rows, cuts)
    same_keys = [row._replace(id=1) for row in rows]
    ops = [value[0] for _, value, _ in events(same_keys, tombstones=False)]
    assert [json.loads(record.value or b"")["op"] for record in actual] == ops
    assert all(record.key is None and not record.headers for record in actual)


def test_rows_of_a_snapshot_are_reads() -> None:
    rows = [Row("insert", 3, 1), Row("insert", 3, 2)]
    actual = everything(record_encoder("debezium", ORIGIN, key=["id"]), rows, [], snapshot=True)
    sources = [json.loads(record.value or b"") for record in actual]
    assert [source["op"] for source in sources] == ["r", "r"]
    assert {(source["source"]["name"], source["source"]["table"]) for source in sources} == {("shop", "orders")}


def summary(value: bytes) -> Any:
    event = json.loads(value)
    images = [event[name] and (event[name]["id"], event[name]["note"]) for name in ("before", "after")]
    return event["op"], *images


# CloudEvents


@given(ROWS, CUTS)
def test_cloud_events_are_flat_rows_with_headers(rows: list[Row], cuts: list[int]) -> None:
    actual = everything(record_encoder("cloudevents", ORIGIN, key=["id"], tombstones=True), rows, cuts)
    plain = expected(rows, tombstones=True)
    assert [(record.key, record.value and json.loads(record.value)) for record in actual] == [
        (key, value) for key, value, _ in plain
    ]
    ids, last = [], {}
    for record, (_, value, moved) in zip(actual, plain, strict=True):
        headers = dict(record.headers)
        assert {name: headers.pop(name, b"") for name in moved} == moved
        ids.append(headers.pop("ce_id").decode())
        kind = "tombstone" if value is None else value["_change_type"]
        last = value or last
        assert headers == {
            "ce_specversion": b"1.0",
            "ce_source": b"cdfd://shop/orders",
            "ce_type": f"cdfd.{kind}".encode(),
            "ce_time": last["_commit_timestamp"].replace("000Z", "Z").encode(),
            # Without a value there is no type of it, with which some SDKs would fail.
            **({} if value is None else {"content-type": b"application/json"}),
        }
        place = f"0b1c/{last['_commit_version']}/{last['_change_ordinal']}"
        assert ids[-1] == (place if value is not None else place + "/tombstone")
    assert len(set(ids)) == len(ids)


def test_ids_of_a_snapshot_are_not_those_of_the_changes_of_its_version() -> None:
    rows = [Row("insert", 3, 1)]
    ids = [
        everything(record_encoder("cloudevents", ORIGIN), rows, [], snapshot=snapshot)[0].headers["ce_id"]
        for snapshot in (False, True)
    ]
    assert ids == [b"0b1c/3/0", b"0b1c/3/snapshot/0"]


def test_headers_of_one_version_are_constant_but_for_id_and_type() -> None:
    (records,) = record_encoder("cloudevents", ORIGIN).encode(change_rows([Row("insert", 3, 1), Row("delete", 3, 2)]))
    assert [name for name, _ in records.headers] == ["ce_specversion", "ce_source", "content-type", "ce_time"]
    assert [column.name for column in records.header_columns] == ["ce_type", "ce_id"]


# Arrow


def tables(lots: list[Any]) -> list[pa.Table]:
    return [pa.ipc.open_stream(value).read_all() for records in lots for value in records.whole_values]


@settings(max_examples=50, deadline=None)
@given(arrays(), st.integers(1, 5))
def test_arrow_streams_have_the_bytes_that_arrow_writes(array: pa.Array, limit: int) -> None:
    changes = change_rows([Row("insert", 1, number) for number in range(len(array))])
    batch = changes.add_column(0, "extra", array)
    expected = [stream_of(batch.slice(start, 1)) for start in range(len(array))]
    actual = [record.value for record in flattened(ArrowRecords(record_bytes=limit).encode(batch))]
    assert actual == expected


def can_be_ordered(array: pa.Array) -> bool:
    """Whether pyarrow can take rows of it. pyarrow 26 cannot take views, and rows that are read have none."""
    try:
        array.take(pa.array([], pa.int64()))
    except pa.ArrowNotImplementedError:
        return False
    return True


@settings(max_examples=50, deadline=None)
@given(arrays().filter(can_be_ordered), st.sampled_from([1, 4000]), st.integers(2, 3))
def test_arrow_streams_of_several_partitions_have_their_rows(array: pa.Array, limit: int, partitions: int) -> None:
    batch = change_rows([Row("insert", 1, number) for number in range(len(array))]).add_column(0, "extra", array)
    records = ArrowRecords(lambda rows: rows.column("id"), lambda ids: to_numpy(ids) % partitions, record_bytes=limit)
    for lot in records.encode(batch):
        table = pa.concat_tables(tables([lot]))
        ids = [number for number in range(len(array)) if number % partitions == lot.partition]
        assert table.schema == batch.schema
        assert table["id"].to_pylist() == ids
        assert repr(table["extra"].to_pylist()) == repr([array[number].as_py() for number in ids])


def stream_of(batch: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue().to_pybytes()


def test_arrow_records_hold_the_rows() -> None:
    batch = change_rows([Row("insert", 1, n, f"note {n}") for n in range(100)])
    (records,) = record_encoder("arrow", ORIGIN).encode(batch.slice(10))
    assert (records.keys, records.partition, records.headers) == (None, None, ())
    (table,) = tables([records])
    assert table.schema == batch.schema
    assert table.to_pylist() == batch.slice(10).to_pylist()


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=40), st.integers(1500, 6000))
def test_arrow_records_are_bounded_but_for_a_single_row(lengths: list[int], limit: int) -> None:
    batch = change_rows([Row("insert", 1, n, "x" * length) for n, length in enumerate(lengths)])
    lots = ArrowRecords(record_bytes=limit).encode(batch)
    actual = tables(lots)
    assert pa.concat_tables(actual).to_pylist() == batch.to_pylist()
    for table, record in zip(actual, flattened(lots), strict=True):
        assert table.num_rows == 1 or len(record.value or b"") <= limit


@given(ROWS, CUTS)
def test_arrow_rows_have_the_types_of_flat_ones(rows: list[Row], cuts: list[int]) -> None:
    subject = record_encoder("arrow", ORIGIN, key=["id"], partitioner=lambda keys: np.zeros(len(keys), np.int64))
    actual = [row for table in tables(lots_of(subject, change_rows(rows), cuts)) for row in table.to_pylist()]
    plain = [value for _, value, _ in expected(rows, tombstones=False)]
    assert [(row["_change_ordinal"], row["_change_type"]) for row in actual] == [
        (row["_change_ordinal"], row["_change_type"]) for row in plain
    ]


@given(st.lists(st.integers(0, 9), max_size=40), CUTS)
def test_arrow_rows_stay_with_the_partition_of_their_key(ids: list[int], cuts: list[int]) -> None:
    def partitioner(keys: pa.Array) -> np.ndarray:
        return np.array([json.loads(key)["id"] % 3 for key in keys.to_pylist()], np.int32)

    subject = record_encoder("arrow", ORIGIN, key=["id"], partitioner=partitioner, tombstones=True)
    lots = lots_of(subject, change_rows([Row("insert", 1, number) for number in ids]), cuts)
    by_partition: dict[int | None, list[int]] = {}
    for records in lots:
        rows = [row for table in tables([records]) for row in table.to_pylist()]
        assert {row["id"] % 3 for row in rows} == {records.partition}
        by_partition.setdefault(records.partition, []).extend(row["_change_ordinal"] for row in rows)
    assert all(ordinals == sorted(ordinals) for ordinals in by_partition.values())
    assert sorted(itertools.chain(*by_partition.values())) == list(range(len(ids)))


def test_arrow_with_a_key_needs_partitions() -> None:
    with pytest.raises(ConfigError, match="needs to know the partitions"):
        record_encoder("arrow", ORIGIN, key=["id"])


# Avro


def test_avro_needs_a_registry() -> None:
    with pytest.raises(ConfigError, match="needs a schema registry"):
        record_encoder("avro", ORIGIN)


@given(ROWS, CUTS)
def test_avro_records_are_flat_rows_too(rows: list[Row], cuts: list[int]) -> None:
    known = Catalog()

    def read(data: bytes) -> Any:
        assert data[0] == 0
        schema = fastavro.parse_schema(json.loads(known.schema(int.from_bytes(data[1:5], "big"))))
        row = fastavro.schemaless_reader(io.BytesIO(data[5:]), schema)
        if "_commit_timestamp" in row:
            row["_commit_timestamp"] = row["_commit_timestamp"].isoformat().replace("+00:00", "Z")
        return row

    actual = everything(
        record_encoder("avro", ORIGIN, key=["id"], tombstones=True, registration=known.registration), rows, cuts
    )
    plain = expected(rows, tombstones=True)
    assert [(read(record.key or b""), record.value and read(record.value)) for record in actual] == [
        (json.loads(key), value) for key, value, _ in plain
    ]
    for record, (_, _, moved) in zip(actual, plain, strict=True):
        assert {name: read(key) for name, key in record.headers.items()} == {n: json.loads(k) for n, k in moved.items()}
    assert {subject for subject, _ in known.subjects} in (set(), {"shop.orders-value", "shop.orders-key"})


def test_schema_of_the_rows_is_what_tests_think() -> None:
    assert change_rows([Row("insert", 1, 1)]).schema == SCHEMA
