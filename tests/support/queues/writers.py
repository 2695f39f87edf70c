"""Writers of events into the queues of each service, by the services' own clients where they run here."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, quote_plus

import boto3
from azure.storage.queue import QueueClient

from tests.support.queues.azurite import ACCOUNT
from tests.support.queues.pubsub import PubSub
from tests.support.s3.server import KEY_ID, SECRET, Server


class Writer(Protocol):
    """Writes into one queue.

    Attributes:
        address: of the queue, as `poll.notifications` takes it.
        s3: the storage options of S3.
        variables: that reach the service.
        table: the location of a table, by its container and folder.
    """

    address: str
    s3: Mapping[str, object]
    variables: Mapping[str, str]
    table: str

    def created(self, bucket: str, key: str) -> None:
        """Announce a new object."""

    def deleted(self, bucket: str, key: str) -> None:
        """Announce that an object was deleted."""

    def foreign(self, text: str) -> None:
        """A message of something else."""

    def left(self) -> int:
        """The number of messages in the queue, also of those that are hidden."""

    def remove(self) -> None:
        """Remove the queue."""


def client(server: Server, service: str) -> Any:
    """A client of AWS's for moto."""
    return boto3.client(
        service,
        endpoint_url=server.url,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )


@dataclass
class Sqs:
    """Events of S3 in the queue of moto's SQS."""

    server: Server
    address: str
    table: str = "s3://{bucket}/{folder}"
    bridge: bool = False
    """Whether EventBridge forwards the events."""

    def __post_init__(self) -> None:
        self.s3: Mapping[str, object] = self.server.options()
        self.variables: Mapping[str, str] = {}

    def created(self, bucket: str, key: str) -> None:
        self._event("ObjectCreated:Put", "Object Created", bucket, key)

    def deleted(self, bucket: str, key: str) -> None:
        self._event("ObjectRemoved:Delete", "Object Deleted", bucket, key)

    def _event(self, name: str, detail_type: str, bucket: str, key: str) -> None:
        if self.bridge:
            detail = {
                "version": "0",
                "bucket": {"name": bucket},
                "object": {"key": key, "size": 5},
                "reason": "PutObject",
            }
            self.foreign(json.dumps({"version": "0", "source": "aws.s3", "detail-type": detail_type, "detail": detail}))
        else:
            named = {"bucket": {"name": bucket}, "object": {"key": quote_plus(key), "size": 5}}
            record = {"eventVersion": "2.1", "eventSource": "aws:s3", "eventName": name, "s3": named}
            self.foreign(json.dumps({"Records": [record]}))

    def foreign(self, text: str) -> None:
        with closing(client(self.server, "sqs")) as sqs:
            sqs.send_message(QueueUrl=self.address, MessageBody=text)

    def left(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        with closing(client(self.server, "sqs")) as sqs:
            counts = sqs.get_queue_attributes(QueueUrl=self.address, AttributeNames=names)["Attributes"]
        return sum(map(int, counts.values()))

    def remove(self) -> None:
        with closing(client(self.server, "sqs")) as sqs:
            sqs.delete_queue(QueueUrl=self.address)


@dataclass
class Subscription:
    """Notifications of Cloud Storage in a subscription of Pub/Sub."""

    service: PubSub
    name: str
    table: str = "gs://{bucket}/{folder}"

    def __post_init__(self) -> None:
        self.address = self.service.create(self.name)
        self.s3: Mapping[str, object] = {}
        self.variables: Mapping[str, str] = {"PUBSUB_EMULATOR_HOST": self.service.url.removeprefix("http://")}

    def created(self, bucket: str, key: str) -> None:
        self._event("OBJECT_FINALIZE", bucket, key)

    def deleted(self, bucket: str, key: str) -> None:
        self._event("OBJECT_DELETE", bucket, key)

    def _event(self, kind: str, bucket: str, key: str) -> None:
        attributes = {
            "notificationConfig": f"projects/_/buckets/{bucket}/notificationConfigs/1",
            "eventType": kind,
            "payloadFormat": "JSON_API_V1",
            "bucketId": bucket,
            "objectId": key,
            "objectGeneration": "1447430440000000",
        }
        data = {"kind": "storage#object", "bucket": bucket, "name": key}
        self.service.publish(self.name, attributes, json.dumps(data).encode())

    def foreign(self, text: str) -> None:
        self.service.publish(self.name, None, text.encode())

    def left(self) -> int:
        return len(self.service.subscriptions[self.name])

    def remove(self) -> None:
        del self.service.subscriptions[self.name]


@dataclass
class AzureQueue:
    """Events of Event Grid in a queue of Azurite."""

    connection: str
    name: str
    cloud_events: bool = False
    table: str = "abfss://{bucket}@lake.dfs.core.windows.net/{folder}"

    def __post_init__(self) -> None:
        self.address = f"azure-queue://{ACCOUNT}/{self.name}"
        self.s3: Mapping[str, object] = {}
        self.variables: Mapping[str, str] = {"AZURE_STORAGE_CONNECTION_STRING": self.connection}
        with self._client() as queue:
            queue.create_queue()

    @contextmanager
    def _client(self) -> Iterator[QueueClient]:
        with QueueClient.from_connection_string(self.connection, self.name) as queue:
            yield queue

    def created(self, bucket: str, key: str) -> None:
        self._event("Microsoft.Storage.BlobCreated", bucket, key)

    def deleted(self, bucket: str, key: str) -> None:
        self._event("Microsoft.Storage.BlobDeleted", bucket, key)

    def _event(self, kind: str, bucket: str, key: str) -> None:
        account = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Storage/storageAccounts/lake"
        event = {
            "id": "831e1650-001e-001b-66ab-eeb76e069631",
            "subject": f"/blobServices/default/containers/{bucket}/blobs/{key}",
            "data": {"api": "PutBlob", "url": f"https://lake.blob.core.windows.net/{bucket}/{quote(key)}"},
        }
        if self.cloud_events:
            event |= {"specversion": "1.0", "type": kind, "source": account, "time": "2026-11-18T15:13:39.4589254Z"}
        else:
            event |= {"topic": account, "eventType": kind, "eventTime": "2026-11-18T15:13:39Z", "dataVersion": ""}
        self.foreign(base64.b64encode(json.dumps(event).encode()).decode())

    def foreign(self, text: str) -> None:
        with self._client() as queue:
            queue.send_message(text)

    def left(self) -> int:
        with self._client() as queue:
            return queue.get_queue_properties().approximate_message_count or 0

    def remove(self) -> None:
        with self._client() as queue:
            queue.delete_queue()
