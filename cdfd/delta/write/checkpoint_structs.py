"""Statistics and partition values of files as typed columns of a checkpoint, and statistics back as JSON. Pure.

    stats                              {"numRecords":3,"minValues":{"day":"2026-01-01"},"nullCount":{"day":0}}
    stats_parsed                       numRecords 3, tightBounds true, minValues.day (date), maxValues.day null, nullCount.day 0
    partitionValues, ..._parsed        {"kind": "7"}, kind 7 (integer)

Source: specification, "Checkpoint Format", "Per-file Statistics" and "Column Mapping": all names are physical ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa

from cdfd.delta import statistics
from cdfd.delta.files import PACK, TEXT
from cdfd.delta.types import values
from cdfd.delta.types.arrow_types import arrow_type
from cdfd.delta.types.datatypes import Decimal, Primitive, StructField, StructType
from cdfd.delta.types.schema import TableSchema
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of

_INDEXED = "delta.dataSkippingNumIndexedCols"
_MOST_COLUMNS = 32
"""Columns with statistics, if the table does not say."""
_WITHOUT_BOUNDS = {"binary", "variant", "void"}


def parsed_statistics(stats: pa.Array, schema: TableSchema, configuration: Mapping[str, str]) -> pa.StructArray:
    """The documents of files as structs. A bound that is no value of its column's type is null.

    Args:
        stats: documents, as text; null where there is none.
        schema: of the table.
        configuration: of the table, which says how many columns have statistics.
    """
    leaves = list(islice(_leaves(schema.data_fields), _most(configuration)))
    # Python has an object for each entry of so many documents at a time.
    starts = range(0, max(len(stats), 1), PACK)
    return pa.concat_arrays([_parse_statistics(stats.slice(start, PACK), schema, leaves) for start in starts])


def parsed_partitions(files: pa.Array, schema: TableSchema) -> pa.StructArray:
    """The partition values of files as structs.

    Raises:
        LogError: a text is no value of its column's type.
    """
    places = dict[tuple[tuple[str, str | None], ...], int]()
    indices = [places.setdefault(tuple(each.as_py() or ()), len(places)) for each in files]
    distinct = [values.parse_partition(dict(pairs), schema) for pairs in places]
    columns = [
        array_of([each.get(child.name) for each in distinct], arrow_type(child.type)).take(
            array_of(indices, pa.int64())
        )
        for child in schema.partition_fields
    ]
    return pa.StructArray.from_arrays(columns, names=[schema.physical_name(child) for child in schema.partition_fields])


def documents(parsed: pa.Array) -> pa.Array:
    """The statistics that another checkpoint has as structs, as text; null where there are none."""
    entries = map(_entry, parsed)
    return array_of([None if entry is None else orjson.dumps(entry).decode() for entry in entries], TEXT)


def _most(configuration: Mapping[str, str]) -> int | None:
    """How many columns have statistics; None: all of them may."""
    if configuration.get("delta.dataSkippingStatsColumns"):
        return None
    try:
        number = int(configuration.get(_INDEXED, _MOST_COLUMNS))
    except ValueError:
        number = _MOST_COLUMNS
    return None if number < 0 else number


def _leaves(fields: Sequence[StructField], path: tuple[StructField, ...] = ()) -> Iterator[tuple[StructField, ...]]:
    """The paths of columns that are no structs."""
    for child in fields:
        if isinstance(child.type, StructType):
            yield from _leaves(child.type.fields, (*path, child))
        else:
            yield (*path, child)


def _parse_statistics(
    stats: pa.Array, schema: TableSchema, leaves: Sequence[tuple[StructField, ...]]
) -> pa.StructArray:
    files = [statistics.parse(text, schema) for text in stats.to_pylist()]
    columns: dict[str, pa.Array] = {
        "numRecords": array_of([each.num_records for each in files], pa.int64()),
        "tightBounds": array_of([each.tight_bounds for each in files], pa.bool_()),
    }
    places = [([schema.physical_name(child) for child in path], path[-1].type) for path in leaves]
    bounded = [
        (names, kind)
        for names, kind in places
        if isinstance(kind, Decimal) or (isinstance(kind, Primitive) and kind.name not in _WITHOUT_BOUNDS)
    ]
    for key, trees in (("minValues", [each.minima for each in files]), ("maxValues", [each.maxima for each in files])):
        bounds = [
            (names, array_of([statistics.typed_scalar(_at(tree, names), kind) for tree in trees], arrow_type(kind)))
            for names, kind in bounded
        ]
        if bounds:
            columns[key] = _tree(bounds)
    if places:
        counts = [[statistics.whole(_at(each.null_counts, names)) for each in files] for names, _ in places]
        columns["nullCount"] = _tree(
            [(names, array_of(column, pa.int64())) for (names, _), column in zip(places, counts, strict=True)]
        )
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns), mask=stats.is_null())


def _at(tree: object, names: Sequence[str]) -> object:
    """The entry at a path of names."""
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _tree(columns: Sequence[tuple[Sequence[str], pa.Array]]) -> pa.StructArray:
    """Columns by the names of a path, as structs in structs. A struct of nulls is null, as JSON without it."""
    groups = dict[str, list[tuple[Sequence[str], pa.Array]]]()
    for (name, *inner), column in columns:
        groups.setdefault(name, []).append((inner, column))
    arrays = [_tree(group) if group[0][0] else group[0][1] for group in groups.values()]
    missing = reduce(pc.and_, (array.is_null() for array in arrays))
    return pa.StructArray.from_arrays(arrays, names=list(groups), mask=missing)


def _entry(scalar: pa.Scalar[Any]) -> Any:
    """A value as JSON has it; None if it says nothing."""
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if isinstance(scalar, pa.StructScalar):
        entries = {name: entry for name, value in scalar.items() if (entry := _entry(value)) is not None}
        return entries or None
    is_number = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if is_number or pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        text = values.serialize(scalar) or ""
        # NaN and Infinity are text.
        return orjson.Fragment(text) if is_number and text[-1:].isdigit() else text
    python_value = scalar.as_py()
    return python_value if isinstance(python_value, str | int) else None
