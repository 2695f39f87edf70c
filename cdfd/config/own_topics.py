"""Topics that the daemon writes besides those of tables. No table may have one of them: its consumers would find other records."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from cdfd.config.problems import Path, quoted
from cdfd.config.table import Table

if TYPE_CHECKING:
    from cdfd.config.settings import Settings

_RESERVED = "_cdfd_"
_HEARTBEATS = f"{_RESERVED}heartbeat"
_HEARTBEAT_KEY = "heartbeat.topic"


def heartbeat_topic(config: Settings) -> str:
    """The topic of heartbeats."""
    return config.heartbeat.topic or f"{_HEARTBEATS}.{config.pipeline}"


def notification_topic(config: Settings) -> str:
    """The topic of notifications."""
    return f"{config.sink.topic_prefix or config.pipeline}.notifications"


def refusal(config: Settings, topic: str, others: Collection[str]) -> str | None:
    """Why a table cannot have a topic; None if it can.

    Args:
        config: the settings.
        topic: of the table.
        others: topics of other tables.
    """
    if not config.sink.has_topics:
        return None
    if topic.startswith(_RESERVED):
        return f"the topic {quoted(topic)} is reserved: those of the daemon itself begin with {_RESERVED}"
    own, suffix = dict(_own_topics(config)), config.sink.dead_letter_suffix
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


def conflicts(config: Settings) -> Iterator[tuple[Path, str]]:
    """The topics of listed tables, and of heartbeats, that are others of the daemon; each with its path."""
    topics: set[str] = set()
    for index, entry in enumerate(config.tables):
        if isinstance(entry, Table):
            if (what := refusal(config, entry.topic, topics)) is not None:
                yield ("tables", index, "topic"), f"{what}; give the table another topic"
            topics.add(entry.topic)
    if config.heartbeat.interval is not None:
        heartbeats = heartbeat_topic(config)
        keys = [key for name, key in _own_topics(config) if name == heartbeats and key != _HEARTBEAT_KEY]
        if heartbeats.startswith(_RESERVED) and not heartbeats.startswith(_HEARTBEATS):
            keys.append("cdfd itself")
        if keys:
            yield ("heartbeat", "topic"), f"{quoted(heartbeats)} is the topic of {keys[0]}; give another"


def _own_topics(config: Settings) -> Iterator[tuple[str, str]]:
    """The topics that these settings ask for, each with its key."""
    yield from config.sink.side_topics(config.pipeline).items()
    if config.controls.notifications:
        yield notification_topic(config), "controls.notifications"
    if config.heartbeat.interval is not None:
        yield heartbeat_topic(config), _HEARTBEAT_KEY
