"""Topics that the daemon writes besides those of tables. No table may have one of them: its consumers would find other records."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cdfd.config.discovery import Discovery
from cdfd.config.problems import Path, quoted
from cdfd.config.table import Table

RESERVED = "_cdfd_"
HEARTBEATS = f"{RESERVED}heartbeat"


@dataclass(frozen=True, slots=True)
class OwnTopics:
    """The daemon's own topics, as the settings ask for them.

    Attributes:
        exist: whether the sink has topics.
        heartbeats: topic of heartbeats.
        has_heartbeats: whether there are any.
        notifications: topic of notifications.
        asked_by: the key that asks for each of the daemon's topics, but for that of heartbeats.
        dead_letter_suffix: the end of the name of a dead letter topic, after the name of the topic; None: there is none.
        elsewhere: topics of other sinks on the same brokers, also those of the daemon, and the name of the sink of each.
    """

    exist: bool
    heartbeats: str
    has_heartbeats: bool
    notifications: str
    asked_by: Mapping[str, str]
    dead_letter_suffix: str | None
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    @property
    def own(self) -> Mapping[str, str]:
        """The key that asks for each of the daemon's topics."""
        return {**self.asked_by, self.heartbeats: "heartbeat.topic"} if self.has_heartbeats else self.asked_by

    def refusal(self, topic: str, others: Collection[str]) -> str | None:
        """Why a table cannot have a topic; None if it can.

        Args:
            others: topics of other tables.
        """
        if not self.exist:
            return None
        if topic.startswith(RESERVED):
            return f"the topic {quoted(topic)} is reserved: those of the daemon itself begin with {RESERVED}"
        own, suffix = self.own, self.dead_letter_suffix
        if topic in self.elsewhere:
            return f"the topic {quoted(topic)} is also one of sinks.{self.elsewhere[topic]}"
        if topic in own:
            return f"the topic {quoted(topic)} is the daemon's own, by {own[topic]}"
        if suffix is None:
            return None
        letters, other = topic + suffix, topic.removesuffix(suffix)
        if other != topic and other in others:
            return f"the topic {quoted(topic)} is the dead letter topic of the table with the topic {quoted(other)}"
        if letters in own or letters in others:
            whose = f"the daemon's own, by {own[letters]}" if letters in own else "that of another table"
            return f"the dead letter topic of {quoted(topic)} would be {quoted(letters)}, which is {whose}"
        return None

    def conflicts(self, tables: Sequence[Table | Discovery]) -> Iterator[tuple[Path, str]]:
        """The topics of listed tables, and of heartbeats, that are others of the daemon; each with its path."""
        topics: set[str] = set()
        for index, entry in enumerate(tables):
            if isinstance(entry, Table):
                if (what := self.refusal(entry.topic, topics)) is not None:
                    yield ("tables", index, "topic"), f"{what}; give the table another topic"
                topics.add(entry.topic)
        if self.has_heartbeats:
            keys = [key for topic, key in self.asked_by.items() if topic == self.heartbeats]
            if self.heartbeats.startswith(RESERVED) and not self.heartbeats.startswith(HEARTBEATS):
                keys.append("cdfd itself")
            if keys:
                yield ("heartbeat", "topic"), f"{quoted(self.heartbeats)} is the topic of {keys[0]}; give another"
