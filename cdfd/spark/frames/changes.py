"""`cdfd.spark.changes` and `cdfd.spark.snapshot`: cdfd plans, and Spark's own Parquet reader reads, where it gives the same rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Final, Literal, get_args

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from cdfd.delta.types.datatypes import StructType as Struct
from cdfd.delta.types.datatypes import types_in
from cdfd.errors import ConfigError, UnsupportedError, Within
from cdfd.log.table import Table
from cdfd.model.columns import CHANGE_ORDINAL
from cdfd.model.plan import ChangePlan
from cdfd.runtime.ordered_pool import map_in_order
from cdfd.runtime.tasks import run_blocking
from cdfd.scan.read import count_rows
from cdfd.scan.table_files import TableFiles
from cdfd.spark.engine.target import Target, resolve_target
from cdfd.spark.frames.groups import FileRows, ReadByCdfd, check_files, check_schema, file_rows, groups_of
from cdfd.spark.frames.paths import check_store, has_own_keys, spark_files
from cdfd.spark.frames.scan_frame import ScanFrames
from cdfd.spark.records.records import quoted
from cdfd.spark.session import active_session
from cdfd.spark.source.options import SourceOptions
from cdfd.spark.source.partitioning import PlanRange, Schemas, listed_snapshot, partition_splits
from cdfd.spark.source.reading import ChangePartition, execution_of, open_table, read_small
from cdfd.spark.source.source import CdfdSource, count_files, first_version, plans_of
from cdfd.storage.base import root_of

logger = logging.getLogger("cdfd.spark")

Reader = Literal["auto", "spark", "cdfd"]

_BOUNDS: Final = ("startingversion", "startingtimestamp", "endingversion", "endingtimestamp")

_V1_SOURCES: Final = "spark.sql.sources.useV1SourceList"
_PATTERNS: Final = "spark.sql.parser.quotedRegexColumnNames"
_CASE: Final = "spark.sql.caseSensitive"
_NULL_STRUCTS: Final = "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing"

_MOST_PLANNED: Final = 40_000
"""Files of all plans, at most, and versions. One file may have rows in several versions."""

RANGE_BYTES: Final = 8 << 20
"""Bytes of the files of a small range, at most. Planning a query of `format("cdfd")` takes longer than reading them."""

RANGE_FILES: Final = 1_000
"""Files of a small range, at most, and its versions."""


def change_frame(spark: SparkSession, options: Mapping[str, str], *, ordinals: bool, reader: Reader) -> DataFrame:
    """See `cdfd.spark.changes`."""
    if reader not in get_args(Reader):
        raise ConfigError(f"reader is {reader!r:.100}", hint=f"One of: {', '.join(get_args(Reader))}")
    # A time without a zone is one of the session's zone, as in delta-spark.
    times = {name: time_in_zone(text, spark) for name, text in options.items() if name.lower().endswith("timestamp")}
    options = {**options, **times}
    parsed = SourceOptions.parse(options)
    if parsed.packed:
        raise ConfigError("packed rows are for streams", hint="Omit the option `packed`")
    table = open_table(parsed)
    target = run_blocking(resolve_target(table, parsed), local=table.local)
    fields = [
        (name, field)
        for name, field in zip(target.names, target.spark_schema, strict=True)
        if name != CHANGE_ORDINAL
        or ordinals
        or any(each.name.lower() == CHANGE_ORDINAL for each in parsed.columns or ())
    ]
    if reader != "cdfd":
        plans: list[ChangePlan] | None = None
        try:
            _check_options(spark, table, parsed, target, explicit=reader == "spark")
            plans = run_blocking(plans_of(table, parsed, target, _MOST_PLANNED), local=table.local)
            return _by_spark(spark, table, target, fields, plans)
        except ReadByCdfd as reason:
            if reader == "spark":
                what, hint = f"Spark's reader cannot read the rows: {reason}", "Omit `reader`: cdfd reads the rows then"
                raise UnsupportedError(what, table=table.uri, hint=hint) from None
            if (rows := _small_range(table, parsed, target, fields, plans)) is not None:
                logger.info("the driver reads the changes of %s: %s", table.uri, reason)
                return spark.createDataFrame(rows, StructType([field for _, field in fields]))
            logger.info('format("cdfd") reads the changes of %s: %s', table.uri, reason)
    # The rows as `format("cdfd")` reads them, of the same versions.
    first = "snapshot" if parsed.start == "snapshot" else run_blocking(first_version(table, target), local=table.local)
    with active_session(spark):
        spark.dataSource.register(CdfdSource)
    others = {name: text for name, text in options.items() if name.lower().replace("_", "") not in _BOUNDS}
    source = spark.read.format("cdfd").options(**others, startingVersion=first, endingVersion=target.version)
    return source.schema(StructType([field for _, field in fields])).load()


def time_in_zone(text: str, spark: SparkSession) -> str:
    """A time, with a zone if it has none: that of the session."""
    if text.strip().isdigit():
        return text  # milliseconds. Python would read some of them as a date
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return text  # another form of a time
    if moment.tzinfo is None:
        # Spark has names of zones that Python lacks, such as PST and GMT+8. No job runs for this query.
        (row,) = spark.sql(f"SELECT unix_micros(CAST('{moment.isoformat()}' AS TIMESTAMP_LTZ))").collect()
        moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=row[0])
    return moment.isoformat()


def _check_options(
    spark: SparkSession, table: Table, options: SourceOptions, target: Target, *, explicit: bool
) -> None:
    """Raises ReadByCdfd if options or settings say that Spark's reader does not read the rows. `explicit`: the user asks for it."""
    shape = options.rows.shape
    if options.net or options.rows.drop_unchanged or shape.where is not None or shape.masks or shape.excluded:
        raise ReadByCdfd("an option changes rows or leaves some out")
    if options.skip_missing:
        raise ReadByCdfd("missing files are skipped")
    if "parquet" not in str(spark.conf.get(_V1_SOURCES, "parquet")).lower():
        raise ReadByCdfd(f"{_V1_SOURCES} is without parquet, so Spark does not number rows")
    if str(spark.conf.get(_PATTERNS, "false")).lower() == "true":
        raise ReadByCdfd(f"{_PATTERNS} is true, so names of columns would be patterns")
    if str(spark.conf.get(_CASE, "false")).lower() == "true":
        raise ReadByCdfd(f"{_CASE} is true, so columns would be null if their names have another case in a file")
    kinds = (kind for child in target.schema.struct for kind in types_in(child.type))
    null_structs = str(spark.conf.get(_NULL_STRUCTS, "false")).lower() == "true"
    if null_structs and any(isinstance(kind, Struct) for kind in kinds):
        raise ReadByCdfd(f"{_NULL_STRUCTS} is true, so structs would be null")
    has_keys = explicit or has_own_keys(spark, root_of(table.files.storage)) if options.storage else True
    check_store(table.files, has_options=not has_keys)
    if options.start == "snapshot":
        stream = table.stream(target.rows, target.schema)
        live = run_blocking(listed_snapshot(stream, options, target.version), local=table.local)
        if live is not None:
            raise ReadByCdfd("executors list the files of the snapshot")


