"""Receives messages from an Amazon SQS queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import ClientError

from cdfd.errors import StorageError
from cdfd.storage.queues.address import QueueAddress
from cdfd.storage.queues.base import Message
from cdfd.storage.queues.events import parse_s3_event
from cdfd.storage.s3.errors import FAILURES, FOREIGN, code_of
from cdfd.storage.s3.options import S3Options

LONG_POLL = 20
"""Seconds that a request waits for messages; the maximum of SQS."""
BATCH = 10
"""Messages of one response; the maximum of SQS."""
_ERRORS = (*FAILURES, *FOREIGN)
"""Those of a request, also if what answers is not SQS."""


@dataclass(eq=False)
class SqsQueue:
    """An open queue; see `Queue`."""

    client: Any
    url: str

    async def receive(self) -> Sequence[Message]:
        """See `Queue`. SQS waits up to `LONG_POLL` seconds for messages."""
        try:
            response = await self.client.receive_message(
                QueueUrl=self.url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=LONG_POLL
            )
            messages = response.get("Messages", ())
            return [Message(each["ReceiptHandle"], parse_s3_event(each["Body"])) for each in messages]
        except _ERRORS as error:
            raise _translate("read", error, self.url) from None

    async def check(self) -> None:
        """See `Queue`."""
        try:
            await self.client.receive_message(
                QueueUrl=self.url, MaxNumberOfMessages=1, WaitTimeSeconds=0, VisibilityTimeout=0
            )
        except _ERRORS as error:
            raise _translate("read", error, self.url) from None

    async def delete(self, receipts: Sequence[str]) -> None:
        """See `Queue`."""
        entries = [{"Id": str(place), "ReceiptHandle": each} for place, each in enumerate(receipts)]
        if not entries:
            return
        try:
            await self.client.delete_message_batch(QueueUrl=self.url, Entries=entries)
        except _ERRORS as error:
            raise _translate("delete from", error, self.url) from None


@asynccontextmanager
async def open_sqs(address: QueueAddress, options: S3Options) -> AsyncIterator[SqsQueue]:
    """Opens the queue with the credentials of a store.

    Raises:
        StorageError: the queue does not exist.
    """
    endpoint = None if address.url is None else "{0.scheme}://{0.netloc}".format(urlsplit(address.url))
    session = AioSession(profile=options.profile)
    config = AioConfig(connect_timeout=options.connect_timeout, read_timeout=LONG_POLL + options.read_timeout)
    try:
        async with session.create_client(
            "sqs",
            region_name=address.owner or options.region or session.get_config_variable("region") or "us-east-1",
            endpoint_url=endpoint,
            aws_access_key_id=options.access_key_id,
            aws_secret_access_key=options.secret_access_key,
            aws_session_token=options.session_token,
            config=config,
        ) as client:
            try:
                url = address.url or (await client.get_queue_url(QueueName=address.name))["QueueUrl"]
            except FOREIGN as error:
                raise _translate("open", error, address.name) from None
            yield SqsQueue(client, url)
    except FAILURES as error:
        raise _translate("open", error, address.url or address.name) from None


def _translate(doing: str, error: Exception, queue: str) -> StorageError:
    if not isinstance(error, ClientError):
        return StorageError(f"cannot {doing} the queue: {type(error).__name__}", path=queue, retriable=True)
    code = code_of(error)
    hint = None
    if "AccessDenied" in code:
        hint = "Allow sqs:GetQueueUrl, sqs:ReceiveMessage and sqs:DeleteMessage on it"
    elif "NonExistentQueue" in code or "QueueDoesNotExist" in code:
        hint = "Check the queue's name, account and region"
    return StorageError(f"cannot {doing} the queue: {code}", path=queue, hint=hint, retriable=True)
