"""`cdfd tail`: prints change rows as JSON lines, to standard output or a file.

The event loop plans versions, threads read and encode them, and one thread writes them in order. Existing versions go through these stages
together. A new version is written before the command waits for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import stat
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import pyarrow as pa

from cdfd.encode.json import LineEncoder
from cdfd.errors import ConfigError, StorageError
from cdfd.escaping import for_terminal, one_line
from cdfd.log.bounds import parse_bound
from cdfd.log.start import (
    check_range,
    check_rows_from,
    check_version_exists,
    start_version,
    state_version,
    until_version,
    wait_for_start,
)
from cdfd.log.stream import version_batches
from cdfd.log.table import Table, versions
from cdfd.log.tailer import Tailer
from cdfd.model.batch import ChangeBatch
from cdfd.model.columns import COMMIT_VERSION, change_schema, without_change_columns
from cdfd.model.plan import ChangePlan
from cdfd.plan.row_options import AS_STORED, RowOptions
from cdfd.runtime import allocator
from cdfd.runtime.ordered_pool import map_in_order
from cdfd.runtime.progress_line import ProgressLine, has_terminal, is_watched
from cdfd.scan.execute import Execution

if TYPE_CHECKING:
    from cdfd.cli.commands.tail_pretty import PrettyOutput
    from cdfd.cli.commands.tail_trevni import TrevniOutput
    from cdfd.encode.debezium import DebeziumEncoder

logger = logging.getLogger("cdfd.tail")

BATCH_ROWS = 16_384
"""Rows to encode at once. Encoding takes several times the memory of a batch."""


Existing = Literal["refuse", "append", "overwrite"]
Format = Literal["flat", "debezium", "trevni"]


@dataclass(frozen=True, slots=True)
class Request:
    """The options of the command.

    Attributes:
        start: start of the range. Default: `latest`; with `until`, `earliest`; with `until` and `snapshot`, `until`.
        rows: the options of the rows.
        pretty: whether rows are printed aligned, for people. It needs the format `flat`.
        meta: whether rows have the change columns. Without them, the format is `flat`.
        existing: what to do with an `output` that is not empty.
        access: other arguments of `Table.open`.
    """

    uri: str
    start: str | None = None
    until: str | None = None
    snapshot: bool = False
    rows: RowOptions = AS_STORED
    net: bool = False
    format: Format = "flat"
    pretty: bool = False
    meta: bool = True
    output: Path | None = None
    existing: Existing = "refuse"
    access: Mapping[str, Any] = field(default_factory=dict, repr=False)


def run(request: Request) -> None:
    """Print until the requested end, or forever. SIGTERM ends it after the current row.

    Raises:
        CdfdError: with table, version and file. All versions before it are written.
    """
    if request.format == "trevni" and (request.output is None or request.existing == "append"):
        raise ConfigError("Trevni is written to a file of its own", hint="Give -o FILE, without --append")
    if request.format != "flat" and (request.pretty or not request.meta):
        raise ConfigError(
            f"{'--pretty' if request.pretty else '--no-meta'} excludes --format {request.format}",
            hint="Leave --format out: both options are of the format flat",
        )
    allocator.settle()
    with open_output(request.output, request.existing) as out:
        asyncio.run(_run(request, out))


async def _run(request: Request, out: BinaryIO) -> None:
    terminal = is_watched() or (request.output is not None and sys.stderr.isatty())
    writer = Writer(request.uri, request.format, out, pretty=request.pretty, meta=request.meta, terminal=terminal)
    work = asyncio.current_task()
    assert work is not None
    terminated = asyncio.Event()
    loop = asyncio.get_running_loop()

    def terminate() -> None:
        terminated.set()
        work.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        await _write(request, writer)
        writer.close()
    except asyncio.CancelledError:
        # The writing thread cannot be cancelled, so closing waits for it.
        writer.stopped = True
        writer.close()
        if not terminated.is_set():
            raise


def _write_net(request: Request, writer: Writer) -> None:
    """Write the net changes of a range. It ends now, unless the request says otherwise."""
    from cdfd.api import read_range

    if request.snapshot or request.format == "trevni":
        raise ConfigError(
            f"--net excludes {'--snapshot' if request.snapshot else '--format trevni'}",
            hint="Net changes are those of a range: give --from and --until",
        )
    start = "earliest" if request.start is None else request.start
    until = "now" if request.until is None else request.until
    _announce(f"reading the net changes from {start} until {until}")
    table = Table.open(request.uri, **request.access)
    _, batches = read_range(table, request.rows, start, until, net=True, stopped=lambda: writer.stopped)
    writer.begin(None, empty=request.existing == "overwrite")
    writer.write_rows(batches)


async def _write(request: Request, writer: Writer) -> None:
    if request.net:
        await asyncio.to_thread(_write_net, request, writer)
        return
    table, rows = Table.open(request.uri, **request.access), request.rows
    execution = Execution(table.files, rows, batch_rows=BATCH_ROWS)
    with table.tailer() as tailer:
        first, last = await _range(table, tailer, request)
        if request.snapshot:
            await check_version_exists(table.log, first, await table.log.latest_version())
        if has_terminal():
            _announce(_work(first, last, await table.log.latest_version(), snapshot=request.snapshot))
        schema = None
        if rows.names_columns or request.format == "trevni":
            table_schema = await check_rows_from(table.log, rows, first, last)
            schema = change_schema(rows.shape.published(rows.shape.target(table_schema)).arrow)
        writer.begin(schema, empty=request.existing == "overwrite")
        stream = table.stream(rows)
        snapshot = partial(stream.snapshot, first, tailer) if request.snapshot else None
        planned = versions(tailer, stream, first, last, snapshot=snapshot)
        async with contextlib.aclosing(version_batches(planned)) as ready:
            async for burst in ready:
                await asyncio.to_thread(writer.write, execution, [version.plan for version in burst])


async def _range(table: Table, tailer: Tailer, request: Request) -> tuple[int, int | None]:
    """The first and the last version; None: no end."""
    log, start = table.log, request.start
    if request.until is None:
        start = "latest" if start is None else start
        first = await wait_for_start(tailer, start)
        # For a snapshot, `latest` is the newest version; for changes, it is the next one.
        return await log.latest_version() if request.snapshot and parse_bound(start) == "latest" else first, None
    if start is None and request.snapshot:
        last = await state_version(log, request.until)
        assert last is not None
        return last, last
    start = "earliest" if start is None else start
    latest = request.snapshot and parse_bound(start) == "latest"
    first = await log.latest_version() if latest else await start_version(log, start)
    # After the start: commits may come meanwhile.
    last = await until_version(log, request.until)
    assert last is not None
    await check_range(log, first, last, snapshot=request.snapshot)
    return first, last


def _work(first: int, last: int | None, newest: int, *, snapshot: bool) -> str:
    """The work of the command, for people.

    Args:
        first: the first version to read.
        last: the last one; None: no end.
        newest: the newest version of the table.
        snapshot: whether live rows at `first` come first.
    """
    start, end = first + snapshot, newest if last is None else min(last, newest)
    texts = [f"the rows of version {first}"] if snapshot else []
    if start <= end:
        texts.append(f"version {start}" if start == end else f"versions {start} to {end}")
    wait = "waiting for commits" if last is None else f"waiting for version {last}" if last > newest else ""
    if not texts:
        return f"table at version {newest}, {wait or 'nothing to read'}"
    return f"reading {' and '.join(texts)}{wait and f', then {wait}'}"


def _announce(text: str) -> None:
    """Write a line for people to standard error, if that is a terminal."""
    if has_terminal():
        with contextlib.suppress(OSError):  # the terminal is gone, but the work continues
            sys.stderr.write(f"{one_line(text)}\n")
            sys.stderr.flush()


class Writer:
    """Encodes and writes the change rows of plans, in order. Used from one thread at a time.

    Attributes:
        stopped: whether no more rows are to be written. The `write` of another thread ends before its next batch.
    """

    def __init__(
        self,
        table: str,
        format: Format,
        out: BinaryIO,
        *,
        pretty: bool = False,
        meta: bool = True,
        terminal: bool = False,
    ) -> None:
        self._out = out
        self._flat = LineEncoder()
        self._meta = meta
        self._debezium: DebeziumEncoder | None = None
        self._trevni: TrevniOutput | None = None
        self._pretty: PrettyOutput | None = None
        # Each is imported only if it is asked for: Rich takes longer than the first rows take to read.
        if format == "debezium":
            from cdfd.encode.debezium import DebeziumEncoder
            from cdfd.encode.records import Origin

            self._debezium = DebeziumEncoder(Origin("cdfd", table, "", table))
        if format == "trevni":
            from cdfd.cli.commands.tail_trevni import TrevniOutput

            self._trevni = TrevniOutput(out)
        if pretty:
            from cdfd.cli.commands.tail_pretty import PrettyOutput

            self._pretty = PrettyOutput(out, meta=meta)
        self._report = ProgressLine(logger, "written", table, terminal=terminal)
        self._lock = threading.Lock()
        self.stopped = False

    def begin(self, schema: pa.Schema | None, *, empty: bool) -> None:
        """Prepare for the first rows. An output is truncated only now, so that a refused request keeps its content.

        A Trevni file is written at the end, so a later error keeps it, too.

        Args:
            schema: of a Trevni file, if there will be no rows.
            empty: truncate the output.
        """
        if self._trevni is not None:
            self._trevni.schema = schema
            self._trevni.empty = empty and _holds_something(self._out)
        elif empty and _holds_something(self._out):
            self._out.truncate(0)

    def close(self) -> None:
        """End the output."""
        self._report.close()
        if self._trevni is not None:
            with self._lock:
                self._trevni.close()
                self._out.flush()

    def write(self, execution: Execution, plans: Sequence[ChangePlan]) -> None:
        """Write and flush all rows of `plans`."""
        batches = (batch for batch in execution.batches(plans) if batch.rows.num_rows)
        if self._trevni is not None or self._pretty is not None:
            self.write_rows(batch.rows for batch in batches)
            return

        def encode(batch: ChangeBatch) -> tuple[ChangeBatch, pa.Buffer | bytes]:
            return batch, self._lines(batch.rows, snapshot=batch.plan.origin == "snapshot")

        for batch, lines in map_in_order(encode, batches, workers=execution.threads_for(plans)):
            if self.stopped:
                return
            self._out.write(lines)
            self._report.count(batch.plan.version, batch.rows.num_rows)
        self._out.flush()

    def write_rows(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write and flush change rows, in order. A Trevni file has them when it is closed."""
        output = self._trevni or self._pretty
        with self._lock:
            for rows in batches:
                if self.stopped:
                    return
                if output is not None:
                    output.write(rows)
                else:
                    self._out.write(self._lines(rows))
                self._report.count(rows.column(COMMIT_VERSION)[-1].as_py(), rows.num_rows)
            self._out.flush()

    def _lines(self, rows: pa.RecordBatch, *, snapshot: bool = False) -> pa.Buffer | bytes:
        if self._debezium is not None:
            lines = self._debezium.lines(rows, snapshot=snapshot)
        else:
            lines = self._flat(rows if self._meta else without_change_columns(rows))
        return for_terminal(lines.to_pybytes().decode()).encode() if self._out.isatty() else lines


@contextlib.contextmanager
def open_output(path: Path | None, existing: Existing) -> Iterator[BinaryIO]:
    """The output of a command. Its errors are translated, except for a closed pipe."""
    try:
        if path is None:
            if sys.stdout is None:
                raise StorageError("standard output is closed")
            yield sys.stdout.buffer
        else:
            # Rows may be confidential, so a new file is for this user only.
            with (
                _removing_empty(path),
                open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file,
            ):
                if existing == "refuse" and _holds_something(file):
                    raise ConfigError(
                        "the output file already exists", path=str(path), hint="Give --append or --overwrite"
                    )
                yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write: {error.strerror or error}", path=str(path or "standard output")) from error


@contextlib.contextmanager
def _removing_empty(path: Path) -> Iterator[None]:
    """After an error, remove a file that the block has created, and that has nothing: it would be no Trevni file."""
    existed = os.path.lexists(path)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if not existed and path.stat().st_size == 0:
                path.unlink()
        raise


def _holds_something(file: BinaryIO) -> bool:
    """Whether it is a regular, non-empty file. A device or a pipe has no content."""
    status = os.fstat(file.fileno())
    return stat.S_ISREG(status.st_mode) and status.st_size > 0
