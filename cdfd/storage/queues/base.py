"""The port of queues in which a store announces new objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class ObjectCreated(NamedTuple):
    """An object that was written: its bucket or container, and its key."""

    bucket: str
    key: str


class Message(NamedTuple):
    """A message of a queue.

    Attributes:
        receipt: handle to delete it with.
        created: the objects that it announces as created. Empty for other events of the store; None if it is not an event of the store.
    """

    receipt: str
    created: Sequence[ObjectCreated] | None


class Queue(Protocol):
    """An open queue. Belongs to the event loop that it was opened in. All methods raise `StorageError` if the request failed."""

    async def receive(self) -> Sequence[Message]:
        """Messages, as soon as there are any; empty if none came for some seconds. They are hidden from other readers for a time."""

    async def check(self) -> None:
        """Verify that the queue can be read, without waiting and without hiding messages from other readers."""

    async def delete(self, receipts: Sequence[str]) -> None:
        """Delete messages of one response. The queue delivers messages again that are not deleted."""
