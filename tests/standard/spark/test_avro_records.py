"""Records in Avro that a topic may have, without a topic."""

import json
from datetime import UTC, date, datetime

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdfd.spark.records.avro import AvroFrames
from cdfd.spark.records.records import KAFKA_NAMES, ROW, VALUE

RECORDS = ", ".join(
    f"{name} {kind}"
    for name, kind in zip((*KAFKA_NAMES, VALUE), ("STRING", "INT", "BIGINT", "TIMESTAMP", "BINARY"), strict=True)
)
DATE, TIME = {"type": "int", "logicalType": "date"}, {"type": "long", "logicalType": "timestamp-micros"}
FIELDS = {
    "day": DATE,
    "time": TIME,
    "_change_type": "string",
    "_commit_version": "long",
    "_commit_timestamp": TIME,
    "_change_ordinal": "long",
}
SCHEMA = {"type": "record", "name": "Value", "fields": [{"name": name, "type": kind} for name, kind in FIELDS.items()]}


def varint(number: int) -> bytes:
    """A number as Avro has it."""
    bits, digits = (number << 1) ^ (number >> 63), bytearray()
    while bits > 127:
        digits.append(bits & 127 | 128)
        bits >>= 7
    return bytes([*digits, bits])


@pytest.mark.parametrize("mode", ["LEGACY", "EXCEPTION"])
def test_old_dates_whatever_calendar_the_session_says(spark: SparkSession, mode: str) -> None:
    day, time = date(1500, 1, 1), datetime(1500, 1, 1, tzinfo=UTC)
    days = (day - date(1970, 1, 1)).days
    cells = [varint(days), varint(days * 86_400_000_000), varint(6), b"insert", *map(varint, (1, 0, 0))]
    record = b"\0\0\0\0\7" + b"".join(cells)
    session = spark.newSession()
    session.conf.set("spark.sql.avro.datetimeRebaseModeInRead", mode)
    records = session.createDataFrame([("topic", 0, 1, None, record)], RECORDS)
    frames = AvroFrames(StructType.fromDDL("day DATE, time TIMESTAMP"), {7: json.dumps(SCHEMA)}, strict=True)
    rows = frames.rows(records).selectExpr(f"{ROW}.day", f"date_format({ROW}.time, 'yyyy-MM-dd') AS time")
    assert [tuple(row) for row in rows.collect()] == [(day, f"{time:%Y-%m-%d}")]
