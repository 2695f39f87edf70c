"""The rows that are asked for: which columns, as of which version."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql.types import StructType

from cdfd.changes.columns import CHANGE_ORDINAL
from cdfd.changes.reconciliation import SchemaReconciler
from cdfd.delta.header import Header
from cdfd.delta.schema import StructType as DeltaStruct
from cdfd.delta.schema import TableSchema
from cdfd.errors import ConfigError
from cdfd.spark.columns import CHANGE_FIELDS, ForSpark, chosen_names, spark_schema
from cdfd.spark.options import SourceOptions
from cdfd.tables.table import Table
from cdfd.tail.start import check_version_exists, state_version


@dataclass(frozen=True, slots=True)
class Target:
    """The columns of the rows.

    Attributes:
        version: of the table whose schema this is.
        schema: the table's columns that are read.
        names: of all columns, in order, as table and change rows spell them.
        called: what Spark calls them.
        whole: whether all of the table's columns are asked for, whichever those are.
    """

    version: int
    schema: TableSchema
    names: tuple[str, ...]
    called: tuple[str, ...]
    whole: bool = True

    @classmethod
    def of(
        cls, schema: TableSchema, version: int, columns: tuple[str, ...] | None = None, given: StructType | None = None
    ) -> Target:
        """The columns of a table, or some of them.

        Args:
            schema: of the table.
            version: whose schema that is.
            columns: the names that are asked for; None for all. Without any change column among them, all of those come besides.
            given: a schema that the user gives instead; None for none.

        Raises:
            ConfigError: a column that is not there, is named twice, or is of another type than the schema says.
        """
        _check_names(schema)
        if given is not None:
            names = chosen_names(schema, given)
            called = tuple(given.names)
        else:
            names = called = tuple(schema.names) if columns is None else _spelled(schema, columns)
            if not any(name in CHANGE_FIELDS for name in names):
                names = called = (*names, *CHANGE_FIELDS)
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"column {twice!r:.200} is asked for twice")
        table = [name for name in names if name not in CHANGE_FIELDS]
        nothing = replace(schema, struct=DeltaStruct(()), partition_columns=())
        whole = given is None and columns is None
        return cls(version, schema.select(table) if table else nothing, names, called, whole)

    @property
    def ordered(self) -> bool:
        """Whether the numbers of rows are asked for."""
        return CHANGE_ORDINAL in self.names

    @property
    def spark_schema(self) -> StructType:
        """For Spark."""
        return spark_schema(self.schema, self.names)

    def for_spark(self, reconciler: SchemaReconciler) -> ForSpark:
        """Makes Spark's batches of conformed ones."""
        return ForSpark.plan(reconciler.schema, self.names, self.called)


def _spelled(schema: TableSchema, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Names as they are spelled; case does not count."""
    names = []
    for column in columns:
        found = column.lower() if column.lower() in CHANGE_FIELDS else schema.select([column]).names[0]
        names.append(found)
    return tuple(names)


def _check_names(schema: TableSchema) -> None:
    taken = [name for name in schema.names if name.lower() in CHANGE_FIELDS]
    if taken:
        raise ConfigError(
            f"the table has a column {taken[0]!r:.200}, which is what change rows call one of theirs",
            hint="Rename it in the table",
        )


async def settled(table: Table, options: SourceOptions, given: StructType | None = None) -> Target:
    """The columns as of the last version that there is to read now.

    Raises:
        ConfigError: there is no such version, or as `Target.of` says.
        CdfdError: as `DeltaLog.header` says.
    """
    header = await _ending(table, options)
    return Target.of(header.schema, header.version, options.columns, given)


async def _ending(table: Table, options: SourceOptions) -> Header:
    newest = await table.log.header()
    last = newest.version if options.end is None else await state_version(table.log, options.end)
    assert last is not None
    await check_version_exists(table.log, last, newest.version)
    return newest if last == newest.version else await table.log.header(last)
