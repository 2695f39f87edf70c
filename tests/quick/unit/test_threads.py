"""The threads of a daemon: they start on demand, never more than the limit, and end when there is nothing to do."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from cdfd.runtime import threads as executor
from cdfd.runtime.threads import Threads

WITHIN = 20.0


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Threads]:
    def limited(most: int = executor.MOST, idle: float = executor.IDLE_SECONDS) -> Threads:
        monkeypatch.setattr(executor, "MOST", most)
        monkeypatch.setattr(executor, "IDLE_SECONDS", idle)
        return Threads()

    return limited


def wait_for(threads: Threads, count: int) -> None:
    deadline = time.monotonic() + WITHIN
    while len(threads._members) != count:
        assert time.monotonic() < deadline, len(threads._members)
        time.sleep(0.002)


def test_calls_run_at_once_in_threads_that_end_when_idle(limits: Callable[..., Threads]) -> None:
    threads, together = limits(idle=0.02), threading.Barrier(30)
    for _ in range(3):
        waiting = [threads.submit(together.wait, WITHIN) for _ in range(30)]
        assert sorted(each.result(WITHIN) for each in waiting) == list(range(30))
        wait_for(threads, 0)
    threads.shutdown()


def test_one_call_after_the_other_needs_one_thread(limits: Callable[..., Threads]) -> None:
    threads = limits(idle=WITHIN)
    for number in range(500):
        assert threads.submit(lambda number=number: number).result(WITHIN) == number
    assert len(threads._members) <= 2  # a result is there a moment before its thread is free
    threads.shutdown()
    assert len(threads._members) == 0


def test_a_few_calls_a_second_do_not_keep_many_threads_alive(limits: Callable[..., Threads]) -> None:
    threads, together = limits(idle=0.3), threading.Barrier(40)
    for each in [threads.submit(together.wait, WITHIN) for _ in range(40)]:
        each.result(WITHIN)
    deadline = time.monotonic() + WITHIN
    while len(threads._members) > 5:
        assert time.monotonic() < deadline, len(threads._members)
        threads.submit(int).result(WITHIN)
        time.sleep(0.005)
    threads.shutdown()


def test_no_more_threads_than_the_limit_and_no_call_is_lost(limits: Callable[..., Threads]) -> None:
    threads, most, running, lock = limits(3, idle=0.001), 0, 0, threading.Lock()

    def call(number: int) -> int:
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.0005 * (number % 3))
        with lock:
            running -= 1
        return number

    waiting = []
    for number in range(2000):
        waiting.append(threads.submit(call, number))
        if number % 40 == 0:
            time.sleep(0.002)
    assert [each.result(WITHIN) for each in waiting] == list(range(2000))
    assert most == 3
    wait_for(threads, 0)
    assert threads.submit(call, 1).result(WITHIN) == 1
    threads.shutdown()


def test_errors_and_cancellations_reach_the_caller(limits: Callable[..., Threads]) -> None:
    threads, gate = limits(1), threading.Event()

    def fail() -> None:
        raise ValueError("no")

    blocked = threads.submit(gate.wait, WITHIN)
    cancelled = threads.submit(fail)
    assert cancelled.cancel()
    failed = threads.submit(fail)
    gate.set()
    assert blocked.result(WITHIN)
    with pytest.raises(ValueError, match="no"):
        failed.result(WITHIN)
    waiting = threads.submit(int)
    threads.shutdown()
    assert waiting.result(WITHIN) == 0
    with pytest.raises(RuntimeError, match="shutdown"):
        threads.submit(int)


def test_a_call_whose_thread_cannot_start_waits_for_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, gate = Threads(), threading.Event()
    busy = threads.submit(gate.wait, WITHIN)
    monkeypatch.setattr(executor, "Thread", Unstartable)
    waiting = [threads.submit(int, number) for number in range(3)]
    assert len(threads._members) == 1
    gate.set()
    assert busy.result(WITHIN)
    assert [each.result(WITHIN) for each in waiting] == [0, 1, 2]
    threads.shutdown()


def test_without_any_thread_a_call_fails_and_later_calls_do_not(
    limits: Callable[..., Threads], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = limits(1)
    with monkeypatch.context() as patches:
        patches.setattr(executor, "Thread", Unstartable)
        with pytest.raises(RuntimeError, match="no more threads"):
            threads.submit(int)
    assert threads.submit(int, 1).result(WITHIN) == 1
    threads.shutdown()


class Unstartable(threading.Thread):
    def start(self) -> None:
        raise RuntimeError("no more threads")


def test_asyncio_takes_it_as_its_executor() -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(Threads())
        assert await asyncio.gather(*(asyncio.to_thread(int, number) for number in range(50))) == list(range(50))

    asyncio.run(scenario())
    assert not [thread for thread in threading.enumerate() if thread.name == "cdfd-call"]
