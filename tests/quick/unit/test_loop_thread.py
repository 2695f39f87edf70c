"""The event loop of blocking functions: in one thread for local files, with worker threads for others."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import cdfd
from cdfd.runtime.tasks import LoopThread


def thread_name() -> str:
    return threading.current_thread().name


@pytest.mark.parametrize(("local", "runs_itself"), [(True, True), (False, False)])
def test_the_loop_of_local_files_runs_blocking_functions(local: bool, runs_itself: bool) -> None:
    with LoopThread(local=local) as loop:
        assert (loop.run(asyncio.to_thread(thread_name)) == "cdfd-log") is runs_itself


IN_A_FORK = """
import os, sys, cdfd
reader = cdfd.changes(sys.argv[1])
reader.read_next_batch()
if (child := os.fork()) == 0:
    try:
        reader.read_all()
    except cdfd.errors.ConfigError as error:
        print(error)
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
print(reader.read_all().num_rows)
"""


def test_a_reader_that_is_half_read_belongs_to_its_process(tmp_path: Path) -> None:
    for _ in range(3):
        write_deltalake(tmp_path, pa.table({"id": range(100_000)}), mode="append")
    command = [sys.executable, "-W", "ignore", "-c", IN_A_FORK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=60)
    told, count = done.stdout.splitlines()
    assert told == "this reader belongs to another process. Open a new one in each process"
    assert 0 < int(count) < 300_000
    assert not done.stderr


class PanicError(BaseException):
    """As a panic in native code, which is no `Exception`."""


@pytest.mark.parametrize("error", [ZeroDivisionError, PanicError])
@pytest.mark.parametrize("local", [True, False])
def test_errors_of_blocking_functions_are_raised(local: bool, error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    with LoopThread(local=local) as loop, pytest.raises(error):
        loop.run(asyncio.wait_for(asyncio.to_thread(fail), 10))


@pytest.mark.parametrize("local", [True, False])
def test_blocking_functions_give_way_to_others(local: bool) -> None:
    """Also one after the other without end: the work can be cancelled between them."""

    async def endless() -> None:
        while True:
            await asyncio.to_thread(thread_name)

    async def cancelled() -> bool:
        work = asyncio.create_task(endless())
        await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.wait([work])
        return work.cancelled()

    with LoopThread(local=local) as loop:
        assert loop.run(cancelled())


def test_a_local_table_is_read_without_worker_threads_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "orders"
    for first in range(3):
        write_deltalake(path, pa.table({"id": [first]}), mode="append")
    started, start = list[str](), threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    assert cdfd.changes(path).read_all().num_rows == cdfd.snapshot(path).read_all().num_rows == 3
    assert "cdfd-log" in started
    assert not [name for name in started if name.startswith("asyncio")]
