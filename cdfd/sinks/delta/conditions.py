"""CHECK constraints, invariants and NOT NULL of a target, checked on the rows that are written. Pure.

A condition is SQL of Spark. The grammar of `where` is a part of it, with the same meaning: a row is accepted if the condition is true, and
not if it is unknown. A condition outside of that grammar makes the target one that is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from cdfd.delta.types.datatypes import StructType
from cdfd.delta.types.schema import TableSchema
from cdfd.delta.types.values import as_python
from cdfd.delta.write.writing import REMOVE
from cdfd.errors import ConfigError, DataError, UnsupportedError
from cdfd.plan.shape.compiler import check_filter, compile_filter
from cdfd.plan.shape.parser import parse_filter
from cdfd.runtime import compute as pc

Conditions = Sequence[tuple[str, str]]
"""(name for messages, SQL)."""

_ESCAPE = re.compile(r"\\(?![%_])")
r"""A backslash that Spark does not keep as it is, unlike that of `\%` and `\_`."""


def check_conditions(conditions: Conditions, struct: StructType) -> None:
    """Returns if all conditions can be evaluated.

    Raises:
        UnsupportedError: naming the first one that cannot be.
    """
    for name, text in conditions:
        try:
            if _ESCAPE.search(text):
                raise ConfigError("it has a backslash, which is an escape in texts of Spark")
            check_filter(parse_filter(text), TableSchema(struct))
        except ConfigError as error:
            raise UnsupportedError(
                f"rows cannot be appended to the table: {name} cannot be checked ({text!r:.200}): {error.what}",
                hint=REMOVE,
            ) from error


class RowCheck:
    """Checks rows of one table.

    Args:
        conditions: of the table.
        struct: the columns of the table.
        rows: the schema of the rows: all or some of these columns, in the types of the table.
    """

    def __init__(self, conditions: Conditions, struct: StructType, rows: pa.Schema) -> None:
        # A column that the rows do not have is null.
        schema = TableSchema(StructType(tuple(child for child in struct if child.name in rows.names)))
        self._filters = [(name, compile_filter(parse_filter(text), schema)) for name, text in conditions]
        self._required = {child.name for child in struct if not child.nullable or _has_required(child.type)}

    def check(self, rows: pa.Table) -> None:
        """Returns if the rows may be written.

        Raises:
            DataError: naming the condition that a row does not fulfil, or the column that may not be null.
        """
        for name in self._required.intersection(rows.schema.names):
            for chunk in rows.column(name).chunks:
                _check_nulls(chunk, rows.schema.field(name), name)
        for name, each in self._filters:
            for batch in rows.to_batches():
                mask = each(batch)
                if not mask.all():
                    number = int(np.argmin(mask))
                    row = {field.name: as_python(batch.column(field.name)[number]) for field in batch.schema}
                    raise DataError(
                        f"{name} of the target is not true of a row: {str(row)[:200]}",
                        hint="Correct the source, filter such rows with `where`, or remove the constraint",
                    )


def _has_required(kind: object) -> bool:
    """Whether a value inside of a column may not be null."""
    match kind:
        case StructType():
            return any(not child.nullable or _has_required(child.type) for child in kind)
    inner = [getattr(kind, name, None) for name in ("element", "key", "value")]
    flags = (getattr(kind, "contains_null", True), getattr(kind, "value_contains_null", True))
    return not all(flags) or any(_has_required(each) for each in inner if each is not None)


def _check_nulls(array: pa.Array, field: pa.Field, path: str) -> None:
    if not field.nullable and array.null_count:
        raise DataError(
            f"column {path!r:.200} of the target may not be null, and a row has no value for it",
            hint="Correct the source, filter such rows with `where`, or let the target's column be null",
        )
    kind = field.type
    if pa.types.is_struct(kind):
        valid = array.drop_null()
        for number in range(kind.num_fields):
            child = kind.field(number)
            _check_nulls(pc.struct_field(valid, child.name), child, f"{path}.{child.name}")
    elif pa.types.is_list(kind):
        _check_nulls(array.flatten(), kind.value_field, f"{path}.element")
    elif pa.types.is_map(kind):
        pairs = array.drop_null()
        _check_nulls(pairs.items, kind.item_field, f"{path}.value")
