"""A files sink that is killed before its k-th step in the file system, for every k. Its test runs it as a program.

Python calls audit hooks before it opens, renames or removes a file. A kill in each of these calls, one after the other,
leaves a folder in every state in which a crash can leave it. (The content of temporary files does not matter: the sink
never reads one.)
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from cdfd.model.position import Position
from cdfd.sinks.files.formats import JsonLines, Parquet, RowsFormat
from cdfd.sinks.files.sink import FilesSink

# Two parts of a snapshot, a version, one without rows, one in two deliveries, several versions at once.
STEPS = [
    Position("T", 3, 0, "snapshot", digest="of 3"),
    Position("T", 3, 2, "snapshot", 1, digest="of 3"),
    Position("T", 4, digest="of 3"),
    Position("T", 5, digest="of 4"),
    Position("T", 6, digest="of 5"),  # version 5 has no rows
    Position("T", 6, 1, "stream", 1, digest="of 6"),
    Position("T", 7, digest="of 6"),
    Position("T", 10, digest="of 9"),
]
EMPTY = 3
_EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.listdir", "fcntl.flock"})


def formats() -> dict[str, RowsFormat]:
    return {"jsonl": JsonLines(lambda batch: b"%d\n" % batch["n"][0].as_py()), "parquet": Parquet()}


async def deliver_all(folder: Path, rows: RowsFormat) -> None:
    """Deliver what has not been delivered yet; the n-th delivery has one row, n."""
    sink = await FilesSink.open(folder, rows)
    try:
        while (position := await sink.last_position()) != STEPS[-1]:
            n = STEPS.index(position) if position is not None else 0
            if position is not None and position.digest != STEPS[n].digest:
                raise AssertionError(f"the hash of {position} in {folder} is not that of the entry which has led to it")
            delivery = await sink.begin(STEPS[n])
            if n != EMPTY:
                await delivery.write(pa.record_batch({"n": pa.array([n])}))
            await delivery.commit(STEPS[n + 1])
    finally:
        await sink.close()


def survives(folder: Path, rows: RowsFormat, steps: int) -> bool:
    """Whether `deliver_all` came to its end in another process, which is killed before its `steps`-th step."""
    child = os.fork()
    if child == 0:
        left = steps

        def count(event: str, args: tuple[object, ...]) -> None:
            nonlocal left
            # The sink uses the folder through its descriptor: names are relative, or there are none.
            ours = event in _EVENTS and (not os.path.isabs(str(args[0])) or str(args[0]).startswith(str(folder)))
            if ours:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        asyncio.run(deliver_all(folder, rows))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status not in (0, signal.SIGKILL):
        raise SystemExit(f"the child in {folder} failed: {status}")
    return status == 0


def crashes(root: Path, rows: RowsFormat) -> Iterator[Path]:
    """For each k a folder that a sink was killed in before its k-th step; the last is one that it was not killed in."""
    k = 0
    done = False
    while not done:
        k += 1
        folder = root / f"{k:03d}"
        done = survives(folder, rows, k)
        yield folder


def ever_later(folder: Path, rows: RowsFormat) -> int:
    """Kill sinks in one folder, each one step later than the one before it, until one is not killed. How many."""
    k = 1
    while not survives(folder, rows, k):
        k += 1
    return k


if __name__ == "__main__":
    place = Path(sys.argv[1])
    for suffix, kind in formats().items():
        (place / suffix).mkdir()
        print(suffix, len(list(crashes(place / suffix, kind))), ever_later(place / f"{suffix}-later", kind))
