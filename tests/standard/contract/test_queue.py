"""The contract of every `Queue`.

To add an implementation, add a function to `SERVICES` that yields what writes into a queue of its own.
"""

import asyncio
import os
import uuid
from collections.abc import Callable
from contextlib import closing

import pytest

from cdfd.errors import StorageError
from cdfd.log.notifications import Notifications
from cdfd.runtime.clock import SystemClock
from cdfd.storage.queues.address import QueueAddress
from cdfd.storage.queues.base import Message, ObjectCreated, Queue
from cdfd.storage.queues.factory import open_queue
from tests.support.lake import WITHIN
from tests.support.queues.writers import AzureQueue, Sqs, Subscription, Writer, client
from tests.support.s3.server import KEY_ID, SECRET

KEY = "lake/my orders+ü%41/_delta_log/00000000000000000003.json"
FOREIGN = ["hello", "{", "[]", '{"a": "<&>"}', "x" * 40_000, "4" * 64]


def new_name() -> str:
    return f"events-{uuid.uuid4().hex[:12]}"


def sqs(request: pytest.FixtureRequest, *, bridge: bool = False) -> Writer:
    server = request.getfixturevalue("moto_server")
    with closing(client(server, "sqs")) as service:
        return Sqs(server, service.create_queue(QueueName=new_name())["QueueUrl"], bridge=bridge)


def event_bridge(request: pytest.FixtureRequest) -> Writer:
    return sqs(request, bridge=True)


def pubsub(request: pytest.FixtureRequest) -> Writer:
    return Subscription(request.getfixturevalue("pubsub_service"), new_name())


def event_grid(request: pytest.FixtureRequest) -> Writer:
    return AzureQueue(request.getfixturevalue("azurite_account"), new_name())


def cloud_events(request: pytest.FixtureRequest) -> Writer:
    return AzureQueue(request.getfixturevalue("azurite_account"), new_name(), cloud_events=True)


SERVICES: list[Callable[[pytest.FixtureRequest], Writer]] = [sqs, event_bridge, pubsub, event_grid, cloud_events]


@pytest.fixture(params=SERVICES, ids=lambda service: service.__name__)
def writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Writer:
    for name in [each for each in os.environ if each.startswith(("AZURE_", "PUBSUB_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    made: Writer = request.param(request)
    for name, value in made.variables.items():
        monkeypatch.setenv(name, value)
    return made


async def receive(queue: Queue, count: int) -> list[Message]:
    messages: list[Message] = []
    async with asyncio.timeout(WITHIN):
        while len(messages) < count:
            messages += await queue.receive()
    return messages


async def test_new_object_is_announced_by_its_bucket_and_key(writer: Writer) -> None:
    await asyncio.to_thread(writer.created, "shop", KEY)
    async with open_queue(QueueAddress.parse(writer.address), writer.s3) as queue:
        [message] = await receive(queue, 1)
    assert ObjectCreated("shop", KEY) in (message.created or ())


async def test_deleted_object_is_an_event_without_new_objects(writer: Writer) -> None:
    await asyncio.to_thread(writer.deleted, "shop", KEY)
    async with open_queue(QueueAddress.parse(writer.address), writer.s3) as queue:
        [message] = await receive(queue, 1)
    assert message.created is not None
    assert not message.created


async def test_foreign_messages_are_no_events_and_stay(writer: Writer) -> None:
    for text in FOREIGN:
        await asyncio.to_thread(writer.foreign, text)
    async with open_queue(QueueAddress.parse(writer.address), writer.s3) as queue:
        messages = await receive(queue, len(FOREIGN))
        assert [message.created for message in messages] == [None] * len(FOREIGN)
        await queue.delete([])
    assert await asyncio.to_thread(writer.left) == len(FOREIGN)


async def test_repeated_events_out_of_order_are_received_and_deleted(writer: Writer) -> None:
    keys = [f"t/_delta_log/{version:020}.json" for version in (7, 5, 7, 6, 5)]
    for key in keys:
        await asyncio.to_thread(writer.created, "shop", key)
    async with open_queue(QueueAddress.parse(writer.address), writer.s3) as queue:
        messages = await receive(queue, len(keys))
        assert sorted(message.created[0].key for message in messages if message.created) == sorted(keys)
        receipts = [message.receipt for message in messages]
        await queue.delete(receipts[:3])
        await queue.delete(receipts)  # the first ones again
    assert await asyncio.to_thread(writer.left) == 0


async def test_check_takes_no_message(writer: Writer) -> None:
    async with open_queue(QueueAddress.parse(writer.address), writer.s3) as queue:
        await queue.check()
        await asyncio.to_thread(writer.created, "shop", KEY)
        await queue.check()
        [message] = await receive(queue, 1)
    assert message.created


async def test_queue_that_does_not_exist_is_named(writer: Writer) -> None:
    writer.remove()

    async def check() -> None:
        async with open_queue(QueueAddress.parse(writer.address), writer.s3) as queue:
            await queue.check()

    async def read() -> None:
        async with open_queue(QueueAddress.parse(writer.address), writer.s3) as queue:
            await queue.receive()

    for attempt in (check, read):
        with pytest.raises(StorageError, match="events-") as caught:
            await asyncio.wait_for(attempt(), WITHIN)
        assert caught.value.retriable
        assert str(caught.value.hint).startswith("Check the")


async def test_server_that_is_down_is_an_error_without_secrets(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    down = "127.0.0.1:1"
    address = writer.address
    if isinstance(writer, Sqs):
        address = f"http://{down}/0/gone"
    for name, value in writer.variables.items():
        live = value.partition("QueueEndpoint=http://")[2].partition("/")[0] or value
        monkeypatch.setenv(name, value.replace(live, down))

    async def read() -> None:
        async with open_queue(QueueAddress.parse(address), writer.s3) as queue:
            await queue.receive()

    with pytest.raises(StorageError) as caught:
        await asyncio.wait_for(read(), WITHIN)
    assert not any(secret in str(caught.value) for secret in (SECRET, KEY_ID, "Eby8", "Signature"))


async def test_event_wakes_the_reader_of_its_table(writer: Writer) -> None:
    uri = writer.table.format(bucket="shop", folder="lake/my orders")
    address = QueueAddress.parse(writer.address)
    async with Notifications(lambda: open_queue(address, writer.s3), SystemClock()).running() as notifications:
        watch = notifications.watch(uri, 3600)
        waiting = asyncio.create_task(watch.wait(3600))
        await asyncio.to_thread(writer.foreign, "hello")
        await asyncio.to_thread(writer.created, "other", "lake/my orders/_delta_log/00000000000000000003.json")
        await asyncio.to_thread(writer.created, "shop", "lake/my orders/part-0.parquet")
        async with asyncio.timeout(WITHIN):
            while await asyncio.to_thread(writer.left) != 1:
                await asyncio.sleep(0.05)
        assert not waiting.done()
        await asyncio.to_thread(writer.created, "shop", "lake/my orders/_delta_log/00000000000000000003.json")
        async with asyncio.timeout(WITHIN):
            await waiting
        watch.close()
