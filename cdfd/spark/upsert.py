"""Keeps a copy of a Delta table up to date with its change rows.

Each batch of changes is reduced to the last change of each key, and a MERGE applies them to the copy. Each row of the copy has the position
of its last change, (`_commit_version`, `_change_ordinal`), in two additional columns. A change is applied only if it is newer than the row,
so a repeated batch changes no row:

| change                         | row in the copy of an older position | of a newer one, or this | no row     |
|--------------------------------|--------------------------------------|-------------------------|------------|
| `insert`, `update_postimage`   | updated                              | left                    | inserted * |
| `delete`, `update_preimage`    | deleted, if of an older version      | left                    | nothing    |

In one version a key has one old and one new row at most, so the new one stays, whichever comes first (`SET id = id + 1`).

* unless a later version is known to have deleted the key. A deleted row has no position, so a stream stores deleted keys and their times in a
small Delta table in the folder of its checkpoint. A batch writes this table before its MERGE. If the batch is repeated, it does both again.

MERGE reads its source twice. So the last changes are stored once, as Spark's local checkpoint, and their keys become literals in MERGE's
condition: all of them if they are few, otherwise their least and greatest values. Delta then skips files and rows of the copy before it
shuffles them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import starmap
from typing import Any, Final
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType, DateType, IntegralType, MapType, NullType, StringType, StructType, VariantType

from cdfd.errors import ConfigError
from cdfd.model.columns import CHANGE_ORDINAL, CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from cdfd.spark.records.records import CHANGE_NAMES, KAFKA_NAMES, check_sql, quoted, types_in
from cdfd.spark.target import (
    check_absolute,
    check_types,
    create_table,
    identifier,
    merge_settings,
    read_table,
    widen_table,
)

VERSION: Final = "_cdfd_version"
ORDINAL: Final = "_cdfd_ordinal"
_DELETED: Final = "_cdfd_deleted"
_RANK: Final = "_cdfd_rank"
_DELETES: Final = ("delete", "update_preimage")
_LOST: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
_ATTEMPTS: Final = 3
_MOST_KEYS: Final = 1_000
"""Keys in a condition of MERGE, at most. Spark compares each row of the copy with them before it shuffles it."""
_NULL_KEY: Final = "cdfd: a key is null"
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
    """Apply change rows to a Delta table, which becomes a copy of their source table.

    It takes the result of `read_changes`, or any rows with the four change columns. Rows with the same `keys` are one row in the copy. The
    copy has two additional columns, `_cdfd_version` and `_cdfd_ordinal`: the position of each row's last change.

    Args:
        changes: a DataFrame, applied at once; or a streaming one, applied batch by batch.
        target: the copy: an absolute path or a URI if it contains `/`, otherwise a name in the catalog. Created if missing.
        keys: columns that identify a row; those of the pipeline's `key`.
        checkpoint: of the streaming query, which requires it: an absolute path or a URI.
        trigger: of the streaming query, such as `{"availableNow": True}`. By default it runs forever.
        query_name: of the streaming query.
        evolve_schema: whether to add columns that the copy lacks. Otherwise they are an error.
        partition_by: of a new copy.
        properties: of a new copy, such as `{"delta.enableDeletionVectors": "true"}`.
        remember_deletes: how long a stream remembers deleted keys, in commit time, so that a repeated record does not restore a row; None:
            not at all.

    Returns:
        The running query; None for a DataFrame that is not streaming.

    Raises:
        ConfigError: the arguments are inconsistent, the copy lacks columns, or the session has no delta-spark. A streaming query may end with
            it later.
    """
    columns = _table_columns(changes)
    _check_keys(changes.schema, columns, keys)
    check_absolute("target", target)
    upsert = Upsert(target, tuple(keys), evolve_schema, tuple(partition_by), dict(properties or {}))
    if not changes.isStreaming:
        upsert(changes)
        return None
    if checkpoint is None:
        raise ConfigError(
            "a stream needs a `checkpoint`",
            hint="Give a folder that only this query uses. A restarted query resumes from it",
        )
    if remember_deletes is not None:
        check_absolute("checkpoint", f"{checkpoint}/")
        upsert.deleted, upsert.remembered = f"{checkpoint.rstrip('/')}/cdfd-deleted", remember_deletes
    writer = changes.writeStream.foreachBatch(upsert).option("checkpointLocation", checkpoint)
    if query_name is not None:
        writer = writer.queryName(query_name)
    return (writer if trigger is None else writer.trigger(**trigger)).start()


@dataclass(slots=True)
class Upsert:
    """Applies batches of changes to a copy. Use it with `foreachBatch` if `apply_changes` is not sufficient.

    Attributes:
        target: as in `apply_changes`.
        keys: as in `apply_changes`.
        evolve_schema: as in `apply_changes`.
        partition_by: as in `apply_changes`.
        properties: as in `apply_changes`.
        deleted: path of the table of deleted keys; None: none.
        remembered: how long it keeps them.
    """

    target: str
    keys: tuple[str, ...]
    evolve_schema: bool = False
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    deleted: str | None = None
    remembered: timedelta | None = None
    _kinds: Mapping[str, DataType] = field(default_factory=dict)
    _has_deleted: bool = False
    _null_keys: bool = False

    def __call__(self, batch: DataFrame, batch_id: int = 0) -> None:
        """Apply a batch. A repeated batch changes no row.

        Raises:
            ConfigError: as in `apply_changes`.
        """
        columns = _table_columns(batch)
        _check_keys(batch.schema, columns, self.keys)
        for attempt in range(_ATTEMPTS):
            try:
                with merge_settings(batch.sparkSession):
                    self._apply(batch, batch_id, columns)
            except (PySparkException, Py4JError) as error:
                has_null_key = not self._null_keys and _NULL_KEY in str(error)
                # An executor that had stored rows has died.
                if not has_null_key and (_LOST not in str(error) or attempt == _ATTEMPTS - 1):
                    raise
                self._null_keys |= has_null_key
            else:
                return

    def _apply(self, batch: DataFrame, batch_id: int, columns: Sequence[str]) -> None:
        spark, newest = batch.sparkSession, self._newest(batch, columns)
        kinds = self._prepare(spark, newest)
        voids = _voids(newest.schema)
        columns = [name for name in columns if name.lower() in kinds or name not in voids]
        changes = _without_void_fields(newest, kinds).localCheckpoint(eager=False)
        try:
            count, deletes, same_key = self._survey(changes, kinds)
            if not count:
                return
            kept = changes
            if self.deleted is not None:
                self._store_deleted(spark, changes, self.deleted, same_key if deletes else None, batch_id)
                # A later version may have deleted the row of a change.
                later = sql.expr(f"{same_key} AND NOT s.{_DELETED} AND t.{VERSION} > s.{VERSION}")
                tombstones = read_table(changes.sparkSession, self.deleted).alias("t")
                kept = changes.alias("s").join(tombstones, later, "left_anti")
            self._merge(spark, kept, columns, same_key)
        finally:
            # Free the rows of the local checkpoint. Spark Connect has no call for that, and frees them with its own reference.
            if (frame := getattr(changes, "_jdf", None)) is not None:
                frame.queryExecution().analyzed().rdd().unpersist(False)

    def _newest(self, batch: DataFrame, columns: Sequence[str]) -> DataFrame:
        """The last change of each key: the table's columns, its position, whether it deletes the row, and its time."""
        deletes = sql.col(CHANGE_TYPE).isin(*_DELETES)
        order = [sql.col(COMMIT_VERSION).desc(), deletes, sql.col(CHANGE_ORDINAL).desc()]
        window = Window.partitionBy(*(sql.col(quoted(key)) for key in self.keys)).orderBy(*order)
        # A row is deleted by its key. Spark need not shuffle and store its other values.
        values = {
            name: sql.when(~deletes, sql.col(quoted(name))).alias(name, metadata=batch.schema[name].metadata)
            for name in columns
            if name not in self.keys
        }
        rows = batch.select(*(values.get(name, sql.col(quoted(name))) for name in columns), *CHANGE_NAMES)
        ranked = rows.withColumn(_RANK, sql.row_number().over(window)).where(f"{_RANK} = 1")
        if not self._null_keys:
            # A null in a key is an error.
            null = " OR ".join(f"{quoted(key)} IS NULL" for key in self.keys)
            ranked = ranked.where(sql.expr(f"IF({null}, raise_error('{_NULL_KEY}'), true)"))
        return ranked.select(
            *(sql.col(quoted(name)) for name in columns),
            sql.col(COMMIT_VERSION).alias(VERSION),
            sql.col(CHANGE_ORDINAL).alias(ORDINAL),
            deletes.alias(_DELETED),
            sql.col(COMMIT_TIMESTAMP),
        )

    def _prepare(self, spark: SparkSession, newest: DataFrame) -> Mapping[str, DataType]:
        """Create the copy if it is missing, and check its columns; their types, by names in lower case."""
        others = {_DELETED, COMMIT_TIMESTAMP, *_voids(newest.schema)}
        wanted = [name for name in newest.columns if name not in others]
        if all(name.lower() in self._kinds for name in wanted):
            return self._kinds  # of an earlier batch. MERGE refuses a copy that has lost a column since
        if not self._kinds:
            empty = _without_void_fields(newest, {}).select(*map(quoted, wanted)).limit(0)
            create_table(empty, self.target, self.partition_by, self.properties)
        kinds = {field.name.lower(): field.dataType for field in read_table(spark, self.target).schema}
        missing = [name for name in wanted if name.lower() not in kinds]
        for name in (VERSION, ORDINAL, *self.keys):
            if name in missing:
                raise ConfigError(
                    f"the copy has no column {name!r:.200}",
                    table=self.target,
                    hint="Let `apply_changes` create the copy, or add _cdfd_version and _cdfd_ordinal of type BIGINT to the existing one",
                )
        if missing and not self.evolve_schema:
            raise ConfigError(
                f"the copy has no column {missing[0]!r:.200}",
                table=self.target,
                hint="Set `evolve_schema=True` to add it, or remove it from the changes",
            )
        check_types(newest, kinds, self.target, evolves=self.evolve_schema)
        self._kinds = kinds
        return kinds

    def _survey(self, changes: DataFrame, kinds: Mapping[str, DataType]) -> tuple[int, int, str]:
        """The number of changes, how many of them delete a row, and the condition that finds their rows in a table of the types `kinds`."""
        same = "<=>" if self._null_keys else "="
        conditions = [f"t.{quoted(key)} {same} s.{quoted(key)}" for key in self.keys]
        # A condition with literals leaves out nulls.
        fields = [] if self._null_keys else [changes.schema[key] for key in self.keys]
        fields = [field for field in fields if _has_literals(field.dataType, kinds[field.name.lower()])]
        columns = [(sql.col(quoted(field.name)), field.dataType) for field in fields]
        ranges = (
            sql.concat(_literal(sql.min(key), kind), sql.lit(" AND "), _literal(sql.max(key), kind))
            for key, kind in columns
        )
        count, deletes, *texts = changes.agg(sql.count("*"), sql.count_if(_DELETED), *ranges).collect()[0]
        how = "BETWEEN {}"
        if 0 < count <= _MOST_KEYS and columns:
            rows = zip(*changes.select(*starmap(_literal, columns)).collect(), strict=True)
            how, texts = "IN ({})", [", ".join(sorted(set(texts))) for texts in rows]
        conditions += [f"t.{quoted(field.name)} {how.format(text)}" for field, text in zip(fields, texts, strict=True)]
        return count, deletes, " AND ".join(conditions)

    def _store_deleted(
        self, spark: SparkSession, changes: DataFrame, deleted: str, same_key: str | None, batch_id: int
    ) -> None:
        """Store the deleted keys, unless `same_key` is None."""
        gone = changes.where(sql.col(_DELETED)).select(*map(quoted, self.keys), VERSION, ORDINAL, COMMIT_TIMESTAMP)
        table, names = identifier(deleted), gone.columns
        if not self._has_deleted:
            create_table(gone.limit(0), deleted, (), {})
            widen_table(gone, deleted)
            self._has_deleted = True
        if same_key is not None:
            merge = f"MERGE INTO {table} t USING {{changes}} s ON {same_key}\n{_update(names)}\n{_insert(names)}"
            _run(spark, gone, merge)
        if self.remembered is not None and batch_id % _BATCHES_BETWEEN_SWEEPS == _BATCHES_BETWEEN_SWEEPS - 1:
            # Forget keys that were deleted more than `remembered` before the newest one.
            newest = read_table(spark, deleted).select(sql.unix_micros(sql.max(COMMIT_TIMESTAMP))).collect()[0][0]
            if newest is not None:
                oldest = newest - self.remembered // timedelta(microseconds=1)
                spark.sql(f"DELETE FROM {table} WHERE {COMMIT_TIMESTAMP} < timestamp_micros({oldest})")

    def _merge(self, spark: SparkSession, changes: DataFrame, columns: Sequence[str], same_key: str) -> None:
        names = [*columns, VERSION, ORDINAL]
        evolving = "WITH SCHEMA EVOLUTION " if self.evolve_schema else ""
        statement = f"""MERGE {evolving}INTO {identifier(self.target)} t USING {{changes}} s ON {same_key}
            WHEN MATCHED AND s.{_DELETED} AND (t.{VERSION} IS NULL OR s.{VERSION} > t.{VERSION}) THEN DELETE
            {_update(names, f"NOT s.{_DELETED} AND ")}
            {_insert(names, f"NOT s.{_DELETED}")}"""
        _run(spark, changes, statement)


