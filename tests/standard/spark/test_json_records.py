"""Records in JSON that a topic may have, without a topic."""

import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdfd.spark.records.json import envelope_rows, json_rows
from cdfd.spark.records.records import KAFKA_NAMES, ROW, VALUE

RECORDS = ", ".join(
    f"{name} {kind}"
    for name, kind in zip((*KAFKA_NAMES, VALUE), ("STRING", "INT", "BIGINT", "TIMESTAMP", "BINARY"), strict=True)
)
CHANGE = {
    "_change_type": "insert",
    "_commit_version": 1,
    "_commit_timestamp": "2026-01-31T12:00:00Z",
    "_change_ordinal": 0,
}
EVENT = {"before": None, "op": "c", "source": {"ts_ms": 1, "commit_version": 1, "change_ordinal": 0}}


@pytest.mark.parametrize("unknown", ["it's", "*", "a.b"])
def test_value_of_a_column_with_any_name_is_not_lost(spark: SparkSession, unknown: str) -> None:
    schema = StructType.fromDDL("id BIGINT")
    for decode, of_row in ((json_rows, lambda row: row | CHANGE), (envelope_rows, lambda row: EVENT | {"after": row})):
        for value in (None, "x", {}):
            document = json.dumps(of_row({"id": 1, unknown: value})).encode()
            records = spark.createDataFrame([("topic", 0, 1, None, document)], RECORDS)
            rows = decode(records, schema, strict=True).select(f"{ROW}.id")
            if value is None:
                assert [row.id for row in rows.collect()] == [1]
            else:
                with pytest.raises(PySparkException, match="which the schema does not have"):
                    rows.collect()
