"""A Delta table that change rows keep in step with the table that they are of.

Every batch of changes is folded: of each key the last change counts. A MERGE brings the result into the copy, whose rows carry the position
of their last change, (`_commit_version`, `_change_ordinal`), in two columns of their own. A change is applied only where it is newer than the
row, so a batch that comes again changes nothing, and no repeat takes a row back:

| change                         | row in the copy of an older position | of a newer one, or this | no row     |
|--------------------------------|--------------------------------------|-------------------------|------------|
| `insert`, `update_postimage`   | updated                              | left                    | inserted * |
| `delete`, `update_preimage`    | deleted, if of an older version      | left                    | nothing    |

In one version a key has one old and one new row at most, so the new one stays, whichever comes first (`SET id = id + 1`).

* unless the key is known to have been deleted by a later version. A row that is gone has no position, so a stream keeps the keys that it has
deleted, and when, in a small Delta table in the folder of its checkpoint. A batch writes there before it merges: where it ends between the
two, it comes again, and does both again. With that table's id a stream tells Delta which batch a MERGE is, so one that is done is not even
begun again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from cdfd.changes.columns import CHANGE_ORDINAL, CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from cdfd.errors import ConfigError
from cdfd.spark.topic_records import CHANGE_NAMES, KAFKA_NAMES, quoted

VERSION: Final = "_cdfd_version"
ORDINAL: Final = "_cdfd_ordinal"
_DELETED: Final = "_cdfd_deleted"
_DELETES: Final = ("delete", "update_preimage")
_TXN_APP: Final = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION: Final = "spark.databricks.delta.write.txnVersion"
_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=")
_BATCHES_BETWEEN_SWEEPS: Final = 100


def apply_changes(
    changes: DataFrame,
    target: str,
    keys: Sequence[str],
    *,
    checkpoint: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    query_name: str | None = None,
    evolve_schema: bool = False,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    remember_deletes: timedelta | None = timedelta(days=7),
) -> StreamingQuery | None:
    """Bring change rows into a Delta table, which then equals the table that they are of.

    It takes what `read_changes` gives, or any rows with the four change columns. Rows whose `keys` are the same are one row in the copy. The
    copy has two columns more, `_cdfd_version` and `_cdfd_ordinal`: the position of each row's last change.

    Args:
        changes: a DataFrame, applied at once; or a streaming one, applied batch by batch.
        target: the copy: a path or URI where there is a `/` in it, else a name in the catalog. Created if it is not there.
        keys: columns that tell rows apart; those of the pipeline's `key`.
        checkpoint: of the streaming query; needed there.
        trigger: of the streaming query, such as `{"availableNow": True}`; by default it goes on for ever, batch after batch.
        query_name: of the streaming query.
        evolve_schema: add columns that the copy lacks; else they are an error.
        partition_by: of a copy that is created.
        properties: of a copy that is created, such as `{"delta.enableDeletionVectors": "true"}`.
        remember_deletes: how long a stream remembers keys that it has deleted, counted in times of commits, so that no repeat in the topic
            brings a row back; None for not at all.

    Returns:
        The running query; None where all is done already.

    Raises:
        ConfigError: arguments that do not go together, a copy that lacks columns, or a session without delta-spark. A streaming query ends
            with it where it is found out later.
    """
    columns = _table_columns(changes)
    _check_keys(changes.schema, columns, keys)
    if not changes.isStreaming:
        upsert = Upsert(target, tuple(keys), evolve_schema, tuple(partition_by), dict(properties or {}))
        upsert(changes)
        return None
    if checkpoint is None:
        raise ConfigError(
            "a stream needs a `checkpoint`",
            hint="A folder that only this query uses; it goes on from there when it starts again",
        )
    upsert = Upsert(
        *(target, tuple(keys), evolve_schema, tuple(partition_by), dict(properties or {})),
        deleted=None if remember_deletes is None else f"{checkpoint.rstrip('/')}/cdfd-deleted",
        remembered=remember_deletes,
    )
    writer = changes.writeStream.foreachBatch(upsert).option("checkpointLocation", checkpoint)
    if query_name is not None:
        writer = writer.queryName(query_name)
    return (writer if trigger is None else writer.trigger(**trigger)).start()


@dataclass(slots=True)
class Upsert:
    """Brings batches of changes into a copy: for `foreachBatch`, where `apply_changes` is not enough.

    Attributes:
        target: as in `apply_changes`.
        keys: as in `apply_changes`.
        evolve_schema: as in `apply_changes`.
        partition_by: as in `apply_changes`.
        properties: as in `apply_changes`.
        deleted: path of the table of deleted keys; None for none.
        remembered: how long they are kept there.
    """

    target: str
    keys: tuple[str, ...]
    evolve_schema: bool = False
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    deleted: str | None = None
    remembered: timedelta | None = None
    _found: bool = False
    _stream: str | None = None

    def __call__(self, batch: DataFrame, batch_id: int = 0) -> None:
        """Apply a batch. The same again changes nothing.

        Raises:
            ConfigError: as `apply_changes`.
        """
        spark = batch.sparkSession
        columns = _table_columns(batch)
        _check_keys(batch.schema, columns, self.keys)
        newest = self._newest(batch, columns).persist()
        try:
            self._prepare(spark, newest)
            if not newest.isEmpty():
                with self._once(spark, batch_id, self._without_deleted(spark, newest, batch_id)) as living:
                    self._merge(spark, living, columns)
        finally:
            newest.unpersist()

    def _newest(self, batch: DataFrame, columns: Sequence[str]) -> DataFrame:
        """The last change of each key: the table's columns, its position, whether the row is gone, and when."""
        order = [sql.col(COMMIT_VERSION).desc(), sql.col(CHANGE_TYPE).isin(*_DELETES), sql.col(CHANGE_ORDINAL).desc()]
        window = Window.partitionBy(*(sql.col(quoted(key)) for key in self.keys)).orderBy(*order)
        ranked = batch.withColumn("_cdfd_rank", sql.row_number().over(window)).where(sql.col("_cdfd_rank") == 1)
        return ranked.select(
            *(sql.col(quoted(name)) for name in columns),
            sql.col(COMMIT_VERSION).alias(VERSION),
            sql.col(CHANGE_ORDINAL).alias(ORDINAL),
            sql.col(CHANGE_TYPE).isin(*_DELETES).alias(_DELETED),
            sql.col(COMMIT_TIMESTAMP),
        )

    def _prepare(self, spark: SparkSession, newest: DataFrame) -> None:
        """Create the copy if it is not there; see whether it has what is needed."""
        if not self._found:
            empty = newest.drop(_DELETED, COMMIT_TIMESTAMP).limit(0)
            _create(empty, self.target, self.partition_by, self.properties)
        there = _opened(spark, self.target).columns
        wanted = [name for name in newest.columns if name not in (_DELETED, COMMIT_TIMESTAMP)]
        known = {name.lower() for name in there}
        missing = [name for name in wanted if name.lower() not in known]
        for name in (VERSION, ORDINAL, *self.keys):
            if name in missing:
                raise ConfigError(
                    f"the copy has no column {name!r:.200}",
                    table=self.target,
                    hint="Let `apply_changes` create the copy; or add _cdfd_version and _cdfd_ordinal, of type BIGINT, to the one there is",
                )
        if missing and not self.evolve_schema:
            raise ConfigError(
                f"the copy has no column {missing[0]!r:.200}",
                table=self.target,
                hint="Say `evolve_schema=True` to have it added, or leave it out of the changes",
            )
        self._found = True

    def _without_deleted(self, spark: SparkSession, newest: DataFrame, batch_id: int) -> DataFrame:
        """The changes without those of rows that are known to have been deleted later. Deletes are remembered first."""
        if self.deleted is None:
            return newest
        gone = newest.where(sql.col(_DELETED)).select(*map(quoted, self.keys), VERSION, ORDINAL, COMMIT_TIMESTAMP)
        table = _identifier(self.deleted)
        if self._stream is None:
            _create(gone.limit(0), self.deleted, (), {})
            self._stream = str(spark.sql(f"DESCRIBE DETAIL {table}").select("id").collect()[0][0])
        if not gone.isEmpty():
            names = gone.columns
            _run(
                spark,
                gone,
                f"MERGE INTO {table} t USING {{changes}} s ON {self._same_key()}\n{_update(names)}\n{_insert(names)}",
            )
        if self.remembered is not None and batch_id % _BATCHES_BETWEEN_SWEEPS == _BATCHES_BETWEEN_SWEEPS - 1:
            _forget(spark, self.deleted, self.remembered)
        known = _opened(spark, self.deleted).alias("t")
        changes = newest.alias("s")
        later = sql.expr(f"{self._same_key()} AND NOT s.{_DELETED} AND t.{VERSION} > s.{VERSION}")
        return changes.join(known, later, "left_anti")

    @contextmanager
    def _once(self, spark: SparkSession, batch_id: int, changes: DataFrame) -> Iterator[DataFrame]:
        """Within this, a MERGE of a batch that Delta knows to be done does nothing."""
        if self._stream is None:
            yield changes
            return
        settings = {_TXN_APP: f"cdfd.{self._stream}", _TXN_VERSION: str(batch_id)}
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            yield changes
        finally:
            for name in settings:
                spark.conf.unset(name)

    def _merge(self, spark: SparkSession, changes: DataFrame, columns: Sequence[str]) -> None:
        names = [*columns, VERSION, ORDINAL]
        evolving = "WITH SCHEMA EVOLUTION " if self.evolve_schema else ""
        statement = f"""MERGE {evolving}INTO {_identifier(self.target)} t USING {{changes}} s ON {self._same_key()}
            WHEN MATCHED AND s.{_DELETED} AND (t.{VERSION} IS NULL OR s.{VERSION} > t.{VERSION}) THEN DELETE
            {_update(names, f"NOT s.{_DELETED} AND ")}
            {_insert(names, f"NOT s.{_DELETED}")}"""
        _run(spark, changes, statement)

    def _same_key(self) -> str:
        return " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in self.keys)


