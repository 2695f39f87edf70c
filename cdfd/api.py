"""The Python API: change rows and snapshots as Arrow record batches."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import cast

import pyarrow as pa

from cdfd.config.shapes import shape_of
from cdfd.delta.header import Header
from cdfd.errors import ConfigError, Within
from cdfd.log.bounds import Start, is_relative
from cdfd.log.range_schema import range_schema
from cdfd.log.start import (
    check_range,
    check_rows_from,
    check_version_exists,
    start_version,
    state_version,
    until_version,
    wait_for_start,
)
from cdfd.log.table import Table, Uri
from cdfd.model.columns import change_schema
from cdfd.model.plan import Changes
from cdfd.model.refinement import Refine
from cdfd.plan.reconciliation import SchemaReconciler
from cdfd.plan.row_options import RowOptions
from cdfd.plan.shape.chosen import Chosen
from cdfd.runtime.arrays import type_with_views
from cdfd.runtime.tasks import LoopThread, iterate_in_thread
from cdfd.scan.execute import Execution
from cdfd.scan.updates.net import NetChanges

StorageOptions = Mapping[str, object]
Columns = Sequence[str | Mapping[str, str] | Chosen] | str | None


def changes(
    uri: Uri,
    start: Start = 0,
    end: Start | None = None,
    *,
    changes: Changes = "auto",
    refine: Refine = "auto",
    key: Sequence[str] | str | None = None,
    drop_unchanged: bool = False,
    net: bool = False,
    where: str | None = None,
    columns: Columns = None,
    mask: Mapping[str, object] | None = None,
    exclude_change_types: Sequence[str] | str = (),
    string_views: bool = False,
    storage_options: StorageOptions | None = None,
    allowed_roots: Sequence[Uri] = (),
    path_prefixes: Mapping[str, Uri] | None = None,
    max_log_line: int | None = None,
) -> pa.RecordBatchReader:
    """The row-level changes of the versions `start` to `end`, both included.

    Args:
        uri: a path or URI of a Delta table.
        start: a version (-1 is the newest, -2 the one before), `earliest`, or a time (the first version not before it): a
            `datetime`, a `date` (its midnight, UTC), `2026-01-31T12:00:00Z`, `1 hour ago`, or milliseconds since the Unix epoch (13 digits).
            `{"after": start}` excludes that version or time.
        end: a version or a time as for `start` (the last version not after it); None for the newest version.
        changes: `auto` reads the change data files of a version if it has any, and otherwise derives changes from file actions; `cdf` refuses
            tables without a change data feed; `files` ignores change data files.
        refine: how updates are recognised in versions without change data files. `rows`: by row tracking. `key`: by the columns `key`.
            `auto`: by row tracking if the table has it, otherwise by the key, if there is one. `off`: an update is a delete and an insert.
        key: the columns that identify a row, or the name of one. They also order the changes of a version; see the page about changes.
        drop_unchanged: whether to leave out updates whose images are equal.
        net: whether to return only the net changes of the range: for each key, its image before and its image after, unless they are
            equal. It needs a key. The first batch comes after all rows of the range were read.
        where: the rows to return, as an expression such as `region = 'de' AND amount > 10`. An update that enters the filter is an insert,
            and one that leaves it is a delete.
        columns: the table's columns to return, in that order, or the name of one; None for all. `{"name": "amount", "as": "value"}` renames.
        mask: masks by column: `nullify`, `constant:VALUE`, `truncate:2` or `hmac_sha256:FILE`, or
            `{"method": "hmac_sha256", "hmac_key": b"..."}`.
        exclude_change_types: change types to leave out.
        string_views: whether strings and binaries are Arrow's views, as Polars and DuckDB use them. No text is copied.
        storage_options: options of the store, for the URI's scheme.
        allowed_roots: roots outside the table to which absolute paths in the log (clones) and symbolic links may lead.
        path_prefixes: locations of absolute paths in the log, by prefix: `{"dbfs:/mnt/lake": "s3://lake"}`. They are allowed roots, too.
        max_log_line: the largest line of a log entry or of a checkpoint in JSON, in bytes, because it is held in memory; None for 128 MiB.

    Returns:
        A reader whose batches have the table's columns as of `end`, then `_change_type` (dictionary-encoded string), `_commit_version`
        (int64), `_commit_timestamp` (timestamp[ms, UTC]) and `_change_ordinal` (int64, position in the version). Rows come in order. The
        reader reads lazily. Rows of versions with another schema are converted: a renamed column keeps its values, a column that did not
        exist yet is null, a narrower one is widened.

    Raises:
        CdfdError: from this call or while reading; it names table, version and file.
    """
    _check_flags(drop_unchanged=drop_unchanged, net=net, string_views=string_views)
    shape = shape_of(where, columns, mask, exclude_change_types)
    rows = RowOptions(changes, refine, _names(key), shape, drop_unchanged)
    table = Table.open(uri, storage_options, allowed_roots, path_prefixes=path_prefixes, max_log_line=max_log_line)
    schema, batches = read_range(table, rows, start, end, net=net)
    return _reader(schema, batches, string_views)


def read_range(
    table: Table,
    rows: RowOptions,
    start: Start,
    end: Start | None,
    *,
    net: bool,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema and the batches of `changes`.

    Args:
        table: the table.
        rows: the options of the rows.
        start, end, net: see `changes`.
        stopped: asked after each batch that is read, also while net changes are collected; once it is true, there are no more batches.

    Raises:
        CdfdError: as `changes` does.
    """
    with LoopThread(local=table.local) as loop:
        first, last, header = loop.run(_range(table, start, end))
        schema = loop.run(range_schema(table.log, first, header))
    with Within(table.uri):
        rows.check(schema)
    if net:
        rows.check_net()
    target = rows.shape.target(schema)
    stream = table.stream(rows, target)
    reconciler = SchemaReconciler(rows.shape.published(target), rows.shape.constants(target))
    execution = Execution(table.files, rows, SchemaReconciler(target).select, whole=rows.shape.columns is None)

    def all_changes() -> Iterator[pa.RecordBatch]:
        # This loop starts with the first read: a reader that is never read must not leave a thread behind.
        with LoopThread(local=table.local) as loop, table.tailer() as tailer:
            planned = stream.versions(tailer, first, last)
            plans = (version.plan for version in iter(lambda: loop.run(anext(planned, None)), None))
            for changes in execution.batches(plans):
                if stopped():
                    return
                if changes.rows.num_rows:
                    yield reconciler.reconcile(changes)

    def net_changes() -> Iterator[pa.RecordBatch]:
        changes = NetChanges(
            reconciler.target.arrow, reconciler.target.select(rows.published_key).names, execution.space
        )
        for batch in all_changes():
            changes.add(batch)
        if not stopped():
            yield from changes.batches()

    return reconciler.schema, net_changes() if net else all_changes()


