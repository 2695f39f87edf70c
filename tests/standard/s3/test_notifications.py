"""Wake-ups by a queue that S3 tells of new objects: moto does both."""

import asyncio
import json
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cdfd.log.notifications import Notifications
from cdfd.log.table import Table
from cdfd.runtime.clock import SystemClock
from cdfd.storage.queues.address import QueueAddress
from cdfd.storage.queues.factory import open_queue
from tests.standard.s3.test_requests import new_table
from tests.support.commands import cdfd
from tests.support.kafka.history import Location
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.shared import SharedBroker
from tests.support.lake import WITHIN, rows
from tests.support.queues.writers import client
from tests.support.s3.server import Server, s3_section

HOURS = 7200.0


ROUTES = ("S3", "SNS", "EventBridge")


@pytest.fixture
def route() -> str:
    """How events reach the queue."""
    return "S3"


@pytest.fixture
def queue(moto_server: Server, bucket: str, route: str) -> str:
    """The URL of a queue that receives an event for each object written to `bucket`."""
    with closing(client(moto_server, "sqs")) as sqs:
        url: str = sqs.create_queue(QueueName=bucket)["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    events = {"Events": ["s3:ObjectCreated:*"]}
    configuration: dict[str, Any] = {"QueueConfigurations": [{"QueueArn": arn, **events}]}
    if route == "SNS":
        with closing(client(moto_server, "sns")) as sns:
            topic = sns.create_topic(Name=bucket)["TopicArn"]
            sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
        configuration = {"TopicConfigurations": [{"TopicArn": topic, **events}]}
    elif route == "EventBridge":
        with closing(client(moto_server, "events")) as bridge:
            pattern = {"source": ["aws.s3"], "detail": {"bucket": {"name": [bucket]}}}
            bridge.put_rule(Name=bucket, EventPattern=json.dumps(pattern))
            bridge.put_targets(Rule=bucket, Targets=[{"Id": "queue", "Arn": arn}])
        configuration = {"EventBridgeConfiguration": {}}
    with closing(client(moto_server, "s3")) as s3:
        s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=configuration)
    return url


def left(server: Server, queue: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    with closing(client(server, "sqs")) as asked:
        attributes = asked.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    return sum(map(int, attributes.values()))


@pytest.mark.parametrize("route", ROUTES)
async def test_a_commit_wakes_its_reader(moto_server: Server, bucket: str, queue: str) -> None:
    """Polls alone would take hours. Messages that are not from S3 stay in the queue."""
    uri = f"s3://{bucket}/lake/my orders"

    with closing(client(moto_server, "sqs")) as asked:
        asked.send_message(QueueUrl=queue, MessageBody="hello")
    writer = await new_table(moto_server, uri)
    table = Table.open(uri, moto_server.options())
    clock = SystemClock()
    opener = partial(open_queue, QueueAddress.parse(queue), moto_server.options())
    async with Notifications(opener, clock).running() as notifications:
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
    sections = {
        "storage": {"s3": s3_section(moto_server.url)},
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
