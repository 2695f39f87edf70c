"""A queue's messages wake the readers of their tables. If the queue falls silent, readers poll."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from cdfd.errors import StorageError
from cdfd.log.notifications import MAX_DELAY_SECONDS, Notifications, NotifiedWatch
from cdfd.log.watch import Backoff
from cdfd.storage.queues.base import Message, ObjectCreated
from tests.support.lake import manual_clock


class Queue:
    """Messages, and errors, that a test puts into it."""

    def __init__(self) -> None:
        self.coming: asyncio.Queue[list[Message] | Exception] = asyncio.Queue()
        self.deleted: list[str] = []
        self.open_count = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Queue]:
        self.open_count += 1
        yield self

    async def receive(self) -> Sequence[Message]:
        item = await self.coming.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def check(self) -> None: ...

    async def delete(self, receipts: Sequence[str]) -> None:
        self.deleted += receipts


def created(key: str, receipt: str = "r", bucket: str = "b") -> Message:
    return Message(receipt, [ObjectCreated(bucket, key)])


ENTRY = "lake/t/_delta_log/00000000000000000003.json"


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Reader:
    """Looks, and counts how often; finds what a test says is there."""

    def __init__(self, watch: NotifiedWatch) -> None:
        self.watch = watch
        self.looks = 0
        self.there = 0
        self.task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        backoff = Backoff(1, 8)
        while True:
            self.looks += 1
            if self.there:
                self.there -= 1
                self.watch.arrived()
                backoff = backoff.reset()
                continue
            await self.watch.wait(backoff.delay)
            backoff = backoff.longer()

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_the_table_that_is_meant_is_woken() -> None:
    clock, queue = manual_clock(), Queue()
    async with Notifications(queue.open, clock).running() as notifications:
        first = notifications.watch("s3://b/lake/t", 8)
        second = notifications.watch("s3://b/lake/t2", 8)
        root = notifications.watch("s3://b", 8)
        waiting = [asyncio.create_task(watch.wait(1e6)) for watch in (first, second, root)]
        await turns()
        others = [created(key) for key in (f"x/{ENTRY}", "lake/t/_delta_log/_last_checkpoint", "lake/t/x.json", "")]
        queue.coming.put_nowait([*others, created(ENTRY, bucket="c"), created("_delta_log/3.json", "root")])
        queue.coming.put_nowait([Message("strange", None)])
        await turns()
        assert [task.done() for task in waiting] == [False, False, True]
        queue.coming.put_nowait([created(ENTRY, "ours")])
        await turns()
        assert [task.done() for task in waiting] == [True, False, True]
        assert queue.deleted == ["r"] * 5 + ["root", "ours"]
        for task in waiting:
            task.cancel()
        for watch in (first, second, root, root):
            watch.close()
        assert not notifications._watches  # many tables come and go in the life of a process


async def test_tables_are_looked_at_rarely_while_notifications_come(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        clock, queue = manual_clock(), Queue()
        async with Notifications(queue.open, clock).running() as notifications:
            watch = notifications.watch("s3://b/lake/t", 8)
            reader = Reader(watch)
            await turns()
            assert not watch.trusted
            reader.there = 1
            queue.coming.put_nowait([created(ENTRY)])
            await turns()
            assert watch.trusted
            looks = reader.looks
            for _ in range(80):
                clock.advance(1)
                await turns(4)
            assert reader.looks - looks == 10

            # A commit without a notification is found by then, and if none comes for long, they do not count any more.
            reader.there = 1
            for _ in range(int(MAX_DELAY_SECONDS) + 20):
                clock.advance(1)
                await turns(4)
            assert not watch.trusted
            assert [line.message for line in caplog.records] == [
                "a commit came without a notification, polling instead"
            ]
            queue.coming.put_nowait([created(ENTRY)])
            await turns()
            assert watch.trusted
            await reader.end()


async def test_when_they_end_of_a_bug_tables_are_polled_as_without_them(caplog: pytest.LogCaptureFixture) -> None:
    clock, queue = manual_clock(), Queue()
    async with Notifications(queue.open, clock).running() as notifications:
        watch = notifications.watch("s3://b/lake/t", 8)
        queue.coming.put_nowait([created(ENTRY)])
        await turns()
        assert watch.trusted
        queue.coming.put_nowait(KeyError("a bug"))
        await turns()
        assert not watch.trusted
    [line] = caplog.records
    assert "notifications ended unexpectedly, polling instead" in line.message
    assert line.exc_info is not None


async def test_a_queue_that_does_not_wait_for_messages_is_read_once_a_second() -> None:
    clock, queue = manual_clock(), Queue()
    async with Notifications(queue.open, clock).running():
        for _ in range(50):
            queue.coming.put_nowait([])
        await turns(400)
        assert queue.coming.qsize() == 49
        clock.advance(1)
        await turns(400)
        assert queue.coming.qsize() == 48


async def test_a_queue_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and tried again; meanwhile tables are looked at as often as without."""

    with caplog.at_level(logging.INFO):
        clock, queue = manual_clock(), Queue()
        async with Notifications(queue.open, clock).running() as notifications:
            watch = notifications.watch("s3://b/lake/t", 8)
            queue.coming.put_nowait([created(ENTRY)])
            await turns()
            assert watch.trusted
            for delay in (1, 2, 4):
                queue.coming.put_nowait(StorageError("no such queue"))
                await turns()
                assert not watch.trusted
                clock.advance(delay)
                await turns()
            assert queue.open_count == 4
            queue.coming.put_nowait([])
            await turns()
            assert watch.trusted
    assert [line.message for line in caplog.records] == [
        "no notifications of new commits, polling instead: no such queue",
        "notifications of new commits can be received again",
    ]


async def test_foreign_messages_are_reported_once_and_left(caplog: pytest.LogCaptureFixture) -> None:
    clock, queue = manual_clock(), Queue()
    async with Notifications(queue.open, clock).running():
        for _ in range(3):
            queue.coming.put_nowait([Message("strange", None), created(ENTRY, "event")])
        await turns()
    assert [line.message for line in caplog.records] == [
        "the queue has messages that are not events of the store; cdfd leaves them in the queue"
    ]
    assert queue.deleted == ["event"] * 3


@pytest.mark.parametrize(
    "uri",
    [
        "s3://b/lake/t",
        "gs://b/lake/t",
        "gcs://b/lake/t",
        "az://b/lake/t",
        "abfs://b/lake/t",
        "abfss://b@account.dfs.core.windows.net/lake/t",
    ],
)
async def test_table_of_each_store_is_woken_by_bucket_and_key(uri: str) -> None:
    clock, queue = manual_clock(), Queue()
    async with Notifications(queue.open, clock).running() as notifications:
        watch = notifications.watch(uri, 8)
        waiting = asyncio.create_task(watch.wait(1e6))
        await turns()
        queue.coming.put_nowait([created(ENTRY)])
        await turns()
        assert waiting.done()
