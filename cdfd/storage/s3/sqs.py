"""Receives messages from an Amazon SQS queue."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import ClientError

from cdfd.errors import ConfigError, StorageError
from cdfd.storage.s3.errors import FAILURES, code_of
from cdfd.storage.s3.options import S3Options

LONG_POLL = 20
"""Seconds that a request waits for messages; the maximum of SQS."""
BATCH = 10
"""Messages of one response; the maximum of SQS."""

_NAMED = re.compile(r"sqs://([a-z0-9-]+)/([A-Za-z0-9_-]{1,80}(?:\.fifo)?)")
_REGION = re.compile(r"(?:sqs\.|queue\.)?([a-z]{2}(?:-[a-z]+)+-[0-9])\.")


@dataclass(frozen=True, slots=True)
class Message:
    """A message; `receipt` is the handle to delete it with."""

    body: str
    receipt: str


@dataclass(frozen=True, slots=True)
class QueueName:
    """Identifies a queue: by its `url`, or by its `name` in this account and `region`."""

    url: str | None
    name: str
    region: str | None

    @classmethod
    def parse(cls, text: str) -> QueueName:
        """`sqs://region/name`, or a queue's URL: `https://sqs.region.amazonaws.com/account/name`, also with `sqs` for `https`.

        Raises:
            ConfigError: the text is none of these.
        """
        named = _NAMED.fullmatch(text)
        if named is not None:
            return cls(None, named[2], named[1])
        url = re.sub(r"^sqs://", "https://", text)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.count("/") < 2:
            hint = "Write sqs://region/name, or the queue's URL"
            raise ConfigError("the address of the queue is not valid", hint=hint)
        region = _REGION.match(parts.hostname)
        return cls(url, parts.path.rpartition("/")[2], None if region is None else region[1])


class Queue:
    """An open queue. Belongs to the event loop that it was opened in."""

    def __init__(self, client: Any, url: str) -> None:
        self._client = client
        self._url = url

    async def receive(self) -> Sequence[Message]:
        """Messages, as soon as there are any; empty if none came for `LONG_POLL` seconds. SQS hides them from other readers for a time.

        Raises:
            StorageError: the request failed.
        """
        try:
            response = await self._client.receive_message(
                QueueUrl=self._url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=LONG_POLL
            )
        except FAILURES as error:
            raise _translate("read", error, self._url) from None
        return [Message(each["Body"], each["ReceiptHandle"]) for each in response.get("Messages", ())]

    async def check(self) -> None:
        """Receive once, without waiting and without hiding messages from other readers.

        Raises:
            StorageError: the request failed.
        """
        try:
            await self._client.receive_message(
                QueueUrl=self._url, MaxNumberOfMessages=1, WaitTimeSeconds=0, VisibilityTimeout=0
            )
        except FAILURES as error:
            raise _translate("read", error, self._url) from None

    async def delete(self, receipts: Sequence[str]) -> None:
        """Delete messages of one response, by their receipts. SQS delivers messages again that are not deleted.

        Raises:
            StorageError: the request failed.
        """
        entries = [{"Id": str(place), "ReceiptHandle": each} for place, each in enumerate(receipts)]
        if not entries:
            return
        try:
            await self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)
        except FAILURES as error:
            raise _translate("delete from", error, self._url) from None


@asynccontextmanager
async def open_queue(name: QueueName, options: S3Options) -> AsyncIterator[Queue]:
    """Opens the queue with the credentials of a store.

    Raises:
        StorageError: the queue does not exist.
    """
    endpoint = None if name.url is None else "{0.scheme}://{0.netloc}".format(urlsplit(name.url))
    session = AioSession(profile=options.profile)
    config = AioConfig(connect_timeout=options.connect_timeout, read_timeout=LONG_POLL + options.read_timeout)
    try:
        async with session.create_client(
            "sqs",
            region_name=name.region or options.region or session.get_config_variable("region") or "us-east-1",
            endpoint_url=endpoint,
            aws_access_key_id=options.access_key_id,
            aws_secret_access_key=options.secret_access_key,
            aws_session_token=options.session_token,
            config=config,
        ) as client:
            url = name.url or (await client.get_queue_url(QueueName=name.name))["QueueUrl"]
            yield Queue(client, url)
    except FAILURES as error:
        raise _translate("open", error, name.url or name.name) from None


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