def _voids(schema: StructType) -> set[str]:
    """The columns of type void, which a Delta table shows to no reader."""
    return {field.name for field in schema if _is_void(field.dataType)}


def _is_void(kind: DataType) -> bool:
    """Whether a type is void, or a struct of nothing else."""
    return isinstance(kind, NullType) or (
        isinstance(kind, StructType) and all(_is_void(each.dataType) for each in kind)
    )


def _without_void_fields(rows: DataFrame, kinds: Mapping[str, DataType]) -> DataFrame:
    """The rows without void fields of structs, which Delta cannot merge, unless the copy, of the types `kinds`, has them in another type."""
    columns = {}
    for child in rows.schema:
        if paths := list(_void_fields(child.dataType, kinds.get(child.name.lower()))):
            columns[child.name] = sql.col(quoted(child.name)).dropFields(*paths)
    return rows.withColumns(columns) if columns else rows


def _void_fields(rows: DataType, table: DataType | None) -> Iterator[str]:
    if not isinstance(rows, StructType) or _is_void(rows):
        return
    stored = {child.name.lower(): child.dataType for child in table} if isinstance(table, StructType) else {}
    for child in rows:
        name, kind = quoted(child.name), stored.get(child.name.lower())
        if kind is None and _is_void(child.dataType):
            yield name
        else:
            yield from (f"{name}.{path}" for path in _void_fields(child.dataType, kind))


