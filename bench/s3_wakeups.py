"""From a commit on S3 to its file of changes, by the way in which the daemon learns of it, with its requests and their price.

    python -m bench.s3_wakeups --tables 50 --period 20 --warm 240 --seconds 240 [--modes events adaptive]

One writer commits to all tables, each in its own rhythm: every `period` seconds, give or take half a second. A daemon for each mode follows
all of them at the same time, from moto's S3 and SQS, and delivers to files. A commit counts from the answer to the writer until its file is
in place.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.run import machine
from cdfd.demo.writer import TableWriter
from cdfd.storage.location import open_storage
from tests.support.queues.writers import client
from tests.support.s3.proxy import Proxy, proxied
from tests.support.s3.server import KEY_ID, SECRET, Server, free_port, moto

ROOT = Path(__file__).parents[1]
SCHEMA = pa.schema([("id", pa.int64())])
BUCKET = "lake"
GET, LIST, SQS = 0.40e-6, 5e-6, 0.40e-6
"""USD a request, as docs/s3.md assumes."""
HOURS = 720
"""Of a month."""
START_SECONDS = 600.0


def modes(tables: int, share: int = 720) -> dict[str, dict[str, Any]]:
    """The section `poll` of each mode; `share`: of the budget, for each table."""
    return {
        "events": {"interval": "1s", "max_interval": "1m"},
        "adaptive": {},
        "adaptive, wide": {"interval": "250ms", "max_interval": "1m", "max_requests_per_hour": share * tables},
        "fixed 1 s": {"interval": "1s", "max_interval": "1s"},
        "fixed 5 s": {"interval": "5s", "max_interval": "5s"},
    }


@dataclass
class Followed:
    """A daemon, and what it took."""

    mode: str
    folder: Path
    port: int
    queue: Proxy | None = None
    before: tuple[float, float, int] = (0.0, 0.0, 0)
    waits: list[float] = field(default_factory=list)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if re.match(rf"{name}[ {{]", line))

    def at_tip(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status", timeout=60) as answer:
            tables = json.loads(answer.read())["tables"]
        return sum(table["state"] == "at_tip" for table in tables.values())

    def reading(self) -> tuple[float, float, int]:
        """Now: the time, polls, requests to the queue."""
        return time.time(), self.metric("cdfd_poll_requests_total"), 0 if self.queue is None else len(self.queue.asked)

    def collect(self, commits: dict[tuple[int, int], float]) -> None:
        """The waits of commits, by the times at which files were put in their places."""
        for (number, version), at in commits.items():
            for file in (self.folder / "out" / f"t{number:04}").glob(f"{version:020}*"):
                self.waits.append(max(file.stat().st_ctime - at, 0.0))
        self.waits.sort()

    def quantile(self, share: float) -> float:
        return self.waits[min(len(self.waits) - 1, int(share * len(self.waits)))] if self.waits else float("nan")


@contextmanager
def daemon(
    mode: str, poll: dict[str, Any], tables: int, server: Server, queue: str, folder: Path
) -> Iterator[Followed]:
    folder.mkdir()
    with ExitStack() as stack:
        counted = None
        if mode == "events":
            counted = stack.enter_context(proxied(server.url))
            poll = poll | {"notifications": queue.replace(server.url, counted.url)}
        port = free_port()
        config = {
            "pipeline": "wakeups",
            "tables": [{"name": f"t{number:04}", "uri": f"s3://{BUCKET}/t{number:04}"} for number in range(tables)],
            "sink": {"kind": "files", "path": str(folder / "out"), "fsync": False},
            "storage": {
                "s3": {
                    "endpoint_url": server.url,
                    "region": "us-east-1",
                    "access_key_id": KEY_ID,
                    "secret_access_key": SECRET,
                }
            },
            "progress": {"ledger": "none"},
            "poll": poll,
            "http": {"listen": f"127.0.0.1:{port}"},
            "controls": {"socket": str(folder / "socket")},
        }
        (folder / "config.yaml").write_text(json.dumps(config))
        with (folder / "log").open("wb") as log:
            command = [sys.executable, "-m", "cdfd", "run", "-c", str(folder / "config.yaml")]
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            followed = Followed(mode, folder, port, counted)
            _await_tip(process, followed, tables)
            yield followed
            process.terminate()
            process.wait(30)
        finally:
            process.kill()
            process.wait()


def _await_tip(process: subprocess.Popen[bytes], followed: Followed, tables: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if followed.at_tip() == tables:
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise SystemExit(f"the daemon did not get to the tip:\n{(followed.folder / 'log').read_text()[-3000:]}")


def notify(server: Server) -> str:
    """The URL of a new queue with the events of a new bucket."""
    with closing(client(server, "s3")) as s3, closing(client(server, "sqs")) as sqs:
        s3.create_bucket(Bucket=BUCKET)
        url: str = sqs.create_queue(QueueName="events")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        rule = {"Key": {"FilterRules": [{"Name": "suffix", "Value": ".json"}]}}
        queue = {"QueueArn": arn, "Events": ["s3:ObjectCreated:*"], "Filter": rule}
        s3.put_bucket_notification_configuration(
            Bucket=BUCKET, NotificationConfiguration={"QueueConfigurations": [queue]}
        )
    return url.replace(url.partition("//")[2].partition("/")[0], server.url.partition("//")[2])


async def create(server: Server, tables: int) -> list[TableWriter]:
    writers = []
    for number in range(tables):
        writer = TableWriter(open_storage(f"s3://{BUCKET}/t{number:04}", server.options()), SCHEMA)
        await writer.create()
        writers.append(writer)
    return writers


async def commit(writers: list[TableWriter], period: float, seconds: float) -> dict[tuple[int, int], float]:
    """Commit for so many seconds: table and version, and the time of the answer."""
    commits = {}

    async def write(number: int, writer: TableWriter) -> None:
        chance = random.Random(number)
        phase, began, count = chance.uniform(0, period), time.monotonic(), 0
        while (due := phase + count * period + chance.gauss(0, 0.5)) < seconds:
            await asyncio.sleep(max(0.0, due - (time.monotonic() - began)))
            await writer.insert(pa.table({"id": [count]}, schema=SCHEMA))
            count += 1
            versions[number] += 1
            commits[number, versions[number]] = time.time()

    await asyncio.gather(*(write(number, writer) for number, writer in enumerate(writers)))
    return commits


versions: dict[int, int] = {}


def measure(tables: int, share: int, period: float, warm: float, seconds: float, chosen: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="cdfd-wakeups-") as name, moto(Path(name)) as server, ExitStack() as stack:
        queue = notify(server)
        loop = asyncio.new_event_loop()
        writers = loop.run_until_complete(create(server, tables))
        versions.update(dict.fromkeys(range(tables), 0))
        followed = [
            stack.enter_context(
                daemon(mode, modes(tables, share)[mode], tables, server, queue, Path(name, f"mode{number}"))
            )
            for number, mode in enumerate(chosen)
        ]
        print(f"{len(followed)} daemons of {tables} tables are at the tip", file=sys.stderr, flush=True)
        loop.run_until_complete(commit(writers, period, warm))
        for each in followed:
            each.before = each.reading()
        commits = loop.run_until_complete(commit(writers, period, seconds))
        after = [each.reading() for each in followed]
        time.sleep(10)
        for each, (at, polls, messages) in zip(followed, after, strict=True):
            each.collect(commits)
            hours = (at - each.before[0]) / 3600
            gets, sqs = (polls - each.before[1]) / hours, (messages - each.before[2]) / hours
            lists = 4 * tables
            cost = HOURS * ((gets - lists) * GET + lists * LIST + sqs * SQS)
            cells = [
                tables,
                each.mode,
                f"{len(each.waits)} of {len(commits)}",
                f"{each.quantile(0.5):.2f} s",
                f"{each.quantile(0.99):.2f} s",
                f"{gets / tables:,.0f}",
                f"{gets + sqs:,.0f}",
                f"{cost:,.2f}",
            ]
            print("|", " | ".join(map(str, cells)), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, nargs="+", default=[1, 50])
    parser.add_argument("--share", type=int, default=720, help="requests an hour of a table, of `adaptive, wide`")
    parser.add_argument("--period", type=float, default=20.0)
    parser.add_argument("--warm", type=float, default=240.0)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--modes", nargs="+", default=list(modes(1)))
    options = parser.parse_args()
    print(machine(), f"load {os.getloadavg()[0]:.1f}", flush=True)
    print("| tables | mode | commits | p50 | p99 | polls an hour of a table | requests an hour | USD a month |")
    print("|---|---|---|---|---|---|---|---|")
    for tables in options.tables:
        measure(tables, options.share, options.period, options.warm, options.seconds, options.modes)


if __name__ == "__main__":
    main()
