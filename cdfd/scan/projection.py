"""Projects batches of a data file to batches of the table: finds the columns, orders them and converts their types.

Everything is resolved from the schemas alone, once for all files of a schema: for a small file, that takes longer than reading it. A batch
then only costs its conversions, and nothing if the file has the table's types. Rules: specification, "Column Mapping", and "Requirements for
Writers" on columns that files lack.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from cdfd.delta.types.arrow_types import arrow_type, is_any_list
from cdfd.delta.types.datatypes import ArrayType, DataType, MapType, Primitive, StructField, StructType
from cdfd.delta.types.schema import RETURNING, ColumnMappingMode, TableSchema, column_id, physical_name
from cdfd.errors import DataError, LogError
from cdfd.model.columns import CHANGE_COLUMNS, CHANGE_TYPE
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import scalar_of
from cdfd.scan.batch_budget import BatchBudget, null_bits, text_bytes
from cdfd.scan.conversion import conversion, narrows

Array: TypeAlias = "pa.Array[Any]"
Convert: TypeAlias = "Callable[[Array, BatchBudget], Array]"
"""Converts an array. The budget is charged before memory is allocated."""
PartitionValues: TypeAlias = "Mapping[str, pa.Scalar[Any] | pa.RunEndEncodedArray]"
"""Partition values by name of the column: a value for all rows, or one for each run of rows."""

FIELD_ID = b"PARQUET:field_id"
"""Key of the metadata in which Arrow keeps the `field_id` of a Parquet column."""

KNOWN = 8
"""Projections to cache: for current files, change data files, and files from before the last few schema changes."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Projects batches of one file to batches of the table.

    Attributes:
        schema: of the columns from `apply`.
        row_schema: the same, then `_change_type`.
        columns: names of the file's top-level columns that are needed, in the file's order; `apply` ignores others.
        views: whether any column of the file is a view, which cannot be filtered (pyarrow 26).
    """

    schema: pa.Schema
    row_schema: pa.Schema
    columns: tuple[str, ...]
    views: bool
    _sources: tuple[_Source, ...]
    _cache: list[tuple[pa.Schema, Sequence[int]]] = dataclasses.field(default_factory=list, compare=False, repr=False)

    @classmethod
    def plan(cls, schema: TableSchema, file_schema: pa.Schema) -> Projection:
        """Find the table's columns in a file.

        A column that the file does not have is null, at any depth. Columns that only the file has are ignored. Partition columns in the file
        are ignored too, because the log has their values.

        Args:
            schema: of the table, at the version that the file is read for.
            file_schema: of the file, with Parquet's field ids in the fields' metadata (`pq.ParquetFile.schema_arrow`).

        Raises:
            DataError: the values of a column cannot be converted to the table's type, a name or an id fits two columns of the file, or a file
                has no ids although the table maps columns by id.
            LogError: a column has no id, and the table maps columns by id.
        """
        if schema.mapping is ColumnMappingMode.ID and schema.data_fields and not _has_ids(file_schema):
            raise DataError(
                "the file has no field ids, and the table finds its columns by id",
                hint="Its writer does not support column mapping: rewrite the file",
            )
        fields = list(file_schema)
        partitions = set(schema.partition_columns)
        stored = [child for child in schema.struct if child.name not in partitions]
        places = _find_fields(stored, fields, schema.mapping, ())
        positions = {child.name: place for child, place in zip(stored, places, strict=True)}
        sources = []
        for child in schema.struct:
            position = positions.get(child.name)
            field = None if position is None else fields[position]
            convert = None if field is None else _convert_field(child, field.type, schema.mapping, (child.name,))
            if convert is None:
                field, convert = None, _unchanged
            kind = arrow_type(child.type)
            sources.append(_Source(child.name, kind, null_bits(kind), field, convert))
        needed = {source.field.name for source in sources if source.field is not None}
        return cls(
            schema.arrow,
            pa.schema([*schema.arrow, CHANGE_COLUMNS[0]]),
            tuple(name for name in file_schema.names if name in needed),
            any("_view" in str(field.type) for field in file_schema),
            tuple(sources),
        )

    def names(self, change_type: str | None) -> list[str]:
        """Columns of the file to read. They include the change type if it is not known."""
        return [*self.columns, *([CHANGE_TYPE] if change_type is None else [])]

    @property
    def file_columns(self) -> dict[str, str]:
        """The name of each column in the file, for those that the file has."""
        return {source.name: source.field.name for source in self._sources if source.field is not None}

    def parts(
        self, batch: pa.RecordBatch, partition_values: PartitionValues
    ) -> Iterator[tuple[pa.RecordBatch, list[Array]]]:
        """The rows of a batch in order, and the columns of `schema` for them: in several parts if the table's columns take too much memory.

        Nulls in a column that must not be null are passed on as they are in the file.

        Args:
            batch: rows of the file, with at least `columns`.
            partition_values: by name of the column; a missing value is null.

        Raises:
            DataError: a value that the table's type cannot hold, a row that takes too much memory, or a batch of another file.
        """
        positions = self._positions(batch.schema)
        waiting = [(batch, partition_values)]
        while waiting:
            rows, constants = waiting.pop()
            count = rows.num_rows
            budget, columns = BatchBudget.of(count), list[Array]()
            try:
                # Constants cost the most: they are charged before anything is converted.
                for source, position in zip(self._sources, positions, strict=True):
                    if position < 0:
                        text = text_bytes(constants.get(source.name), source.type, count)
                        budget.charge(text + (count * source.null_bits >> 3))
                for source, position in zip(self._sources, positions, strict=True):
                    if position < 0:
                        columns.append(_constant(constants.get(source.name), source.type, count))
                    else:
                        columns.append(source.convert(rows.column(position), budget))
            except pa.ArrowException as error:
                raise DataError(
                    f"column {source.name!r:.200} has a value that the table's type cannot hold: {error}",
                    hint="the file does not match the table's schema",
                ) from error
            except DataError:
                if count == 1 or not budget.is_exceeded:
                    raise
                for start, size in ((count // 2, count - count // 2), (0, count // 2)):
                    sliced = {
                        name: value.slice(start, size) if isinstance(value, pa.Array) else value
                        for name, value in constants.items()
                    }
                    waiting.append((rows.slice(start, size), sliced))
            else:
                yield rows, columns

    def _positions(self, schema: pa.Schema) -> Sequence[int]:
        """Where the columns are in a batch; -1 for constants. Batches of a file share a schema, so it is found once."""
        for cached, positions in self._cache:
            if schema.equals(cached):
                return positions
        positions = []
        for source in self._sources:
            position = -1 if source.field is None else schema.get_field_index(source.field.name)
            if source.field is not None and (position < 0 or schema.field(position).type != source.field.type):
                raise DataError(f"column {source.field.name!r:.200} of a batch does not match the file's schema")
            positions.append(position)
        self._cache[:] = [(schema, positions)]
        return positions


class Projections:
    """Caches the most recently planned projections. Thread-safe."""

    def __init__(self) -> None:
        # The tuple is replaced as a whole. At worst, two threads plan the same projection.
        self._known: tuple[tuple[TableSchema, pa.Schema, Projection], ...] = ()

    def of(self, schema: TableSchema, file_schema: pa.Schema) -> Projection:
        """See `Projection.plan`. Files share one if their schemas are equal, including the metadata, which has the column ids."""
        for known_schema, known_file, projection in self._known:
            if file_schema.equals(known_file, check_metadata=True) and (
                known_schema is schema or known_schema == schema
            ):
                return projection
        projection = Projection.plan(schema, file_schema)
        self._known = ((schema, file_schema, projection), *self._known)[:KNOWN]
        return projection


@dataclass(frozen=True, slots=True)
class _Source:
    """The source of one column: a field of the file, or (`field` is None) a constant. A null of it takes `null_bits`."""

    name: str
    type: pa.DataType
    null_bits: int
    field: pa.Field[Any] | None
    convert: Convert


Path: TypeAlias = tuple[str, ...]


def _find_fields(
    children: Iterable[StructField], fields: Sequence[pa.Field[Any]], mode: ColumnMappingMode, path: Path
) -> list[int | None]:
    """For each field of a struct of the table, its position in the file; None if the file does not have it.

    An exact name wins; else case is ignored, as in Spark.
    """
    exact: dict[str | int | None, list[int]] = {}
    folded: dict[str, list[int]] = {}
    for position, field in enumerate(fields):
        exact.setdefault(_field_id(field) if mode is ColumnMappingMode.ID else field.name, []).append(position)
        folded.setdefault(field.name.lower(), []).append(position)
    positions = []
    for child in children:
        if mode is ColumnMappingMode.ID:
            number = column_id(child)
            if number is None:
                raise LogError(
                    f"column {_path_text((*path, child.name))} has no id, and the table finds its columns by id"
                )
            matches = exact.get(number, [])
        else:
            name = physical_name(child, mode)
            matches = exact.get(name) or folded.get(name.lower(), [])
        if len(matches) > 1:
            text = _path_text((*path, child.name))
            raise DataError(f"column {text} fits {len(matches)} columns of the file", hint="each must fit one")
        positions.append(matches[0] if matches else None)
    return positions


def _convert_field(
    child: StructField, source: Any, mode: ColumnMappingMode, path: Path, *, returns: bool = False
) -> Convert | None:
    """The conversion of a field that the file has. None if it is null: RESTORE brings the field back narrower than the file has it.

    `returns`: whether RESTORE brings back a column that has the field.
    """
    returns = returns or RETURNING in child.metadata
    try:
        return _convert(child.type, source, mode, path, returns)
    except DataError:
        if returns:
            return None
        raise


def _convert(kind: DataType, source: Any, mode: ColumnMappingMode, path: Path, returns: bool) -> Convert:
    """The conversion of a column, through all of its levels. If RESTORE brings it back, it is never to a narrower type."""
    if pa.types.is_dictionary(source) or isinstance(source, pa.BaseExtensionType):
        is_extension = isinstance(source, pa.BaseExtensionType)
        then = _convert(kind, source.storage_type if is_extension else source.value_type, mode, path, returns)
        return lambda array, budget: then(array.storage if is_extension else array.dictionary_decode(), budget)
    target = arrow_type(kind)
    if pa.types.is_null(source):
        return _charged(lambda array: pa.nulls(len(array), target), target)
    convert: Convert | None = None
    if isinstance(kind, StructType):
        convert = _struct(kind, source, mode, path, returns) if pa.types.is_struct(source) else None
    elif isinstance(kind, ArrayType):
        convert = _array(kind, source, mode, path, returns) if is_any_list(source) else None
    elif isinstance(kind, MapType):
        convert = _map(kind, source, mode, path, returns) if pa.types.is_map(source) else None
    elif kind == Primitive("variant"):
        if pa.types.is_struct(source):
            # Imported here: it takes 5 ms of a process's start, and few tables have variants.
            from cdfd.scan import variant

            return lambda array, budget: pa.ExtensionArray.from_storage(pa.json_(), variant.to_json(array, budget))
    elif source == target:
        convert = _unchanged
    elif not (returns and narrows(source, target)) and (cast := conversion(source, kind)) is not None:
        convert = _charged(cast, target)
    if convert is None:
        raise DataError(
            f"column {_path_text(path)}: file has {source!s:.200}, table says {kind!s:.200}",
            hint="the file does not match the table's schema",
        )
    return convert


def _struct(kind: StructType, source: Any, mode: ColumnMappingMode, path: Path, returns: bool) -> Convert:
    fields = [source.field(position) for position in range(source.num_fields)]
    steps: list[tuple[int | None, Convert]] = []
    for child, position in zip(kind, _find_fields(kind, fields, mode, path), strict=True):
        step = None
        if position is not None:
            step = _convert_field(child, fields[position].type, mode, (*path, child.name), returns=returns)
        steps.append((None, _unchanged) if step is None else (position, step))
    target: Any = arrow_type(kind)
    if source == target and steps == [(position, _unchanged) for position in range(len(steps))]:
        return _unchanged
    wanted = [target.field(position) for position in range(target.num_fields)]
    bits = sum(null_bits(field.type) for field, (position, _) in zip(wanted, steps, strict=True) if position is None)

    def rebuild(array: Any, budget: BatchBudget) -> Array:
        budget.charge(len(array) * bits >> 3)
        children = [
            pa.nulls(len(array), field.type) if position is None else step(array.field(position), budget)
            for field, (position, step) in zip(wanted, steps, strict=True)
        ]
        # Without children, the mask is the only source for the number of rows.
        mask = array.is_null() if array.null_count or not children else None
        return pa.StructArray.from_arrays(children, fields=wanted, mask=mask)

    return rebuild


def _array(kind: ArrayType, source: Any, mode: ColumnMappingMode, path: Path, returns: bool) -> Convert:
    inner = _convert(kind.element, source.value_type, mode, (*path, "element"), returns)
    target: Any = arrow_type(kind)
    if source == target and inner is _unchanged:
        return _unchanged
    plain = pa.list_(source.value_field)

    def rebuild(array: Any, budget: BatchBudget) -> Array:
        if not len(array):
            return pa.nulls(0, target)
        array = array if pa.types.is_list(source) else array.cast(plain)
        offsets, start, count = list_window(array)
        elements = inner(array.values.slice(start, count), budget)
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(offsets, elements, type=target, mask=mask)

    return rebuild


def _map(kind: MapType, source: Any, mode: ColumnMappingMode, path: Path, returns: bool) -> Convert:
    of_keys = _convert(kind.key, source.key_type, mode, (*path, "key"), returns)
    of_values = _convert(kind.value, source.item_type, mode, (*path, "value"), returns)
    target: Any = arrow_type(kind)
    if source == target and of_keys is _unchanged and of_values is _unchanged:
        return _unchanged

    def rebuild(array: Any, budget: BatchBudget) -> Array:
        if not len(array):
            return pa.nulls(0, target)
        offsets, start, count = list_window(array)
        keys = of_keys(array.keys.slice(start, count), budget)
        items = of_values(array.items.slice(start, count), budget)
        mask = array.is_null() if array.null_count else None
        return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=mask)

    return rebuild


def list_window(array: Any) -> tuple[Array, int, int]:
    """Offsets that begin at 0, and the range of elements that they refer to (start and count).

    A batch is often a slice of a larger one, and only its own elements are converted.
    """
    offsets = array.offsets
    start, end = offsets[0].as_py(), offsets[-1].as_py()
    if start or array.offset:
        offsets = pc.subtract(offsets, scalar_of(start, offsets.type))
    return offsets, start, end - start


def _unchanged(array: Array, _: BatchBudget) -> Array:
    return array


def _charged(cast: Callable[[Array], Array], kind: pa.DataType) -> Convert:
    """A conversion to a type that may be eight times as wide."""
    bits = null_bits(kind)

    def convert(array: Array, budget: BatchBudget) -> Array:
        budget.charge(len(array) * bits >> 3)
        return cast(array)

    return convert


def _constant(value: Any, kind: pa.DataType, rows: int) -> Array:
    """The values of a column that the file does not have."""
    if isinstance(value, pa.RunEndEncodedArray):
        return pc.run_end_decode(value)
    return pa.nulls(rows, kind) if value is None or not value.is_valid else pa.repeat(value, rows)


def _field_id(field: pa.Field[Any]) -> int | None:
    text = (field.metadata or {}).get(FIELD_ID, b"")
    return int(text) if text.removeprefix(b"-").isdigit() and len(text) < 12 else None


def _has_ids(fields: Iterable[pa.Field[Any]]) -> bool:
    return any(
        _field_id(field) is not None or _has_ids(map(field.type.field, range(field.type.num_fields)))
        for field in fields
    )


def _path_text(path: Path) -> str:
    return f"{'.'.join(path)!r:.200}"