def snapshot(
    uri: Uri,
    version: Start | None = None,
    *,
    where: str | None = None,
    columns: Columns = None,
    mask: Mapping[str, object] | None = None,
    exclude_change_types: Sequence[str] | str = (),
    string_views: bool = False,
    storage_options: StorageOptions | None = None,
    allowed_roots: Sequence[Uri] = (),
    path_prefixes: Mapping[str, Uri] | None = None,
    max_log_line: int | None = None,
) -> pa.RecordBatchReader:
    """The live rows of a table, as `insert`s of that version. A copy of the table starts with them, and then applies `changes`.

    Args:
        uri: a path or URI of a Delta table.
        version: a version or a time, as `end` of `changes`; None for the newest.
        where: as for `changes`.
        columns: as for `changes`.
        mask: as for `changes`.
        exclude_change_types: as for `changes`.
        string_views: as for `changes`.
        storage_options: as for `changes`.
        allowed_roots: as for `changes`.
        path_prefixes: as for `changes`.
        max_log_line: as for `changes`.

    Returns:
        A reader whose batches have the same columns as those of `changes`.

    Raises:
        CdfdError: from this call or while reading; it names table, version and file.
    """
    _check_flags(string_views=string_views)
    shape = shape_of(where, columns, mask, exclude_change_types)
    rows = RowOptions(shape=shape)
    table = Table.open(uri, storage_options, allowed_roots, path_prefixes=path_prefixes, max_log_line=max_log_line)
    with LoopThread(local=table.local) as loop:
        at = loop.run(state_version(table.log, version))
        live = loop.run(table.stream(rows).snapshot(at))
    with Within(table.uri, live.plan.version):
        rows.check(live.plan.schema)
    chosen = shape.target(live.plan.schema)
    execution = Execution(table.files, rows, lambda _: chosen, whole=shape.columns is None)
    batches = (batch.rows for batch in execution.batches([live.plan]) if batch.rows.num_rows)
    return _reader(change_schema(shape.published(chosen).arrow), batches, string_views)


