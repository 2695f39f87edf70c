"""The demo: a writer changes a table, and the daemon's loop delivers every change. At the end the demo compares both."""

import asyncio
import contextlib
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdfd.deliver.feed import Feed
from cdfd.deliver.resuming import Policies
from cdfd.demo.writer import TableWriter
from cdfd.encode.json import LineEncoder
from cdfd.errors import ExistsError, SinkError, StorageError
from cdfd.log.table import Table
from cdfd.model.columns import CHANGE_TYPE
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.runtime.clock import SystemClock
from cdfd.scan.execute import Execution
from cdfd.sinks.base import Delivery, Sink
from cdfd.sinks.files.formats import JsonLines
from cdfd.sinks.files.sink import FilesSink

ORDERS = pa.schema(
    [("order_id", pa.int64()), ("customer", pa.string()), ("amount", pa.decimal128(10, 2)), ("status", pa.string())]
)
SHOWN = 4
"""Number of rows of a version to print. The others are only counted."""
PATIENCE_SECONDS = 20.0


POLL_SECONDS, MAX_POLL_SECONDS = 0.1, 1.0
"""Poll interval for a table in a store: initial and maximum."""


def run(where: str | None) -> None:
    """Run the demo in a folder or a store. None: in a temporary folder, which is removed at the end.

    Raises:
        CdfdError: the delivered changes do not add up to the table, or something failed.
    """
    with place_of(where) as (lake, folder):
        asyncio.run(_show(lake, folder))


@contextlib.contextmanager
def place_of(where: str | None) -> Iterator[tuple[str, Path]]:
    """The location of tables, a path or a URI, and the folder of everything else.

    A folder is created if it is missing. None: a temporary folder, removed at the end of the block.

    Raises:
        StorageError: the folder cannot be created.
    """
    if where is not None and "://" not in where:
        try:
            Path(where).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"cannot create the folder: {error.strerror or error}"
            raise StorageError(what, path=where, hint="Give the demo another folder") from None
        yield where, Path(where)
        return
    with tempfile.TemporaryDirectory(prefix="cdfd-demo-") as temporary:
        yield temporary if where is None else where.rstrip("/"), Path(temporary)


async def _show(lake: str, folder: Path) -> None:
    table = Table.open(f"{lake}/orders")
    writer = await create_table(table)
    say(f"A Delta table at {table.uri}, a daemon that delivers its changes to {folder / 'changes'}\n")
    stop = asyncio.Event()
    files = await FilesSink.open(folder / "changes", JsonLines())
    sink, began = ShowingSink(files), dict[int, float]()
    with table.tailer(interval=POLL_SECONDS, max_interval=MAX_POLL_SECONDS) as tailer:
        feed = Feed(table, sink, Execution(table.files), tailer, Policies(start="earliest"), stop)
        delivering = asyncio.create_task(feed.run())
        try:
            await _before(sink.reached(1), delivering)
            for title, step in steps(writer):
                say(f"\n-- {title}")
                committed = await step()
                began[committed] = writer.committing
                await _before(sink.reached(committed + 1), delivering)
        finally:
            stop.set()
            await delivering
            await sink.close()
    folded: Counter[tuple[object, ...]] = Counter()
    for batch in sink.batches:
        for row in batch.to_pylist():
            sign = -1 if row[CHANGE_TYPE] in ("delete", "update_preimage") else 1
            folded[tuple(row.get(column) for column in writer.schema.names)] += sign
    rows = Counter(tuple(row.values()) for row in writer.rows().to_pylist())
    same = +folded == rows and not -folded
    verdict = "equal to" if same else "NOT EQUAL to"
    say(
        f"\nAll {sum(batch.num_rows for batch in sink.batches)} changes applied in order: {verdict} the table's {rows.total()} rows."
    )
    if not same:
        raise SinkError("the delivered changes do not add up to the table", table=writer.storage.uri)
    milliseconds = sorted(1000 * (sink.delivered_at[version] - moment) for version, moment in began.items())
    say(
        f"From commit{sync_note(table)} to delivery, synced to disk: {len(milliseconds)} commits, "
        f"median {statistics.median(milliseconds):.1f} ms, longest {milliseconds[-1]:.1f} ms."
    )


async def create_table(table: Table) -> TableWriter:
    """Create the demo's table, empty.

    Raises:
        ExistsError: the location already has a table.
    """
    writer = TableWriter(table.log.storage, ORDERS)
    try:
        await writer.create()
    except ExistsError as error:
        error.hint = "The demo creates its own table: give it another location"
        raise error.within(table=table.uri) from None
    return writer


