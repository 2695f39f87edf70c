"""Records that are larger than their topic takes."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from cdfd.encoding.records import Records
from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.producer import Producer, send_record
from cdfd.sinks.kafka.destination import Destination
from cdfd.sinks.kafka.records.batches import Oversized

log = logging.getLogger("cdfd.kafka")

_SHOWN = 200
# The part of what the topic takes that a key may have: twice it is in the letter, once with all its characters escaped.
_KEY_SHARE = 8


class OversizedRecords:
    """Does what the configuration says with them.

    Args:
        destination: of the table.
        limit: bytes of the largest record batch that the topic takes.
    """

    def __init__(self, destination: Destination, limit: int) -> None:
        self._destination = destination
        self._limit = limit
        self._key_limit = limit // _KEY_SHARE
        self.count = 0

    def handle(self, producer: Producer, records: Records, oversized: Sequence[Oversized], version: int) -> None:
        """Leave them out, or tell of them on the topic for it.

        Args:
            producer: which did not take them.
            records: what it was given.
            oversized: those of them that are too large.
            version: of their rows, or of the newest of them.

        Raises:
            SinkError: they are not to be left out.
        """
        told = self._destination
        for item in oversized:
            key = None if records.keys is None else records.keys[item.index].as_py()
            what = f"a record of {item.size} bytes, with {_shown(key)}, is too large for topic {told.topic}, which takes {self._limit}"
            if told.oversized == "fail":
                raise SinkError(
                    what,
                    table=told.table,
                    version=version,
                    hint="Raise max.message.bytes of the topic, or set sink.oversized to dlq or skip",
                )
            if told.oversized == "dlq":
                value = self._letter(key, item, version)
                send_record(producer, told.dlq_topic, 0, key if len(key or b"") <= self._key_limit else None, value)
            if not self.count or told.oversized == "skip":
                where = "left out" if told.oversized == "skip" else f"it is told of on topic {told.dlq_topic}"
                log.warning("%s: %s", what, where, extra={"table": told.table, "version": version})
            self.count += 1

    def _letter(self, key: bytes | None, item: Oversized, version: int) -> bytes:
        told = self._destination
        document: dict[str, Any] = {
            "reason": "the record is larger than the topic takes",
            "pipeline": told.pipeline,
            "table": told.table,
            "topic": told.topic,
            "version": version,
            "key": None if key is None else key[: self._key_limit].decode(errors="backslashreplace"),
            "size": item.size,
            "limit": self._limit,
        }
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _shown(key: bytes | None) -> str:
    """A key for people."""
    if key is None:
        return "no key"
    text = key[: _SHOWN + 1].decode(errors="backslashreplace")
    return f"key {text if len(key) <= _SHOWN else text[:_SHOWN] + '...'}"
