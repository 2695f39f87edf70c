"""Topics of the daemon itself, such as that of heartbeats: what connectors with topics override."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from cdfd.errors import UnsupportedError

Announce = Callable[[Sequence[tuple[bytes, bytes]]], Awaitable[None]]
"""Writes records of the daemon itself, as pairs of key and value. Raises `SinkError` if they may not be written; another call tries again."""


SIGNALS = 10
"""Most signals of one poll."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A record of the topic of signals.

    Attributes:
        offset: in the topic.
        place: topic and offset, which identify the record.
        value: the record's value, which anyone may have written; None: no value.
    """

    offset: int
    place: str
    value: bytes | None


class Signals(Protocol):
    """The topic of signals, which others write."""

    @property
    def topic(self) -> str:
        """Its name."""

    async def poll(self) -> Sequence[Signal]:
        """The next signals, `SIGNALS` at most; none if there is none now. `SinkError` if the topic cannot be read."""

    async def done(self, last: Signal) -> None:
        """All signals up to this one are dealt with, and do not come again after a restart."""


class OwnTopics:
    """A connector to a sink with topics. A connector without them overrides nothing."""

    async def check_own_topics(self) -> str | None:
        """Check the topics of the daemon itself, such as that of heartbeats, without writing to them; a short text for `cdfd check`.

        Returns:
            The text; None if the daemon has no such topics.

        Raises:
            SinkError: a topic cannot be used.
        """
        return None

    def announcing(self, topic: str, *, compacted: bool = True) -> AbstractAsyncContextManager[Announce]:
        """A writer of records about the daemon, apart from all deliveries. It connects with the first records, and closes with the block.

        Args:
            topic: the topic. If it is missing, it is created with one partition.
            compacted: whether a created topic keeps the newest record of each key, instead of all records for a time.

        Raises:
            UnsupportedError: the sink has no topics.
        """
        raise UnsupportedError("this sink has no topics", hint="Use a Kafka sink")

    def signals(self, reader: str = "") -> AbstractAsyncContextManager[Signals]:
        """The topic of signals of the pipeline, created if it is missing.

        Args:
            reader: tells processes that read the same signals apart, such as shards.

        Raises:
            UnsupportedError: the sink has no topics.
            SinkError: the topic cannot be used.
        """
        raise UnsupportedError("this sink has no topics", hint="Use a Kafka sink")
