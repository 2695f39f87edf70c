"""Ids of topics, for clients whose public interface has none. A topic that is deleted and created again gets another id."""

import logging
import time
from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.connection import network
from cdfd.sinks.kafka.client.producer import known_id

LOOKUP_SECONDS = 60.0
"""Time between two lookups. Each has a connection of its own, so that idle tables have none; it takes 10 ms of a local broker."""
_ANSWER_MS = 5000

log = logging.getLogger("cdfd.kafka")


class TopicIds:
    """The id of the topic to which a producer sends. One thread at a time uses it.

    Args:
        connection: of `connection.arguments`.
    """

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self._connection = connection
        self._ids: dict[str, str | None] = {}
        self._next = time.monotonic() + LOOKUP_SECONDS

    def topic_id(self, topic: str) -> str | None:
        """The id of a topic, up to a minute old; None before the first lookup, or if the brokers do not know it.

        A lookup that fails raises nothing: a commit follows, whose error says more.
        """
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LOOKUP_SECONDS
            try:
                with network(self._connection) as options:
                    client = KafkaAdminClient(**options, bootstrap_timeout_ms=_ANSWER_MS, request_timeout_ms=_ANSWER_MS)
                try:
                    (described,) = client.describe_topics([topic])
                    self._ids[topic] = known_id(described.get("topic_id"))
                finally:
                    client.close()
            except (KafkaError, SinkError) as error:
                log.debug("cannot look up the id of topic %s: %s", topic, error)
        return self._ids.get(topic)
