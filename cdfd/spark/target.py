"""The requested rows: their columns, as of one version."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql.types import StructType

from cdfd.changes.columns import CHANGE_ORDINAL
from cdfd.changes.reconciliation import SchemaReconciler
from cdfd.changes.refining import check_key
from cdfd.delta.header import Header
from cdfd.delta.schema import StructType as DeltaStruct
from cdfd.delta.schema import TableSchema
from cdfd.errors import ConfigError
from cdfd.spark.columns import CHANGE_FIELDS, SparkBatches, chosen_names, spark_schema
from cdfd.spark.options import SourceOptions
from cdfd.tables.table import Table
from cdfd.tail.start import check_version_exists, state_version


@dataclass(frozen=True, slots=True)
class Target:
    """The columns of the rows.

    Attributes:
        version: the version of the schema.
        schema: the table's columns to read.
        names: of all columns in order, in the spelling of the table and of change rows.
        spark_names: the same names in Spark's spelling.
        whole: whether all columns of the table are requested.
    """

    version: int
    schema: TableSchema
    names: tuple[str, ...]
    spark_names: tuple[str, ...]
    whole: bool = True

    @classmethod
    def of(
        cls, schema: TableSchema, version: int, columns: tuple[str, ...] | None = None, given: StructType | None = None
    ) -> Target:
        """The target for all or some columns of a table.

        Args:
            schema: of the table.
            version: of the schema.
            columns: the requested names; None: all. Without a change column among them, all change columns are added.
            given: a schema that the user gives instead; None: none.

        Raises:
            ConfigError: a column is missing, is named twice, or has another type than in the given schema.
        """
        _check_names(schema)
        if given is not None:
            names = chosen_names(schema, given)
            spark_names = tuple(given.names)
        else:
            names = spark_names = tuple(schema.names) if columns is None else _spelled(schema, columns)
            if not any(name in CHANGE_FIELDS for name in names):
                names = spark_names = (*names, *CHANGE_FIELDS)
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"column {twice!r:.200} is requested twice")
        table = [name for name in names if name not in CHANGE_FIELDS]
        nothing = replace(schema, struct=DeltaStruct(()), partition_columns=())
        whole = given is None and columns is None
        return cls(version, schema.select(table) if table else nothing, names, spark_names, whole)

    @property
    def ordered(self) -> bool:
        """Whether ordinals of rows are requested."""
        return CHANGE_ORDINAL in self.names

    @property
    def spark_schema(self) -> StructType:
        """The schema in Spark's types."""
        return spark_schema(self.schema, self.names)

    def spark_batches(self, reconciler: SchemaReconciler) -> SparkBatches:
        """Makes Spark's batches of conformed ones."""
        return SparkBatches.plan(reconciler.schema, self.names, self.spark_names)


def _spelled(schema: TableSchema, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Names in the table's spelling. They are not case-sensitive."""
    names = []
    for column in columns:
        found = column.lower() if column.lower() in CHANGE_FIELDS else schema.select([column]).names[0]
        names.append(found)
    return tuple(names)


def _check_names(schema: TableSchema) -> None:
    taken = [name for name in schema.names if name.lower() in CHANGE_FIELDS]
    if taken:
        raise ConfigError(
            f"the table has a column {taken[0]!r:.200}, which is also the name of a change column",
            hint="Rename it in the table",
        )


async def resolve_target(table: Table, options: SourceOptions, given: StructType | None = None) -> Target:
    """The columns as of the last version to read.

    Raises:
        ConfigError: there is no such version, or as in `Target.of`.
        CdfdError: as in `DeltaLog.header`.
    """
    header = await _ending(table, options)
    check_key(options.key, header.schema)
    return Target.of(header.schema, header.version, options.columns, given)


async def _ending(table: Table, options: SourceOptions) -> Header:
    newest = await table.log.header()
    last = newest.version if options.end is None else await state_version(table.log, options.end)
    assert last is not None
    await check_version_exists(table.log, last, newest.version)
    return newest if last == newest.version else await table.log.header(last)
