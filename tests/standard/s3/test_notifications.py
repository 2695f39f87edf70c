"""Wake-ups by a queue that S3 tells of new objects: moto does both."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest

from cdfd.errors import ConfigError, StorageError
from cdfd.log.notifications import Notifications
from cdfd.log.table import Table
from cdfd.runtime.clock import SystemClock
from cdfd.storage.s3 import sqs
from cdfd.storage.s3.options import parse
from tests.standard.s3.test_requests import new_table
from tests.support.commands import cdfd
from tests.support.kafka.history import Location
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.shared import SharedBroker
from tests.support.lake import WITHIN, rows
from tests.support.s3.server import KEY_ID, SECRET, Server

HOURS = 7200.0


@contextmanager
def client(server: Server, service: str) -> Iterator[Any]:
    found = boto3.client(
        service,
        endpoint_url=server.url,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def queue(moto_server: Server, bucket: str) -> str:
    """The URL of a queue that receives an event for each object written to `bucket`."""
    with client(moto_server, "sqs") as asked:
        url: str = asked.create_queue(QueueName=bucket)["QueueUrl"]
        arn = asked.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    told = {"QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]}
    with client(moto_server, "s3") as asked:
        asked.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=told)
    return url


def left(server: Server, queue: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    with client(server, "sqs") as asked:
        found = asked.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    return sum(map(int, found.values()))


async def test_a_commit_wakes_its_reader(moto_server: Server, bucket: str, queue: str) -> None:
    """Polls alone would take hours. Messages that are not from S3 stay in the queue."""
    uri = f"s3://{bucket}/lake/my orders"
    options = parse(moto_server.options())

    with client(moto_server, "sqs") as asked:
        asked.send_message(QueueUrl=queue, MessageBody="hello")
    writer = await new_table(moto_server, uri)
    table = Table.open(uri, moto_server.options())
    clock = SystemClock()
    name = sqs.QueueName.parse(queue)
    async with Notifications(partial(sqs.open_queue, name, options), clock).running() as notifications:
        with table.tailer(clock, HOURS, HOURS, notifications=notifications) as tailer:
            async with aclosing(tailer.entries(2)) as entries:  # type: ignore[type-var]
                for version in range(2, 6):
                    async with asyncio.timeout(WITHIN):
                        coming = asyncio.ensure_future(anext(entries))
                        if version > 2:
                            await tailer.idle.wait()
                            await writer.insert(rows(version))
                        assert (await coming).commit.version == version
                async with asyncio.timeout(WITHIN):
                    while await asyncio.to_thread(left, moto_server, queue) != 1:
                        await asyncio.sleep(0.05)


def test_a_daemon(
    moto_server: Server, bucket: str, queue: str, broker: SharedBroker, name: str, tmp_path: Path
) -> None:
    place = Location(f"s3://{bucket}/orders", {key: str(value) for key, value in moto_server.options().items()})
    reached = {
        "endpoint_url": moto_server.url,
        "region": "us-east-1",
        "access_key_id": KEY_ID,
        "secret_access_key": SECRET,
    }
    sections = {
        "storage": {"s3": reached},
        "poll": {"interval": "1h", "max_interval": "1h", "notifications": queue},
        "progress": {"ledger": "none"},
    }
    servers = broker.bootstrap_servers
    pipeline = Pipeline(tmp_path, name, servers, servers, place, sections)
    table = pipeline.table()
    with pipeline.daemon() as daemon:
        daemon.wait_for("at version")
        for each in range(3):
            do(table.insert(rows(each)))
            assert pipeline.check() == each + 1
        daemon.stop()


@pytest.mark.parametrize("there", [True, False])
def test_check(
    moto_server: Server, bucket: str, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    for name, value in moto_server.environment().items():
        monkeypatch.setenv(name, value)
    uri = f"s3://{bucket}/orders"
    asyncio.run(new_table(moto_server, uri, 1))
    config = {
        "pipeline": "shop",
        "tables": [{"name": "orders", "uri": uri}],
        "sink": {"kind": "files", "path": str(tmp_path / "out")},
        "poll": {"notifications": queue if there else f"{queue}-gone"},
    }
    file = tmp_path / "shop.yaml"
    file.write_text(json.dumps(config))
    ended = cdfd("check", "-c", file)
    last = ended.lines()[-1]
    if there:
        assert (ended.code, last.split()) == (0, ["notifications", "ok"]), ended
    else:
        assert ended.code == 1
        assert last.startswith("notifications")
        assert "Check the queue's name" in last


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sqs://eu-west-1/shop", sqs.QueueName(None, "shop", "eu-west-1")),
        (
            "https://sqs.eu-west-1.amazonaws.com/123/shop",
            sqs.QueueName("https://sqs.eu-west-1.amazonaws.com/123/shop", "shop", "eu-west-1"),
        ),
        (
            "sqs://sqs.us-gov-east-1.amazonaws.com/1/q",
            sqs.QueueName("https://sqs.us-gov-east-1.amazonaws.com/1/q", "q", "us-gov-east-1"),
        ),
        ("http://localhost:4566/0/q", sqs.QueueName("http://localhost:4566/0/q", "q", None)),
    ],
)
def test_names(text: str, expected: sqs.QueueName) -> None:
    assert sqs.QueueName.parse(text) == expected


@pytest.mark.parametrize("text", ["", "shop", "sqs://shop", "https://sqs.eu-west-1.amazonaws.com/shop", "ftp://x/1/2"])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(ConfigError):
        sqs.QueueName.parse(text)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("{server}/123456789012/no-such-queue", "Check the queue's name"),
        ("http://127.0.0.1:1/1/q", "EndpointConnectionError"),
    ],
)
def test_one_that_is_not_there(moto_server: Server, url: str, said: str) -> None:
    async def scenario() -> None:
        name = sqs.QueueName.parse(url.format(server=moto_server.url))
        async with sqs.open_queue(name, parse(moto_server.options())) as queue:
            await queue.receive()

    with pytest.raises(StorageError, match=said) as caught:
        asyncio.run(scenario())
    assert SECRET not in str(caught.value)
