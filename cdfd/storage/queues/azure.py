"""Receives messages from a queue of Azure Storage, by Azure's own client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from xml.etree.ElementTree import ParseError

from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError
from azure.identity.aio import DefaultAzureCredential
from azure.storage.queue.aio import QueueClient

from cdfd.errors import StorageError
from cdfd.storage.queues.base import Message
from cdfd.storage.queues.events import parse_azure_event

BATCH = 32
"""Messages of one response; the maximum of Azure."""
POLL_SECONDS = 1.0
"""Seconds between two requests for messages: the service does not wait for them."""
WAIT_SECONDS = 20.0
"""Seconds after which `receive` returns without a message."""
_ERRORS = (AzureError, ParseError, AttributeError, KeyError, TypeError, ValueError)
"""Those of a request, also if what answers is not Azure's service."""


@dataclass(eq=False)
class AzureQueue:
    """An open queue; see `Queue`."""

    client: QueueClient
    name: str

    async def receive(self) -> Sequence[Message]:
        """See `Queue`."""
        for attempt in range(round(WAIT_SECONDS / POLL_SECONDS)):
            if attempt:
                await asyncio.sleep(POLL_SECONDS)
            try:
                async for page in self.client.receive_messages(messages_per_page=BATCH).by_page():
                    if messages := [message async for message in page]:
                        return [
                            Message(f"{each.id} {each.pop_receipt}", parse_azure_event(str(each.content or "")))
                            for each in messages
                        ]
                    break
            except _ERRORS as error:
                raise translate(error, self.name) from None
        return []

    async def check(self) -> None:
        """See `Queue`."""
        try:
            await self.client.peek_messages(max_messages=1)
        except _ERRORS as error:
            raise translate(error, self.name) from None

    async def delete(self, receipts: Sequence[str]) -> None:
        """See `Queue`. One request each: the service deletes no batches."""
        try:
            await asyncio.gather(*(self._delete(*receipt.split(" ", 1)) for receipt in receipts))
        except _ERRORS as error:
            raise translate(error, self.name) from None

    async def _delete(self, id: str, pop_receipt: str) -> None:
        try:
            await self.client.delete_message(id, pop_receipt)
        except ResourceNotFoundError:
            return  # it was not deleted in time, and another reader has it
        except HttpResponseError as error:
            if error.status_code != 400:  # the same, by another code: PopReceiptMismatch
                raise


@asynccontextmanager
async def open_azure_queue(account: str, name: str) -> AsyncIterator[AzureQueue]:
    """Opens a queue with the credentials of the environment.

    These are a connection string of the account, its key, a SAS token, or what `DefaultAzureCredential` finds, in this order.

    Raises:
        StorageError: the connection string is malformed.
    """
    variables = os.environ
    connection = variables.get("AZURE_STORAGE_CONNECTION_STRING", "")
    secret = variables.get("AZURE_STORAGE_ACCOUNT_KEY") or variables.get("AZURE_STORAGE_SAS_TOKEN")
    url = f"https://{account}.queue.core.windows.net"
    # No attempts of the client's own, which take minutes: `Notifications` tries again.
    async with AsyncExitStack() as stack:
        try:
            if f"AccountName={account};" in f"{connection};":
                client = QueueClient.from_connection_string(connection, name, retry_total=0)
            elif secret:
                client = QueueClient(url, name, credential=secret, retry_total=0)
            else:
                credential = DefaultAzureCredential()
                stack.push_async_callback(credential.close)
                client = QueueClient(url, name, credential=credential, retry_total=0)
        except ValueError:
            reason = "AZURE_STORAGE_CONNECTION_STRING, or a key in it, is malformed"
            raise StorageError(f"cannot open the queue: {reason}", path=name, retriable=True) from None
        yield AzureQueue(await stack.enter_async_context(client), f"{account}/{name}")


def translate(error: Exception, queue: str) -> StorageError:
    """An error of the client as one of cdfd. It has no text of the service, which may contain a signature."""
    code = getattr(error, "error_code", None)
    status = error.status_code if isinstance(error, HttpResponseError) else None
    reason = getattr(code, "value", code) or status or type(error).__name__
    hint = None
    if status == 404:
        hint = "Check the names of the account and of the queue"
    elif status == 403:
        hint = "Assign the role Storage Queue Data Message Processor on it"
    return StorageError(f"cannot read the queue: {reason}", path=queue, hint=hint, retriable=True)