def _has_literals(changes: DataType, table: DataType) -> bool:
    """Whether a key of a table equals one of the changes exactly if it equals that one's literal."""
    integers = isinstance(changes, IntegralType) and isinstance(table, IntegralType)
    return integers or (changes == table and changes in (DateType(), StringType()))


def _literal(value: Column, kind: DataType) -> Column:
    """A value as SQL has it, whatever the zone and the encoding of Python."""
    match kind:
        case DateType():
            return sql.concat(sql.lit("date_from_unix_date("), sql.unix_date(value), sql.lit(")"))
        case StringType():
            return sql.concat(sql.lit("CAST(X'"), sql.hex(value.cast("binary")), sql.lit("' AS STRING)"))
    return value.cast("string")


# Another program wrote a row without a position. Any change is newer.
_NEWER: Final = (
    f"(t.{VERSION} IS NULL OR s.{VERSION} > t.{VERSION} OR (s.{VERSION} = t.{VERSION} AND s.{ORDINAL} > t.{ORDINAL}))"
)


def _update(names: Sequence[str], condition: str = "") -> str:
    # Without the prefix `t.`, because the copy may not have a new column yet.
    cells = ", ".join(f"{quoted(name)} = s.{quoted(name)}" for name in names)
    return f"WHEN MATCHED AND {condition}{_NEWER} THEN UPDATE SET {cells}"