# A row without a position is one that somebody else put there: the first change that comes is newer.
_NEWER: Final = (
    f"(t.{VERSION} IS NULL OR s.{VERSION} > t.{VERSION} OR (s.{VERSION} = t.{VERSION} AND s.{ORDINAL} > t.{ORDINAL}))"
)


def _update(names: Sequence[str], condition: str = "") -> str:
    # Columns that the copy is yet to have are not known as its.
    cells = ", ".join(f"{quoted(name)} = s.{quoted(name)}" for name in names)
    return f"WHEN MATCHED AND {condition}{_NEWER} THEN UPDATE SET {cells}"


def _insert(names: Sequence[str], condition: str = "") -> str:
    listed, values = (", ".join(f"{prefix}{quoted(name)}" for name in names) for prefix in ("", "s."))
    return f"WHEN NOT MATCHED {'AND ' + condition if condition else ''} THEN INSERT ({listed}) VALUES ({values})"


def _run(spark: SparkSession, changes: DataFrame, statement: str) -> None:
    """Execute a statement that calls the changes `{changes}`."""
    view = f"cdfd_changes_{uuid4().hex}"
    changes.createOrReplaceTempView(view)
    try:
        spark.sql(statement.replace("{changes}", view, 1))
    finally:
        spark.catalog.dropTempView(view)


