"""The shape of a file's rows: that of `avro.schema`, or of its physical columns where there is none."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from cdfd.errors import ConfigError, TrevniError
from cdfd.trevni import avro_schema
from cdfd.trevni.metadata import RESERVED, ColumnMetadata, FileMetadata
from cdfd.trevni.shapes import Array, Field, Leaf, Record, Shape, Union, arrow_field
from cdfd.trevni.values.value_types import ARROW


def shape_of(metadata: FileMetadata) -> Record:
    """The shape of a file's rows. A schema that is no record is that of a column `value`.

    Raises:
        TrevniError: the schema is damaged, or the columns are not those of the schema.
    """
    text = metadata.metadata.get(avro_schema.KEY)
    if text is None:
        return _physical(metadata.columns)
    columns, shape = avro_schema.parse(text, metadata.num_columns)
    for found, expected in zip(metadata.columns, columns, strict=False):
        if _place(found) != _place(expected):
            what = f"the Avro schema has {expected.name!r:.100} ({expected.type}) here, and the file another column"
            raise TrevniError(what).at(column=found.name)
    if len(columns) != metadata.num_columns:
        raise TrevniError(f"the Avro schema has {len(columns)} columns, and the file {metadata.num_columns}")
    return shape if isinstance(shape, Record) else Record((Field("value", shape),))


def _place(column: ColumnMetadata) -> tuple[object, ...]:
    return column.name, column.type, column.array, column.parent


def _physical(columns: Sequence[ColumnMetadata]) -> Record:
    """Columns without a parent are columns of the rows. An array column with children is a list of structs of them."""
    children: dict[str | None, list[int]] = {}
    for number, column in enumerate(columns):
        children.setdefault(column.parent, []).append(number)

    def shape(number: int, depth: int) -> Shape:
        column = columns[number]
        if depth > avro_schema.DEEPEST:
            raise TrevniError(f"columns have more than {avro_schema.DEEPEST} levels of parents").at(column=column.name)
        leaf = Leaf(number, column.type, ARROW[column.type])
        if not column.array:
            return leaf
        inside = children.get(column.name, [])
        if not inside:
            return Array(number, leaf, inner=True)
        own = [] if column.type == "null" else [Field(column.name, leaf)]
        fields = [*own, *(Field(columns[child].name, shape(child, depth + 1)) for child in inside)]
        return Array(number, Record(tuple(fields)), inner=False)

    return Record(tuple(Field(columns[number].name, shape(number, 0)) for number in children.get(None, [])))


def arrow_schema(shape: Record, metadata: FileMetadata) -> pa.Schema:
    """The Arrow schema of rows. Its metadata is the user's in the file."""
    own = {
        key.encode(): value
        for key, value in metadata.metadata.items()
        if key != avro_schema.KEY and not key.startswith(RESERVED)
    }
    fields = [arrow_field(field.name, field.shape, field.id) for field in shape.fields]
    return pa.schema(fields, metadata=own or None)


def select(shape: Record, names: Sequence[str]) -> Record:
    """The shape of some columns, in the file's order.

    Args:
        shape: of the rows.
        names: columns, or dotted names of fields of structs.

    Raises:
        ConfigError: a name is unknown.
    """
    known = {field.name for field in shape.fields}
    wanted: dict[str, list[str]] = {}
    for name in names:
        first, _, rest = (name, "", "") if name in known else name.partition(".")
        if first not in known:
            raise ConfigError(f"there is no column {name!r:.100}", hint=f"Choose from {', '.join(sorted(known))[:200]}")
        wanted.setdefault(first, []).append(rest)
    found = []
    for field in shape.fields:
        if field.name in wanted:
            inside = wanted[field.name]
            found.append(field if "" in inside else replace(field, shape=_inside(field.shape, inside)))
    return Record(tuple(found))


def _inside(shape: Shape, names: Sequence[str]) -> Shape:
    """Some fields of a struct, which may be nullable. Others cannot be read in part."""
    if isinstance(shape, Record):
        return select(shape, names)
    if isinstance(shape, Union) and shape.optional is not None and isinstance(shape.optional.shape, Record):
        chosen = replace(shape.optional, shape=select(shape.optional.shape, names))
        return Union(tuple(None if branch is None else chosen for branch in shape.branches))
    return shape
