"""Topics for tests of their readers: a table with values of every type, delivered by the daemon's own sink."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import cdfd
from cdfd.demo.writer import TableWriter
from cdfd.encode.formats import FormatChoice
from cdfd.encode.registered import Registration
from cdfd.sinks.kafka.client.kafka_python import KafkaPythonProducer
from cdfd.sinks.kafka.transactions.sink import KafkaSink
from cdfd.storage.local import LocalStorage
from tests.support.kafka.encoders import encoders
from tests.support.kafka.sinking import Place, at

COLUMNS = {
    "id": "BIGINT",
    "flag": "BOOLEAN",
    "b": "TINYINT",
    "s": "SMALLINT",
    "i": "INT",
    "f": "FLOAT",
    "d": "DOUBLE",
    "amount": "DECIMAL(38, 10)",
    "small": "DECIMAL(5, 0)",
    "text": "STRING",
    "bytes": "BINARY",
    "day": "DATE",
    "at": "TIMESTAMP",
    "clock": "TIMESTAMP_NTZ",
    "odd name; with.dots": "INT",
    "list": "ARRAY<TIMESTAMP>",
    "named": "MAP<STRING, BIGINT>",
    "by_number": "MAP<INT, STRUCT<day: DATE, n: BIGINT>>",
    "by_day": "MAP<DATE, DOUBLE>",
    "by_bytes": "MAP<BINARY, ARRAY<DATE>>",
    "by_struct": "MAP<STRUCT<x: INT, y: STRING>, TIMESTAMP>",
    "nest": "STRUCT<a: STRUCT<n: BIGINT, `x.y`: TIMESTAMP_NTZ>, many: ARRAY<STRUCT<v: BINARY, m: MAP<BIGINT, STRING>>>>",
}

_EXTREME = """
    SELECT 1 id, true flag, -128Y b, -32768S s, -2147483648 i, FLOAT('NaN') f, DOUBLE('-Infinity') d,
        1234567890123456789012345678.0123456789BD amount, -99999BD small,
        'quotes " \\\\ \\n and ünï😀' text, X'00FF10' bytes, DATE'0001-01-01' day,
        TIMESTAMP'1901-12-13T20:45:52.000001Z' at, TIMESTAMP_NTZ'1582-10-14T23:59:59.999999' clock, 7 odd,
        array(TIMESTAMP'1969-12-31T23:59:59.999999Z', null) list, map('a', 9223372036854775807, 'b', null) named,
        map(-1, named_struct('day', DATE'1969-12-31', 'n', 9007199254740993L), 2, null) by_number,
        map(DATE'1900-02-28', DOUBLE('NaN')) by_day, map(X'CAFE', array(DATE'2024-02-29', null)) by_bytes,
        map(named_struct('x', 1, 'y', 'k"'), TIMESTAMP'2026-01-31T12:00:00.123456Z') by_struct,
        named_struct('a', named_struct('n', -9223372036854775808L, 'x.y', TIMESTAMP_NTZ'2026-03-29T02:30:00.5'),
            'many', array(named_struct('v', X'01', 'm', map(5L, 'five')), null)) nest
"""
_PLAIN = """
    SELECT 2, false, 127Y, 32767S, 2147483647, FLOAT('0.1'), DOUBLE('0.1'), -0.0000000001BD, 0BD, '', X'', DATE'9999-12-31',
        TIMESTAMP'9999-12-31T23:59:59.999999Z', TIMESTAMP_NTZ'0001-01-01T00:00:00', -7, array(), map(), map(), map(), map(), map(),
        named_struct('a', null, 'many', array())
"""
_EMPTY = f"SELECT 3, {', '.join(f'CAST(null AS {kind})' for kind in list(COLUMNS.values())[1:])}"


def write_rich(spark: SparkSession, uri: str) -> None:
    """A table with values of every type but variant at their limits, that changes in every way, in five versions."""
    columns = [f"CAST(`{name}` AS {kind}) AS `{name}`" for name, kind in COLUMNS.items()]
    query = f"{_EXTREME} UNION ALL {_PLAIN} UNION ALL {_EMPTY}"
    rows = spark.sql(query).toDF(*COLUMNS).selectExpr(*columns).toArrow()
    asyncio.run(_written(uri, rows))


async def _written(uri: str, rows: pa.Table) -> None:
    table = TableWriter(LocalStorage(uri, sync=False), rows.schema)
    await table.create()
    await table.insert(rows)
    await table.update(pc.field("id") <= 2, {"text": pc.scalar("changed")})
    await table.delete(pc.field("id") == 3)
    await table.insert(rows.filter(pc.field("id") == 3))


def deliver(
    place: Place,
    rows: pa.RecordBatchReader,
    kind: str | FormatChoice = "flat",
    *,
    registration: Registration | None = None,
    **options: Any,
) -> None:
    """Everything in one delivery by the daemon's own sink, with `id` as the key unless the place has none."""

    async def delivered() -> None:
        key = ["id"] if place.destination.keyed else []
        sink = await KafkaSink.open(
            place.destination, KafkaPythonProducer, encoders(kind, key, registration, **options)
        )
        try:
            position = await sink.last_position() or at(0)
            delivery = await sink.begin(position)
            for batch in rows:
                await delivery.write(batch)
            await delivery.commit(position.after_version())
        finally:
            await sink.close()

    asyncio.run(delivered())


def expected(uri: str, **options: Any) -> list[Mapping[str, Any]]:
    """The rows of `cdfd.changes`, as `cdfd.spark.topics` is to give them."""
    rows: list[Mapping[str, Any]] = cdfd.changes(uri, **options).read_all().to_pylist()
    return rows
