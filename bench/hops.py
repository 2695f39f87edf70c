"""The functions of cdfd that one commit of one small file passes through, from its log entry to the Kafka transaction.

`python -m bench.hops` follows a table at its tip, commits a file, and profiles every thread until the transaction is committed.

A *hop* is a function of cdfd that takes or returns what the log entry has become: its plan, change rows in an Arrow batch, or encoded
records. A value that contains one of these counts as one. Each function counts once, however often it is called. Hops that call other hops
hand the commit on; the others look at it, or make something else of it. A *crossing* is a handover from the event loop to another thread.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import pyarrow as pa
import pyarrow.parquet as pq

import cdfd
from bench.tables import CHANGE_DATA_FEED, add_file, create, orders, write_commit
from cdfd.deliver.feed import Feed
from cdfd.deliver.monitor import Monitor
from cdfd.deliver.resuming import Policies
from cdfd.encode.records import Records
from cdfd.log.table import Table
from cdfd.model.plan import ChangePlan
from cdfd.model.version import Version
from cdfd.scan.execute import Execution
from tests.support.kafka.recording_producer import Recorded
from tests.support.kafka.sinking import Place

ROOT = Path(cdfd.__file__).parent
CARRIERS = (Version, ChangePlan, pa.RecordBatch, Records)
SECONDS = 60.0
WARM_UP = 3

Action = dict[str, object]


@dataclass(frozen=True)
class Hop:
    """A function that the commit passes through.

    Attributes:
        thread: the thread that called it first.
        module: of cdfd.
        function: its qualified name.
    """

    thread: str
    module: str
    function: str


class Hops:
    """A profile function that collects hops while it is `active`, in order of their first call."""

    def __init__(self) -> None:
        self.active = False
        self._hops: dict[CodeType, Hop] = {}
        self._calls: dict[CodeType, set[CodeType]] = {}

    def __call__(self, frame: FrameType, event: str, value: object) -> None:
        code = frame.f_code
        if not self.active or event not in ("call", "return") or not _is_ours(code):
            return
        if event == "call":
            caller = frame.f_back
            while caller is not None and not _is_ours(caller.f_code):
                caller = caller.f_back
            if caller is not None:
                self._calls.setdefault(caller.f_code, set()).add(code)
        if code in self._hops or code.co_name.startswith("<"):
            return
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = [frame.f_locals.get(name) for name in arguments] if event == "call" else [value]
        if any(map(carries, values)):
            module = Path(code.co_filename).relative_to(ROOT).with_suffix("").as_posix()
            thread = threading.current_thread().name.rstrip("_0123456789")
            self._hops[code] = Hop(thread, module, code.co_qualname)

    @property
    def hops(self) -> list[Hop]:
        """The hops so far."""
        return list(self._hops.values())

    @property
    def chain(self) -> list[Hop]:
        """Those that hand the commit on: they call another one, or resume one that yields."""
        return [hop for code, hop in self._hops.items() if self._reaches_hop(code, {code})]

    def _reaches_hop(self, code: CodeType, seen: set[CodeType]) -> bool:
        for called in self._calls.get(code, set()) - seen:
            seen.add(called)
            if called in self._hops or self._reaches_hop(called, seen):
                return True
        return False


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(str(ROOT))


def carries(value: object, depth: int = 3) -> bool:
    """Whether a value is what a commit has become, or contains it."""
    if isinstance(value, CARRIERS):
        return True
    if not depth:
        return False
    if isinstance(value, list | tuple):
        return any(carries(each, depth - 1) for each in value[:8])
    ours = type(value).__module__.startswith("cdfd.")
    names = getattr(type(value), "__dataclass_fields__", ()) if ours else ()
    return any(carries(getattr(value, name, None), depth - 1) for name in names)


def crossings(hops: list[Hop]) -> int:
    """How often the event loop hands the commit to another thread."""
    threads = [hop.thread for hop in hops]
    return sum(one != other and other != "MainThread" for one, other in pairwise(threads))


class AtTip(Monitor):
    """Notes that everything is delivered."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    def at_tip(self, listed: int = -1) -> None:
        self.reached.set()


def profile(action: Callable[[Path, int], Action]) -> Hops:
    """The hops of a commit with an action, which is made in the folder of a table for a version."""
    hops = Hops()
    threading.setprofile(hops)
    sys.setprofile(hops)
    try:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(_deliver(Path(folder), action, hops))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return hops


async def _deliver(path: Path, action: Callable[[Path, int], Action], hops: Hops) -> None:
    create(path, CHANGE_DATA_FEED)
    table, stop = Table.open(path), asyncio.Event()
    place = Recorded(Place("nowhere:1", "shop").destination, partitions=2)
    async with asyncio.timeout(SECONDS):
        with table.tailer() as tailer:
            execution, policies, tip = Execution(table.files), Policies(start=0), AtTip()
            feed = Feed(table, place.sink, execution, tailer, policies, stop, monitor=tip)
            running = asyncio.create_task(feed.run())
            # The first versions fill caches, such as that of the schema.
            for version in range(1, WARM_UP + 2):
                await tip.reached.wait()
                tip.reached.clear()
                hops.active = version > WARM_UP
                write_commit(path, version, [action(path, version)])
            await tip.reached.wait()
            hops.active = False
            stop.set()
            await running
    await place.sink.close()


def insert(path: Path, version: int) -> Action:
    """A data file with one row."""
    return add_file(path, orders(version, 1))


def update(path: Path, version: int) -> Action:
    """A change data file with both images of one row."""
    rows = pa.concat_tables([orders(version, 1)] * 2)
    types = pa.array(["update_preimage", "update_postimage"])
    name = f"_change_data/cdc-{version:05}.parquet"
    (path / name).parent.mkdir(exist_ok=True)
    pq.write_table(rows.append_column("_change_type", types), path / name)
    size = (path / name).stat().st_size
    return {"cdc": {"path": name, "partitionValues": {}, "size": size, "dataChange": False}}


COMMITS: dict[str, Callable[[Path, int], Action]] = {"a change data file": update, "an added file": insert}


def main() -> None:
    """Print the hops of each kind of commit."""
    for name, action in COMMITS.items():
        way = profile(action)
        hops, chain = way.hops, way.chain
        modules = len({hop.module for hop in hops})
        print(
            f"\n{name}: {len(hops)} functions in {modules} modules, {crossings(hops)} thread crossings; {len(chain)} hand it on (*)\n"
        )
        for hop in hops:
            print(f"{'*' if hop in chain else ' '} {hop.thread:11} {hop.module:32} {hop.function}")


if __name__ == "__main__":
    main()