async def follow(
    uri: Uri,
    start: Start = "latest",
    *,
    changes: Changes = "auto",
    refine: Refine = "auto",
    key: Sequence[str] | str | None = None,
    drop_unchanged: bool = False,
    where: str | None = None,
    columns: Columns = None,
    mask: Mapping[str, object] | None = None,
    exclude_change_types: Sequence[str] | str = (),
    storage_options: StorageOptions | None = None,
    allowed_roots: Sequence[Uri] = (),
    path_prefixes: Mapping[str, Uri] | None = None,
    max_log_line: int | None = None,
    poll_interval: float = 1.0,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Row-level changes as they are committed, without end.

    If the table does not exist yet, the iterator waits for it. Batches have the schema in force at their version, which may change from one
    version to the next.

    Args:
        uri: a path or URI of a Delta table.
        start: `latest` (only commits from now on; everything, if the table does not exist yet), or as for `changes`.
        changes: as for the function `changes`.
        refine: as for the function `changes`.
        key: as for the function `changes`.
        drop_unchanged: as for the function `changes`.
        where: as for `changes`.
        columns: as for `changes`.
        mask: as for `changes`.
        exclude_change_types: as for `changes`.
        storage_options: as for `changes`.
        allowed_roots: as for `changes`.
        path_prefixes: as for `changes`.
        max_log_line: as for `changes`.
        poll_interval: seconds between polls without file-system events. It backs off to five times that while no commit comes.

    Raises:
        CdfdError: it names table, version and file.
    """
    if not isinstance(poll_interval, int | float) or not 0 < poll_interval < math.inf:
        raise ConfigError(f"poll_interval is {poll_interval!r:.100}", hint="Give a number of seconds above 0")
    _check_flags(drop_unchanged=drop_unchanged)
    shape = shape_of(where, columns, mask, exclude_change_types)
    rows = RowOptions(changes, refine, _names(key), shape, drop_unchanged)
    table = Table.open(uri, storage_options, allowed_roots, path_prefixes=path_prefixes, max_log_line=max_log_line)
    stream = table.stream(rows)
    execution = Execution(table.files, rows, whole=shape.columns is None)
    with table.tailer(interval=poll_interval, max_interval=5 * poll_interval) as tailer:
        first = await wait_for_start(tailer, start)
        if rows.names_columns:
            await check_rows_from(table.log, rows, first)
        async with aclosing(stream.versions(tailer, first)) as versions:
            async for version in versions:
                async with aclosing(iterate_in_thread(execution.batches([version.plan]))) as batches:
                    async for batch in batches:
                        if batch.rows.num_rows:
                            yield batch.rows


def _reader(schema: pa.Schema, batches: Iterator[pa.RecordBatch], string_views: bool) -> pa.RecordBatchReader:
    if string_views:
        schema = pa.schema([field.with_type(type_with_views(field.type)) for field in schema])
        batches = (batch.cast(schema) for batch in batches)
    return pa.RecordBatchReader.from_batches(schema, _in_one_process(batches))


def _in_one_process(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches. To read on in a fork is an error: it would wait for threads that it does not have."""
    process = os.getpid()
    for batch in batches:
        yield batch
        if os.getpid() != process:
            raise ConfigError("this reader belongs to another process", hint="Open a new one in each process")


def _check_flags(**flags: object) -> None:
    # Any text would count as true, also "false".
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r:.100}", hint="Give True or False")


def _names(key: Sequence[str] | str | None) -> tuple[str, ...]:
    if key is None or isinstance(key, str):
        return () if key is None else (key,)
    names = tuple(key) if isinstance(key, Iterable) else (key,)
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"key is {key!r:.100}", hint='Give names, such as ["id", "amount"]')
    return names


async def _range(table: Table, start: Start, end: Start | None) -> tuple[int, int, Header]:
    """The first version, the last, and protocol and metadata at the last."""
    # The two are independent, and take several round trips each in a remote store.
    both = await asyncio.gather(start_version(table.log, start), table.log.header(), return_exceptions=True)
    for result in both:  # if both fail, the error is that of the first
        if isinstance(result, BaseException):
            raise result
    first, header = cast(tuple[int, Header], tuple(both))
    if end is None and first > header.version and is_relative(start):
        header = await table.log.header()  # the start is that of a log with later commits
    last = header.version if end is None else await until_version(table.log, end)
    assert last is not None
    await check_version_exists(table.log, last, header.version)
    await check_range(table.log, first, last)
    if last != header.version:
        # The version before an empty range may no longer be readable.
        empty = 0 <= last < first
        header = await (table.log.header_before(first) if empty else table.log.header(max(last, 0)))
    return first, last, header
