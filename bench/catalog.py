"""Tables by catalog, through the stand-in server of the tests: `python -m bench.catalog [latency] [idle] [trips]`.

- latency: from the moment at which the catalog ratifies a commit of one row to the row at the consumer, less the mean wait for a poll.
- idle: requests to the catalog and processor time of 500 tables without commits, in one process.
- trips: round trips until the schema of a table in S3 is known, as the time at 50 ms for each request.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import aclosing
from pathlib import Path

import cdfd
from cdfd.log.table import Table
from tests.standard.s3.test_catalog import keys, upload
from tests.support.catalogs.memory import NAME, ManagedTable, MemoryCatalog
from tests.support.catalogs.unity_server import UnityServer, unity_server
from tests.support.s3.fixtures import new_bucket
from tests.support.s3.proxy import proxied
from tests.support.s3.server import moto

COMMITS, INTERVAL = 100, 0.1
TABLES, IDLE_SECONDS = 500, 30
DELAY = 0.05


def add_version(server: UnityServer, table: ManagedTable) -> float:
    """Ratify a commit. When."""
    staged = table.stage((table.now.latest or 0) + 1)
    assert staged.file_name is not None
    table.ratify(staged)
    ratified = time.perf_counter()
    server.ratify(table.name, staged.version, staged.file_name, size=staged.size, modified_ms=staged.modified_ms)
    return ratified


def latency(server: UnityServer, folder: Path) -> str:
    table = ManagedTable(folder / "latency", MemoryCatalog())
    server.add_table(NAME, table.folder.as_uri())
    times: list[float] = []

    async def follow() -> None:
        arrived: asyncio.Queue[float] = asyncio.Queue()

        async def consume() -> None:
            options = {"endpoint": server.url, "requests_per_second": 1000}
            async with aclosing(
                cdfd.follow(f"uc://{NAME}", 1, storage_options=options, poll_interval=INTERVAL)
            ) as rows:
                async for _ in rows:
                    arrived.put_nowait(time.perf_counter())

        consumer = asyncio.create_task(consume())
        await asyncio.sleep(1)
        for number in range(COMMITS):
            ratified = await asyncio.to_thread(add_version, server, table)
            times.append(await arrived.get() - ratified)
            # Commits come at any moment between two polls.
            await asyncio.sleep(0.05 + INTERVAL * (number * 0.618 % 1))
        consumer.cancel()

    asyncio.run(follow())
    p50 = statistics.median(times) * 1000
    mean_wait = INTERVAL * 1000 / 2
    return f"p50 {p50:.0f} ms with a poll interval of {INTERVAL * 1000:.0f} ms: {p50 - mean_wait:.0f} ms beyond the mean wait"


def idle(server: UnityServer, folder: Path) -> str:
    catalog = MemoryCatalog()
    names = [f"main.idle.t{number}" for number in range(TABLES)]
    for name in names:
        table = ManagedTable(folder / name, catalog, name)
        server.add_table(name, table.folder.as_uri())
    options = {"endpoint": server.url, "requests_per_second": 1000}

    async def wait(name: str) -> None:
        with Table.open(f"uc://{name}", options).tailer() as tailer:
            async with aclosing(tailer.entries(1)) as entries:
                await anext(entries)

    async def all_of_them() -> tuple[int, float]:
        tasks = [asyncio.create_task(wait(name)) for name in names]
        await asyncio.sleep(25)
        requests, used = len(server.requests), time.process_time()
        await asyncio.sleep(IDLE_SECONDS)
        figures = len(server.requests) - requests, time.process_time() - used
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return figures

    requests, used = asyncio.run(all_of_them())
    return (
        f"{requests * 3600 // IDLE_SECONDS} requests an hour for {TABLES} tables with `poll.max_interval: 5s`, "
        f"{100 * used / IDLE_SECONDS:.0f} % of a core, the server's own time included"
    )


def trips(server: UnityServer, folder: Path) -> str:
    figures = []
    with moto(folder) as store, proxied(store.url, DELAY) as proxy:
        bucket = new_bucket(store)
        table = ManagedTable(folder / "trips", MemoryCatalog())
        server.credentials = lambda each: [keys(each.location)]
        for number in range(3):
            name = f"main.trips.t{number}"
            server.add_table(name, upload(store, bucket, table, f"lake/t{number}"))
        options = {"endpoint": server.url, "s3.endpoint_url": proxy.url, "s3.region": "us-east-1"}
        server.delay = DELAY
        for number in range(3):
            begun = time.perf_counter()
            asyncio.run(Table.open(f"uc://main.trips.t{number}", options).log.header())
            figures.append((time.perf_counter() - begun) / DELAY)
        server.delay = 0.0
    server.credentials = None
    return f"{figures[0]:.1f} round trips for the first table of a process, {figures[1]:.1f} and {figures[2]:.1f} for the next ones"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, unity_server(Path(folder)) as server:
        for measure in (latency, idle, trips):
            if not sys.argv[1:] or measure.__name__ in sys.argv[1:]:
                print(f"{measure.__name__}: {measure(server, Path(folder))}", flush=True)


if __name__ == "__main__":
    main()