def sync_note(table: Table) -> str:
    """The durability of the writer's commits, as text."""
    return "" if table.log.storage.remote else ", synced to disk,"


async def _before(event: Coroutine[Any, Any, None], delivering: asyncio.Task[None]) -> None:
    """Wait for `event` while the daemon's loop runs. Raises the error of the loop."""
    awaited = asyncio.create_task(event)
    await asyncio.wait((awaited, delivering), timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    if not awaited.done():
        awaited.cancel()
        if delivering.done():
            delivering.result()
        raise SinkError(f"nothing was delivered for {PATIENCE_SECONDS:.0f} s")


def steps(writer: TableWriter) -> list[tuple[str, Callable[[], Awaitable[int]]]]:
    """The steps of the demo: titles, and functions that commit and return the version."""
    status, order = pc.field("status"), pc.field("order_id")
    late = _orders([(2, "Grace", "250.00", "shipped"), (7, "Edsger", "12.00", "new")])
    discount = pa.field("discount", pa.int32())
    with_discount = _orders([(8, "Barbara", "99.99", "new")]).append_column(discount, pa.array([10], pa.int32()))
    return [
        ("INSERT six orders", lambda: writer.insert(_orders(FIRST))),
        (
            "UPDATE: orders 1 and 3 are shipped",
            lambda: writer.update(order.isin([1, 3]), {"status": pc.scalar("shipped")}),
        ),
        ("MERGE: order 2 changes, order 7 is new", lambda: writer.merge(late, "order_id")),
        ("DELETE what is cancelled, by a deletion vector", lambda: writer.delete(status == "cancelled")),
        ("OPTIMIZE: files are rewritten, no row changes, nothing is delivered", writer.optimize),
        ("ADD COLUMN discount", lambda: writer.add_column(discount)),
        ("INSERT with the new column", lambda: writer.insert(with_discount)),
    ]


FIRST = [
    (1, "Ada", "10.50", "new"),
    (2, "Grace", "200.00", "new"),
    (3, "Alan", "7.25", "new"),
    (4, "Edgar", "31.00", "cancelled"),
    (5, "Tony", "1.00", "new"),
    (6, "Donald", "2.56", "new"),
]


def _orders(rows: list[tuple[int, str, str, str]]) -> pa.Table:
    ids, customers, amounts, states = zip(*rows, strict=True)
    columns = [pa.array(ids), pa.array(customers), pa.array(amounts).cast(pa.decimal128(10, 2)), pa.array(states)]
    return pa.table(columns, schema=ORDERS)


@dataclass(slots=True)
class ShowingSink(Sink):
    """A sink that prints the deliveries of another one, and keeps their rows and times.

    Attributes:
        inner: the other one.
        batches: the rows.
        delivered_at: the time of each version's delivery, on the clock's monotonic scale.
    """

    inner: Sink
    batches: list[pa.RecordBatch] = field(default_factory=list)
    delivered_at: dict[int, float] = field(default_factory=dict)
    _clock: SystemClock = field(default_factory=SystemClock)
    _version: int = 0
    _moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def last_position(self) -> Position | None:
        """See the port."""
        return await self.inner.last_position()

    async def begin(self, position: Position) -> Delivery:
        """See the port."""
        return _Showing(self, await self.inner.begin(position))

    async def close(self) -> None:
        """See the port."""
        await self.inner.close()

    async def reached(self, version: int) -> None:
        """Wait until everything before `version` is delivered."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._version >= version)

    async def delivered(self, following: Position, batches: list[pa.RecordBatch]) -> None:
        """Print and keep the rows of a committed delivery."""
        self.delivered_at[following.version - 1] = self._clock.monotonic()
        for batch in batches:
            sys.stdout.write(bytes(LineEncoder()(batch.slice(0, SHOWN))).decode())
            if batch.num_rows > SHOWN:
                say(f"... and {batch.num_rows - SHOWN} more")
        self.batches += batches
        async with self._moved:
            self._version = following.version
            self._moved.notify_all()


@dataclass(slots=True)
class _Showing(Delivery):
    sink: ShowingSink
    inner: Delivery
    batches: list[pa.RecordBatch] = field(default_factory=list)

    async def start_version(self, version: Version) -> None:
        await self.inner.start_version(version)

    async def write(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        await self.inner.write(batch)

    async def commit(self, following: Position) -> None:
        await self.inner.commit(following)
        await self.sink.delivered(following, self.batches)

    async def abort(self) -> None:
        await self.inner.abort()


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