def _by_spark(
    spark: SparkSession,
    table: Table,
    target: Target,
    fields: Sequence[tuple[str, StructField]],
    plans: Sequence[ChangePlan],
) -> DataFrame:
    """The rows as Spark's reader reads them. Raises ReadByCdfd where it does not, or takes longer."""
    if count_files(plans) > _MOST_PLANNED:
        raise ReadByCdfd("the files are too many for Spark's driver")
    field_ids = str(spark.conf.get("spark.sql.parquet.fieldId.read.enabled", "false")).lower() == "true"
    schemas = Schemas(target.schema)
    files = list(file_rows(schemas.of(plan, table.uri) for plan in plans))
    check_files(files)
    for schema in {id(each.schema): each.schema for each in files}.values():
        check_schema(schema, field_ids=field_ids)
    if any(name == CHANGE_ORDINAL for name, _ in fields):
        files = _with_ordinals(files, table.files)
    if not files:
        return spark.createDataFrame([], StructType([field for _, field in fields]))
    s3 = "s3" if spark.conf.get("spark.hadoop.fs.s3.impl", None) else "s3a"
    sources = {each.published: each.name for each in target.rows.shape.columns or ()}
    wanted = [(sources.get(name, name), field) for name, field in fields]
    scans = ScanFrames(spark, table.files, spark_files(files, table.files, s3), wanted)
    groups = groups_of(files)
    logger.info("Spark's reader reads the changes of %s: %d scans, %d files", table.uri, len(groups), len(files))
    frame = reduce(DataFrame.unionAll, map(scans.frame, groups))
    if not any(field.metadata for _, field in fields):
        return frame
    columns = ((frame[quoted(field.name)], field) for _, field in fields)
    return frame.select([column.alias(field.name, metadata=field.metadata) for column, field in columns])


def _with_ordinals(files: Sequence[FileRows], of: TableFiles) -> list[FileRows]:
    """The files with the ordinals of their first rows, by their footers."""
    if any(each.is_cdc for each in files):
        raise ReadByCdfd("the rows of change data files have another order than in their files")

    def count(each: FileRows) -> int:
        with Within(of.storage.uri, each.version, each.scan.path):
            return count_rows(each.scan, of)

    numbered, version, following = list[FileRows](), -1, 0
    for each, rows in zip(files, map_in_order(count, files, workers=16 if of.storage.remote else 1), strict=True):
        if each.version != version:
            version, following = each.version, 0
        numbered.append(replace(each, ordinal=following))
        following += rows
    return numbered


def _small_range(
    table: Table,
    options: SourceOptions,
    target: Target,
    fields: Sequence[tuple[str, StructField]],
    plans: Sequence[ChangePlan] | None,
) -> pa.Table | None:
    """The rows of a small range, which become part of the plan, so that no task opens a file.

    None if the range is large, is a snapshot, or has nested columns. `plans` is None if they are not made yet. Raises what `plans_of` and
    `read_partition` do.
    """
    # PySpark takes nested arrays apart to look for times without a zone, and fails where one is a slice.
    nested = any(isinstance(field.dataType, (ArrayType, MapType, StructType)) for _, field in fields)
    if nested or options.start == "snapshot":
        return None
    if plans is None:
        plans = run_blocking(plans_of(table, options, target, RANGE_FILES, RANGE_BYTES), local=table.local)
    if count_files(plans) > RANGE_FILES or sum(plan.size for plan in plans) > RANGE_BYTES:
        return None
    names, spark_schema = tuple(name for name, _ in fields), StructType([field for _, field in fields])
    target, schemas = replace(target, names=names, spark_schema=spark_schema), Schemas(target.schema)
    plan_ranges = [PlanRange(schemas.of(plan, table.uri)) for plan in plans]
    execution = execution_of(table, options)
    groups = partition_splits(plan_ranges, execution, ordered=target.ordered, limit=1 << 40)
    partition = ChangePartition(tuple(split for splits in groups for split in splits), target)
    batches = read_small(partition, options)
    return pa.Table.from_batches(batches) if batches else None
