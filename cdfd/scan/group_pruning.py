"""Skips row groups of a data file that have no row for a filter, by the statistics in the file's footer.

The rows of a skipped group count: each later row has the number that it has without a filter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

import pyarrow as pa

from cdfd.delta.types import values
from cdfd.delta.types.schema import TableSchema
from cdfd.plan.shape.predicate import Predicate
from cdfd.plan.shape.pruning import compile_pruning
from cdfd.plan.shape.ranges import Range
from cdfd.scan.file_reader import FileReader
from cdfd.scan.parquet.statistics import ChunkStatistics


def excluded_groups(reader: FileReader, schema: TableSchema, where: Predicate) -> frozenset[int]:
    """The row groups of a file without a row for the filter. None of a file whose format, or whose footer, has no statistics."""
    statistics_of = getattr(reader.file, "statistics", None)
    if statistics_of is None or not reader.file.metadata.num_row_groups:
        return frozenset()
    sources, names = reader.projection.file_columns, set[str]()
    for column in where.names:
        child = schema.find((column,))
        name = sources.get(column if child is None else child.name)
        if name is not None:
            names.add(name)
    groups = statistics_of(names)
    may_have_rows = compile_pruning(where, schema)
    return frozenset(
        number
        for number, (statistics, decoders) in enumerate(groups)
        if not may_have_rows(lambda name: _range(name, reader, statistics, decoders))  # noqa: B023 # called at once
    )


def _range(
    name: str, reader: FileReader, statistics: Mapping[str, ChunkStatistics], decoders: Mapping[str, Any]
) -> Range:
    projection = reader.projection
    stored = projection.file_columns.get(name)
    if stored is None:
        constant = reader.partition_values.get(name)
        value = values.as_python(constant)
        # A column that the file does not have is null.
        return Range() if constant is not None and constant.is_valid and value is None else Range.constant(value)
    chunk = statistics.get(stored)
    if chunk is None:
        return Range()
    if chunk.nulls is not None and chunk.nulls == chunk.values:
        return Range(nulls=True, values=False)
    decode = decoders.get(stored)
    # Statistics leave NaN out. Without a bound, nothing is excluded anyway.
    low, high = (None if decode is None or bound is None else decode(bound) for bound in (chunk.low, chunk.high))
    nan = isinstance(low, float) or isinstance(high, float)
    return Range.between(low, high, nulls=None if chunk.nulls is None else chunk.nulls > 0, nan=nan)


def kept_batches(
    reader: FileReader, excluded: frozenset[int], batch_rows: int, use_threads: bool
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows of the other groups, each batch with the number of selected rows that were skipped before it. The last may be empty."""
    skipped, selection = 0, reader.selection
    for is_excluded, groups in groupby(selection.row_groups(reader.file.metadata), lambda each: each[0] in excluded):
        if is_excluded:
            skipped += sum(selection.count_in(row, rows) for _, row, rows in groups)
            continue
        kept = replace(reader, selection=replace(selection, groups=frozenset(group for group, _, _ in groups)))
        for batch in kept.batches(batch_rows, use_threads):
            yield batch, skipped
            skipped = 0
    if skipped:
        empty = [pa.nulls(0, kind) for kind in reader.projection.row_schema.types]
        yield pa.RecordBatch.from_arrays(empty, schema=reader.projection.row_schema), skipped