def _forget(spark: SparkSession, deleted: str, remembered: timedelta) -> None:
    """Drop what was deleted so long before the newest there is."""
    newest = _opened(spark, deleted).select(sql.unix_micros(sql.max(COMMIT_TIMESTAMP))).collect()[0][0]
    if newest is not None:
        oldest = newest - remembered // timedelta(microseconds=1)
        spark.sql(f"DELETE FROM {_identifier(deleted)} WHERE {COMMIT_TIMESTAMP} < timestamp_micros({oldest})")


def _create(empty: DataFrame, target: str, partition_by: Sequence[str], properties: Mapping[str, str]) -> None:
    """A Delta table without rows, unless there is one."""
    mapping = {"delta.columnMapping.mode": "name"} if _needs_mapping(empty.schema) else {}
    writer = empty.write.format("delta").mode("ignore").options(**(mapping | dict(properties)))
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    try:
        if _is_path(target):
            writer.save(target)
        else:
            writer.saveAsTable(target)
    except AnalysisException as error:
        raise ConfigError(
            # Not its text: Spark cannot tell that of delta-spark's errors, and fails in trying.
            f"Spark cannot create the copy: {error.getCondition()}",
            table=target,
            hint="The session needs delta-spark, as its extension and its catalog",
        ) from error


def _opened(spark: SparkSession, target: str) -> DataFrame:
    return spark.read.format("delta").load(target) if _is_path(target) else spark.table(target)


def _identifier(target: str) -> str:
    return f"delta.{quoted(target)}" if _is_path(target) else target


def _is_path(target: str) -> bool:
    return "/" in target


def _table_columns(changes: DataFrame) -> list[str]:
    """The columns of the table that changes are of. `ConfigError` where they are no change rows."""
    missing = [name for name in CHANGE_NAMES if name not in changes.columns]
    if missing:
        raise ConfigError(
            f"the DataFrame has no column {missing[0]}, so it holds no change rows",
            hint="Take what `read_changes` gives, with all of the change columns",
        )
    columns = [name for name in changes.columns if name not in (*CHANGE_NAMES, *KAFKA_NAMES)]
    for name in (VERSION, ORDINAL, _DELETED):
        if name in columns:
            raise ConfigError(f"the changes have a column {name}, which the copy needs for itself", hint="Leave it out")
    return columns


def _check_keys(schema: StructType, columns: Sequence[str], keys: Sequence[str]) -> None:
    if isinstance(keys, str) or not keys:
        raise ConfigError("`keys` names no columns", hint="Such as ['order_id']: what tells the table's rows apart")
    for key in keys:
        if key not in columns:
            raise ConfigError(
                f"the changes have no column {key!r:.200}, which is in `keys`",
                hint=f"They have {', '.join(columns[:50])}",
            )
        if _has_map(schema[key].dataType):
            raise ConfigError(
                f"the key column {key!r:.200} is a {schema[key].dataType.simpleString():.100}, which cannot be compared"
            )


def _needs_mapping(kind: DataType) -> bool:
    """Whether a name is one that Parquet columns may not have."""
    match kind:
        case StructType():
            return any(not _FORBIDDEN.isdisjoint(each.name) or _needs_mapping(each.dataType) for each in kind)
        case ArrayType():
            return _needs_mapping(kind.elementType)
        case MapType():
            return _needs_mapping(kind.keyType) or _needs_mapping(kind.valueType)
    return False


def _has_map(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_has_map(each.dataType) for each in kind)
        case ArrayType():
            return _has_map(kind.elementType)
    return isinstance(kind, (MapType, VariantType))
