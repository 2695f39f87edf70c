"""The requested rows: their columns, as of one version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from pyspark.sql.types import StructType

from cdfd.delta.types import datatypes
from cdfd.delta.types.datatypes import DataType, without_void
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import ConfigError, GapError, LogError
from cdfd.log.bounds import Bound
from cdfd.log.range_schema import may_have_replaced, range_schema
from cdfd.log.start import check_version_exists, fixed_bound, start_version, state_version
from cdfd.log.table import Table
from cdfd.model.columns import CHANGE_ORDINAL
from cdfd.plan.row_options import AS_STORED, RowOptions
from cdfd.plan.shape.chosen import Chosen
from cdfd.spark.source.columns import CHANGE_FIELDS, chosen_names, spark_schema
from cdfd.spark.source.options import SourceOptions


@dataclass(frozen=True, slots=True)
class Target:
    """The columns of the rows.

    Attributes:
        version: the version of the schema.
        schema: the table's columns to read.
        names: of all columns in order, in the spelling of the published rows and of change rows.
        spark_schema: the same columns in Spark's types: by the schema that the user gives, or all nullable.
        whole: whether all columns of the table are requested.
        rows: the options of the rows, with these columns.
        start: the start of a batch as of the same time as the version; None: the default.
    """

    version: int
    schema: TableSchema
    names: tuple[str, ...]
    spark_schema: StructType
    whole: bool = True
    rows: RowOptions = AS_STORED
    start: Bound | None = None

    @classmethod
    def of(
        cls,
        schema: TableSchema,
        version: int,
        columns: tuple[Chosen, ...] | None = None,
        user_schema: StructType | None = None,
        rows: RowOptions = AS_STORED,
    ) -> Target:
        """The target for all or some columns of a table.

        Args:
            schema: of the table.
            version: of the schema.
            columns: the requested columns; None: all. Without a change column among them, all change columns are added.
            user_schema: a schema that the user gives instead; None: none.
            rows: the options of the rows, but for their columns.

        Raises:
            ConfigError: a column is missing, is named twice, or has another type than in the given schema, or all columns are requested
                and one has the name of a change column.
        """
        schema = _without_change_columns(schema, refused=columns is None and user_schema is None)
        # As delta-spark does: few sinks of Spark take columns without a type.
        typed = {child.name for child in without_void(schema.struct)}
        schema = schema.select([name for name in schema.names if name in typed]) if typed else schema
        chosen = tuple(map(Chosen, schema.names)) if columns is None else _spell(schema, columns)
        if user_schema is not None:
            every = replace(rows.shape, columns=tuple(each for each in chosen if each.name not in CHANGE_FIELDS))
            names = chosen_names(every.published(every.target(schema)), user_schema)
            chosen = tuple(next((each for each in chosen if each.published == name), Chosen(name)) for name in names)
        else:
            if not any(each.name in CHANGE_FIELDS for each in chosen):
                chosen = (*chosen, *map(Chosen, CHANGE_FIELDS))
            names = tuple(each.published for each in chosen)
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"column {twice!r:.200} is requested twice")
        made = replace(rows.shape, columns=tuple(each for each in chosen if each.name not in CHANGE_FIELDS))
        made.check(schema)
        columns_read = made.target(schema)
        whole = user_schema is None and columns is None
        of_spark = spark_schema(made.published(columns_read), names) if user_schema is None else user_schema
        return cls(version, columns_read, names, of_spark, whole, replace(rows, shape=made))

    @property
    def published(self) -> TableSchema:
        """The columns of the rows, but for the change columns."""
        return self.rows.shape.published(self.schema)

    @property
    def key_paths(self) -> tuple[str, ...]:
        """The columns of the key by the names that rows have, and the fields of structs in them, such as `id` and `place.x`."""
        chosen = self.rows.published_key
        return tuple(
            path for child in self.published.struct if child.name in chosen for path in _paths(child.name, child.type)
        )

    @property
    def ordered(self) -> bool:
        """Whether ordinals of rows are requested, or needed: they tell the filter which images are those of one update."""
        return CHANGE_ORDINAL in self.names or self.rows.shape.where is not None


def _without_change_columns(schema: TableSchema, *, refused: bool) -> TableSchema:
    """A table's schema without its own columns of such names. Where they are requested, these are the change columns.

    Raises:
        ConfigError: there are such columns, and they are `refused`.
    """
    own = [name for name in schema.names if name.lower() not in CHANGE_FIELDS]
    if len(own) == len(schema.names):
        return schema
    if refused or not own:
        taken = ", ".join(name for name in schema.names if name not in own)
        raise ConfigError(
            f"the table has columns with the names of change columns: {taken:.200}",
            hint="Leave them out with `columns`, or rename them in the table",
        )
    return schema.select(own)


def _spell(schema: TableSchema, columns: tuple[Chosen, ...]) -> tuple[Chosen, ...]:
    """Columns with the table's spelling of their names. They are not case-sensitive."""
    names = []
    for column in columns:
        if column.name.lower() not in CHANGE_FIELDS:
            names.append(Chosen(schema.select([column.name]).names[0], column.alias))
        elif column.alias is None:
            names.append(Chosen(column.name.lower()))
        else:
            raise ConfigError(f"the change column {column.name} cannot be renamed", hint="Rename it in Spark")
    return tuple(names)


def _paths(path: str, type: DataType) -> Iterator[str]:
    """A column, and the fields within it, by their paths."""
    yield path
    match type:
        case datatypes.StructType():
            for child in type:
                yield from _paths(f"{path}.{child.name}", child.type)
        case datatypes.ArrayType():
            yield from _paths(f"{path}.element", type.element)
        case datatypes.MapType():
            yield from _paths(f"{path}.key", type.key)
            yield from _paths(f"{path}.value", type.value)


async def resolve_target(table: Table, options: SourceOptions, user_schema: StructType | None = None) -> Target:
    """The columns as of the last version to read.

    Raises:
        ConfigError: there is no such version, or as in `Target.of`.
        CdfdError: as in `DeltaLog.header`.
    """
    newest = await table.log.header()
    last = newest.version if options.end is None else await state_version(table.log, options.end)
    assert last is not None
    if options.start != "snapshot":
        # As delta-spark does: a range ends at the newest version. A snapshot has to exist.
        last = min(last, newest.version)
    try:
        await check_version_exists(table.log, last, newest.version)
    except LogError as error:
        error.hint = f"Set endingVersion to a version up to {newest.version}, or omit it"
        raise
    header = newest if last == newest.version else await table.log.header(last)
    if options.rows.key:
        header.schema.select(options.rows.key)
    schema = header.schema
    if may_have_replaced(header):
        # A stream that began with a snapshot reads what came after it, and one may have begun before the oldest entry.
        earliest = await start_version(table.log, "earliest")
        first = earliest
        if options.start not in (None, "snapshot"):
            with suppress(GapError):
                first = max(earliest, await start_version(table.log, options.start))
        schema = await range_schema(table.log, first, header)
    start = options.start
    if start is not None:
        with suppress(LogError):  # a batch meets it again, and a stream with a checkpoint does not need its start
            start = await fixed_bound(table.log, start)
    return replace(Target.of(schema, header.version, options.columns, user_schema, options.rows), start=start)
