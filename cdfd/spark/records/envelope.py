"""Debezium's events, of which each is one row or the two images of an update."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructField, StructType

from cdfd.spark.records.records import CHANGE_FIELDS, CHANGE_NAMES, KAFKA_NAMES, refusal, when_all

IMAGE: Final = "_image"
_SOURCE: Final = ("ts_ms", "commit_version", "change_ordinal")


def event_fields(image: StructType) -> list[StructField]:
    """The fields of an event that are read, with images of this type."""
    source = StructType([StructField(name, LongType()) for name in _SOURCE])
    images = [StructField(name, image) for name in ("before", "after")]
    return [*images, StructField("source", source), StructField("op", StringType())]


def image_type(image: DataType) -> ArrayType:
    """The images of an event, each with its change columns."""
    return ArrayType(StructType([StructField("row", image), *CHANGE_FIELDS]))


def images_of(event: Column, before: Column, after: Column, image: DataType, what: str, *further: Column) -> Column:
    """The images of an event, as `image_type`.

    Args:
        event: with the fields `source` and `op`.
        before: the older image, or what stands for it; null if the event has none.
        after: the newer one.
        image: type of both.
        what: the error about a record that lacks a part, or for which a further condition is not true.
        further: these conditions.
    """
    op, source = event.getField("op"), event.getField("source")
    made, updated = op.isin("c", "r"), op == "u"

    def one(change_type: str, row: Column, *, earlier: int = 0) -> Column:
        ordinal = source.getField("change_ordinal")
        cells = (
            sql.lit(change_type),
            source.getField("commit_version"),
            sql.timestamp_millis(source.getField("ts_ms")),
            ordinal - earlier if earlier else ordinal,
        )
        changes = (cell.alias(name) for cell, name in zip(cells, CHANGE_NAMES, strict=True))
        return sql.struct(row.alias("row"), *changes)

    # An event without the images of its `op` matches no branch.
    images = (
        sql.when(made & after.isNotNull(), sql.array(one("insert", after)))
        .when((op == "d") & before.isNotNull(), sql.array(one("delete", before)))
        .when(updated & after.isNotNull() & before.isNull(), sql.array(one("update_postimage", after)))
        .when(
            updated & after.isNotNull(),
            sql.array(one("update_preimage", before, earlier=1), one("update_postimage", after)),
        )
    )
    conditions = [source.getField(name).isNotNull() for name in _SOURCE]
    return when_all([*further, images.isNotNull(), *conditions], images, refusal(what).cast(image_type(image)))


def explode(records: DataFrame, images: Column, *kept: str) -> DataFrame:
    """A row for each image, with the columns `IMAGE`, `KAFKA_NAMES`, and those that are kept.

    Decode values after this: Spark repeats expressions before it that are used several times.
    """
    columns = (*KAFKA_NAMES, *kept)
    return records.select(*columns, images.alias(IMAGE)).select(*columns, sql.explode(IMAGE).alias(IMAGE))


def change_cells() -> list[Column]:
    """The change columns of images behind `explode`."""
    return [sql.col(IMAGE).getField(name).alias(name) for name in CHANGE_NAMES]
