"""Worker threads of sinks: the order of calls, and threads that end while nothing is to do. Turns for opening tables."""

import asyncio
import threading
import time

import pytest

from cdfd.deliver.admission import Admission
from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.worker import Worker, wait_for_result

WITHIN = 20.0
LARGE = 2 << 20


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def wait_for_end(name: str) -> None:
    deadline = time.monotonic() + WITHIN
    while threads(name):
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_an_idle_worker_has_no_thread_and_the_next_call_starts_one() -> None:
    worker = Worker("idle worker", idle=0.01)
    assert not threads("idle worker")
    for number in range(3):
        assert worker.submit(lambda number=number: number).result(WITHIN) == number
        wait_for_end("idle worker")
    worker.close()
    with pytest.raises(SinkError, match="closed"):
        worker.submit(int)
    assert not threads("idle worker")


def test_calls_run_one_after_the_other_also_while_threads_come_and_go() -> None:
    worker, done = Worker("busy worker", idle=0.0005), []
    running = 0

    def call(number: int) -> None:
        nonlocal running
        running += 1
        assert running == 1
        done.append(number)
        running -= 1

    last = None
    for number in range(3000):
        last = worker.submit(lambda number=number: call(number))
        if number % 50 == 0:
            time.sleep(0.0007)
    assert last is not None
    last.result(WITHIN)
    assert done == list(range(3000))
    worker.close()
    wait_for_end("busy worker")


def test_closing_completes_the_calls_before_it() -> None:
    async def scenario() -> None:
        worker = Worker("closing worker", idle=0.01)
        waiting = [worker.submit(lambda: time.sleep(0.002)) for _ in range(5)]
        worker.close()
        for each in waiting:
            await wait_for_result(each, WITHIN)

    asyncio.run(scenario())
    wait_for_end("closing worker")


def test_a_call_whose_thread_cannot_start_fails_and_later_calls_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unstartable(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("no more threads")

    worker, done = Worker("unlucky worker", idle=0.01), list[int]()
    with monkeypatch.context() as patches:
        patches.setattr("cdfd.sinks.kafka.client.worker.Thread", Unstartable)
        with pytest.raises(RuntimeError, match="no more threads"):
            worker.submit(lambda: done.append(1))
    worker.submit(lambda: done.append(2)).result(WITHIN)
    worker.close()
    wait_for_end("unlucky worker")
    assert done == [2]


def test_turns_are_limited_and_a_table_that_hangs_does_not_keep_the_others_waiting() -> None:
    async def scenario() -> None:
        turns, inside, most = Admission(2, WITHIN), 0, 0

        async def opens() -> None:
            nonlocal inside, most
            async with turns.admit(LARGE):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.002)
                inside -= 1

        await asyncio.gather(*(opens() for _ in range(10)))
        assert most == 2

        impatient = Admission(1, 0.01)
        hanging = asyncio.create_task(hang(impatient))
        await asyncio.sleep(0)
        async with asyncio.timeout(WITHIN), impatient.admit(LARGE):
            pass
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        async with asyncio.timeout(WITHIN):
            async with impatient.admit(LARGE):
                pass

    asyncio.run(scenario())


async def hang(turns: Admission) -> None:
    async with turns.admit(LARGE):
        await asyncio.Event().wait()