def _insert(names: Sequence[str], condition: str = "") -> str:
    listed, values = (", ".join(f"{prefix}{quoted(name)}" for name in names) for prefix in ("", "s."))
    return f"WHEN NOT MATCHED {'AND ' + condition if condition else ''} THEN INSERT ({listed}) VALUES ({values})"


def _run(spark: SparkSession, changes: DataFrame, statement: str) -> None:
    """Execute a statement with the changes as `{changes}`."""
    view = f"cdfd_changes_{uuid4().hex}"
    changes.createOrReplaceTempView(view)
    try:
        spark.sql(statement.replace("{changes}", view, 1))
    finally:
        spark.catalog.dropTempView(view)


def _table_columns(changes: DataFrame) -> list[str]:
    """The table's columns in change rows. `ConfigError` if they are not change rows, or MERGE cannot have their names."""
    missing = [name for name in CHANGE_NAMES if name not in changes.columns]
    if missing:
        raise ConfigError(
            f"the DataFrame has no column {missing[0]}, so it does not have change rows",
            hint="Use the result of `read_changes`, with all change columns",
        )
    columns = [name for name in changes.columns if name not in (*CHANGE_NAMES, *KAFKA_NAMES)]
    for name in (VERSION, ORDINAL, _DELETED, _RANK):
        if name in columns:
            raise ConfigError(f"the changes have a column {name}, which is reserved for the copy", hint="Remove it")
    check_sql(changes.sparkSession, columns)  # of MERGE
    return columns


def _check_keys(schema: StructType, columns: Sequence[str], keys: Sequence[str]) -> None:
    if isinstance(keys, str) or not keys:
        raise ConfigError("`keys` is empty", hint="Give the columns that identify a row, such as ['order_id']")
    for key in keys:
        if key not in columns:
            raise ConfigError(
                f"the changes have no column {key!r:.200}, which is in `keys`",
                hint=f"They have {', '.join(columns[:50])}",
            )
        if any(isinstance(each, (MapType, VariantType, NullType)) for each in types_in(schema[key].dataType)):
            raise ConfigError(
                f"the key column {key!r:.200} is a {schema[key].dataType.simpleString():.100}, which cannot be compared"
            )
