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
from pathlib import Path
from statistics import median

import boto3

from bench import tables
from bench.probe import timed
from tests.s3.proxy import Proxy, proxied
from tests.s3.server import KEY_ID, SECRET, Server, missing, moto, versitygw

ROOT = Path(__file__).parents[1]
BUCKET = "lake"
FAR_SECONDS = 0.02

Measured = dict[str, float]


@contextmanager
def served(*folders: str) -> Iterator[Server]:
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
    return timed(lambda: len(read(uri, 0).read_all()))


def probed(name: str, url: str, uri: str) -> Measured:
    """A reader as a process that finds the server in its environment."""
    module = "bench.s3_rows" if name == "changes_cdfd" else "bench.probe"
    command = [sys.executable, "-m", module, name, uri]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=Server(url).environment())
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    measured: Measured = json.loads(done.stdout.splitlines()[-1])
    return measured


def rows_per_second(url: str, uri: str, runs: int) -> dict[str, float]:
    """Of each reader, the median of `runs`, taken in turn; the first round does not count."""
    taken: dict[str, list[float]] = {"changes_cdfd": [], "changes_delta_rs": []}
    counts = set()
    for round_ in range(runs + 1):
        for name, seconds in taken.items():
            measured = probed(name, url, uri)
            counts.add(measured["count"])
            if round_:
                seconds.append(measured["seconds"])
    if len(counts) != 1:
        raise SystemExit(f"not the same rows: {counts}")
    return {name: counts.copy().pop() / median(seconds) for name, seconds in taken.items()}


def compared(runs: int) -> Iterator[tuple[str, float, float, float]]:
    """(what, ours, the peer's, target of ours over the peer's): change rows a second."""
    many = many_commits()
    with served(tables.changes_table(), many) as server, proxied(server.url, FAR_SECONDS) as far:
        for uri, what in (
            (f"s3://{BUCKET}/changes", "eight versions"),
            (f"s3://{BUCKET}/{Path(many).name}", "200 small versions"),
        ):
            for url, where, target in ((server.url, "near", 0.8), (far.url, "20 ms away", 1.0)):
                found = rows_per_second(url, uri, runs)
                yield f"{what}, {where}", found["changes_cdfd"], found["changes_delta_rs"], target


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
    with served(many) as server, proxied(server.url) as proxy:
        work(proxy)
        return len(proxy.asked)


def main() -> None:
    if sys.argv[1:2] == ["changes_cdfd"]:
        print(json.dumps(changes_cdfd(sys.argv[2])))
        return
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    start = time.perf_counter()
    for what, ours, theirs, target in compared(runs):
        print(
            f"{what:32} {ours / 1e6:8.3f} M/s {theirs / 1e6:8.3f} M/s {ours / theirs:6.2f} (target {target})",
            flush=True,
        )
    print(f"{time.perf_counter() - start:.0f} s on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
