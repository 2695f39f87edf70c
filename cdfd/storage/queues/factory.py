"""Opens the queue of an address."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from cdfd.storage.queues.address import QueueAddress
from cdfd.storage.queues.base import Queue


def open_queue(address: QueueAddress, s3: Mapping[str, object]) -> AbstractAsyncContextManager[Queue]:
    """Opens a queue. SQS takes the storage options of S3; the others find credentials in the environment.

    Raises:
        StorageError: when it is entered, if the queue does not exist.
    """
    # Clients are slow to import, and some are extras.
    if address.kind == "pubsub":
        from cdfd.storage.queues.pubsub import open_subscription

        return open_subscription(address.owner or "", address.name)
    if address.kind == "azure-queue":
        from cdfd.storage.queues.azure import open_azure_queue

        return open_azure_queue(address.owner or "", address.name)
    from cdfd.storage.queues.sqs import open_sqs
    from cdfd.storage.s3.options import parse

    return open_sqs(address, parse(s3))
