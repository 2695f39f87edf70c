"""Change rows from S3: ours and `deltalake`'s in turn, on the same server of this machine, near and 20 ms away.

The server is versitygw where Go is found, else moto's; `python -m bench.s3_rows` also says what a reader asks for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import boto3

from bench import tables
from bench.probe import measure
from bench.table_set import TABLES
from tests.support.s3.proxy import Proxy, proxied
from tests.support.s3.server import KEY_ID, SECRET, Server, missing, moto, versitygw

ROOT = Path(__file__).parents[1]
BUCKET = "lake"
FAR_SECONDS = 0.02
OF_THE_SET = ("large-file", "rs-updates", "files-10k", "long-strings", "nested")
"""Tables of `bench.table_set` that are read here too."""

Measured = dict[str, float]


@contextmanager
def serve(*folders: str) -> Iterator[Server]:
    """A server with these tables in it, each under its folder's name."""
    place = Path(tempfile.mkdtemp(prefix="cdfd-s3-"))
    try:
        with (versitygw if missing() is None else moto)(place) as server:
            client = boto3.client(
                "s3",
                endpoint_url=server.url,
                aws_access_key_id=KEY_ID,
                aws_secret_access_key=SECRET,
                region_name="us-east-1",
            )
            client.create_bucket(Bucket=BUCKET)
            for folder in map(Path, folders):
                for file in sorted(folder.rglob("*")):
                    if file.is_file():
                        client.upload_file(str(file), BUCKET, f"{folder.name}/{file.relative_to(folder)}")
            client.close()
            yield server
    finally:
        shutil.rmtree(place, ignore_errors=True)


def changes_cdfd(uri: str) -> Measured:
    import cdfd
    from cdfd.storage.s3 import storage as s3  # noqa: F401 - imports do not count, as for the peer

    read = cdfd.changes
    return measure(lambda: len(read(uri, 0).read_all()))


def probe(name: str, url: str, uri: str) -> Measured:
    """A reader as a process that finds the server in its environment."""
    # The allocator of cdfd's commands. Arrow's own asks for huge pages, whose cost varies with the machine's memory.
    environment = Server(url).environment() | {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
    module = "bench.s3_rows" if name == "changes_cdfd" else "bench.probe"
    command = [sys.executable, "-m", module, name, uri]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    measured: Measured = json.loads(done.stdout.splitlines()[-1])
    return measured


@dataclass(frozen=True, slots=True)
class Compared:
    """A table, read by both from one place: each pair is ours and the peer's, of runs in turn.

    Attributes:
        what: the table, and where it is.
        rows: change rows a second, medians.
        cpu: seconds of processor time, medians.
        worst: the ratio of cdfd's rows a second to the peer's, in the worst round.
        target: for the ratio of cdfd's rows a second to the peer's.
    """

    what: str
    rows: tuple[float, float]
    cpu: tuple[float, float]
    worst: float
    target: float


def read_in_turn(what: str, url: str, uri: str, runs: int, target: float) -> Compared:
    """Both readers in turn; the first round does not count."""
    taken: dict[str, list[Measured]] = {"changes_cdfd": [], "changes_delta_rs": []}
    for round_ in range(runs + 1):
        for name, measured in taken.items():
            figures = probe(name, url, uri)
            if round_:
                measured.append(figures)
    ours, peers = taken.values()
    counts = {figures["count"] for figures in (*ours, *peers)}
    if len(counts) != 1:
        raise SystemExit(f"not the same rows: {counts}")
    seconds, cpu = (tuple(median(run[key] for run in runs) for runs in (ours, peers)) for key in ("seconds", "cpu"))
    rows = counts.pop()
    worst = min(peer["seconds"] / own["seconds"] for own, peer in zip(ours, peers, strict=True))
    return Compared(what, (rows / seconds[0], rows / seconds[1]), (cpu[0], cpu[1]), worst, target)


def compare(runs: int) -> Iterator[Compared]:
    """Tables of several layouts, near and far."""
    places = {
        "eight versions": tables.changes_table(),
        "200 small versions": many_commits(),
        **{TABLES[name].about: TABLES[name].path() for name in OF_THE_SET},
    }
    with serve(*places.values()) as server, proxied(server.url, FAR_SECONDS) as far:
        for what, path in places.items():
            for url, where, target in ((server.url, "near", 1.0), (far.url, "20 ms away", 1.3)):
                uri = f"s3://{BUCKET}/{Path(path).name}"
                yield read_in_turn(f"{what}, {where}", url, uri, runs, target)


def many_commits() -> str:
    """A table of 200 versions of one file each."""

    def build(path: Path) -> None:
        tables.create(path, tables.CHANGE_DATA_FEED)
        for version in range(1, 201):
            action = tables.add_file(path, tables.orders(version * 1000, 1000))
            tables.write_commit(path, version, [action])

    return tables.cached("commits-200", build)


def requests(work: Callable[[Proxy], object]) -> int:
    """How many requests `work` makes on a table of 200 small versions."""
    many = many_commits()
    with serve(many) as server, proxied(server.url) as proxy:
        work(proxy)
        return len(proxy.asked)


def main() -> None:
    if sys.argv[1:2] == ["changes_cdfd"]:
        print(json.dumps(changes_cdfd(sys.argv[2])))
        return
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    start = time.perf_counter()
    for figures in compare(runs):
        (ours, peer), (cpu, peer_cpu) = figures.rows, figures.cpu
        print(
            f"{figures.what:90} {ours / 1e6:7.3f} M/s {peer / 1e6:7.3f} M/s {ours / peer:5.2f}, worst {figures.worst:5.2f} "
            f"(target {figures.target}), CPU {cpu:.2f} s {peer_cpu:.2f} s",
            flush=True,
        )
    print(f"{time.perf_counter() - start:.0f} s on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
