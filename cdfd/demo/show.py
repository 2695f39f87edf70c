"""The demo: a writer changes a table, and the daemon's loop delivers every change. At the end the demo compares both."""

import asyncio
import contextlib
import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdfd.deliver.feed import Feed
from cdfd.deliver.monitor import Monitor
from cdfd.deliver.resuming import Policies
from cdfd.demo.writer import TableWriter
from cdfd.errors import ExistsError, SinkError, StorageError
from cdfd.log.table import Table
from cdfd.model.columns import CHANGE_TYPE
from cdfd.model.position import Position
from cdfd.runtime.clock import SystemClock
from cdfd.runtime.output import write
from cdfd.scan.execute import Execution
from cdfd.sinks.files.formats import JsonLines
from cdfd.sinks.files.sink import FilesSink
from cdfd.storage.home import check_home

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
        ConfigError: the path begins with `~`.
    """
    if where is not None and "://" not in where:
        check_home(where)
        try:
            Path(where).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"cannot create the folder: {error.strerror or error}"
            raise StorageError(what, path=where, hint="Give the demo another folder") from None
        yield where, Path(where)
        return
    with tempfile.TemporaryDirectory(prefix="cdfd-demo-") as temporary:
        lake = where or temporary
        # Without a bucket, it is a URI still, and refused.
        yield lake if lake.endswith("://") else lake.rstrip("/"), Path(temporary)


async def _show(lake: str, folder: Path) -> None:
    table = Table.open(f"{lake}/orders")
    writer = await create_table(table)
    say(f"A Delta table at {table.uri}, a daemon that delivers its changes to {folder / 'changes'}\n")
    stop, deliveries, began = asyncio.Event(), _Deliveries(), dict[int, float]()
    delivered = list[dict[str, Any]]()
    sink = await FilesSink.open(folder / "changes", JsonLines())
    with table.tailer(interval=POLL_SECONDS, max_interval=MAX_POLL_SECONDS) as tailer:
        policies = Policies(start="earliest")
        feed = Feed(table, sink, Execution(table.files), tailer, policies, stop, monitor=deliveries)
        delivering = asyncio.create_task(feed.run())
        try:
            await _before(deliveries.reached(1), delivering)
            for title, step in steps(writer):
                say(f"\n-- {title}")
                committed = await step()
                began[committed] = writer.committing
                await _before(deliveries.reached(committed + 1), delivering)
                file = folder / "changes" / f"{committed:020d}.jsonl"
                lines = file.read_text().splitlines() if file.exists() else []  # without rows, there is no file
                for line in lines[:SHOWN]:
                    say(line)
                if len(lines) > SHOWN:
                    say(f"... and {len(lines) - SHOWN} more")
                delivered += map(json.loads, lines)
        finally:
            stop.set()
            await delivering
            await sink.close()
    milliseconds = [1000 * (deliveries.ended[version + 1] - moment) for version, moment in began.items()]
    say_result(f"{len(delivered)} changes applied in order", delivered, writer)
    say_latency(writer, "delivery, synced to disk", milliseconds)


def say_result(applied: str, changes: Iterable[Mapping[str, Any]], writer: TableWriter) -> None:
    """Compare what the changes add up to with the table's rows. `SinkError` if it is not the same."""
    names, folded = writer.schema.names, Counter[tuple[str, ...]]()
    for row in changes:
        sign = -1 if row[CHANGE_TYPE] in ("delete", "update_preimage") else 1
        folded[tuple(str(row.get(name)) for name in names)] += sign
    rows = Counter(tuple(str(row[name]) for name in names) for row in writer.rows().to_pylist())
    same = +folded == rows and not -folded
    verdict = "equal to" if same else "NOT EQUAL to"
    say(f"\nAll {applied}: {verdict} the table's {rows.total()} rows.")
    if not same:
        raise SinkError("the delivered changes do not add up to the table", table=writer.storage.uri)


def say_latency(writer: TableWriter, end: str, milliseconds: Sequence[float]) -> None:
    """Print the times from the writer's commits to an end."""
    synced = "" if writer.storage.remote else ", synced to disk,"
    say(
        f"From commit{synced} to {end}: {len(milliseconds)} commits, "
        f"median {statistics.median(milliseconds):.1f} ms, longest {max(milliseconds):.1f} ms."
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
class _Deliveries(Monitor):
    """The times of deliveries on the clock's monotonic scale, by the version after them."""

    ended: dict[int, float] = field(default_factory=dict)
    _clock: SystemClock = field(default_factory=SystemClock)
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    def committed(self, following: Position, *_: object) -> None:
        """See `Monitor`."""
        self.ended[following.version] = self._clock.monotonic()
        self._moved.set()

    async def reached(self, version: int) -> None:
        """Wait until everything before `version` is delivered."""
        while max(self.ended, default=0) < version:
            self._moved.clear()
            await self._moved.wait()


def say(line: str) -> None:
    """Print a line."""
    write(f"{line}\n")
