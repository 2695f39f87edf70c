"""Bags of rows, and the fold of change rows into table rows: what tests compare tables by.

Row objects are fine here: the tables of the tests are small, and a Python value is equal to itself whatever Arrow type
carried it (`string` or `string_view`, `int64` or `uint64`, dictionary-encoded or not).
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

LEFT_OUT = ("_commit_timestamp", "_change_ordinal")
META = ("_change_type", "_commit_version", "_commit_timestamp", "_change_ordinal")
SIGN = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}

Row = frozenset[tuple[str, Any]]


def freeze(value: Any) -> Any:
    """A hashable value that is equal where the data is equal: NaN is itself, a map has no order."""
    if isinstance(value, dict):
        return frozenset((name, freeze(field)) for name, field in value.items())
    if isinstance(value, list):
        if value and all(isinstance(entry, tuple) for entry in value):  # how pyarrow renders a map
            return frozenset((freeze(key), freeze(item)) for key, item in value)
        return tuple(freeze(item) for item in value)
    if isinstance(value, float) and value != value:
        return "NaN"
    return value


def row_of(fields: dict[str, Any], less: Iterable[str] = ()) -> Row:
    """One row without its nulls: a column that is not there yet and a column that is null are the same row."""
    return frozenset((name, freeze(value)) for name, value in fields.items() if value is not None and name not in less)


def bag(
    batches: Iterable[pa.RecordBatch], less: Iterable[str] = ("_commit_timestamp", "_change_ordinal")
) -> Counter[Row]:
    """The multiset of rows, without the columns `less`."""
    return Counter(row_of(fields, less) for batch in batches for fields in batch.to_pylist())


def fold(batches: Iterable[pa.RecordBatch], less: Iterable[str] = ()) -> Counter[Row]:
    """The rows, without the columns `less`, that a reader of these changes is left with.

    Inserts and post-images add, deletes and pre-images take away. A delete of a row that is not there leaves a negative
    count, so that it cannot go unnoticed.
    """
    rows: Counter[Row] = Counter()
    for batch in batches:
        for fields in batch.to_pylist():
            rows[row_of(fields, [*META, *less])] += SIGN[fields["_change_type"]]
    return Counter({row: count for row, count in rows.items() if count})
