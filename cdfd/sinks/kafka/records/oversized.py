"""Records that exceed the size limit of their topic."""

import json
import logging
from collections.abc import Sequence

from cdfd.encode.records import Records
from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.producer import Producer, send_record
from cdfd.sinks.kafka.destination import Destination
from cdfd.sinks.kafka.records.batches import Oversized

log = logging.getLogger("cdfd.kafka")

_SHOWN = 200
# A key may have this fraction of the limit: the dead-letter record contains it twice, once with its characters escaped.
_KEY_SHARE = 8


class OversizedRecords:
    """Handles oversized records as configured.

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
        """Skip the records, or write a record about each of them to the dead-letter topic.

        Args:
            producer: the producer that refused them.
            records: the records passed to the producer.
            oversized: the oversized ones.
            version: of their rows, or the newest one.

        Raises:
            SinkError: the configuration says to fail.
        """
        destination, keys = self._destination, records.whole_keys
        for item in oversized:
            key = keys[item.index]
            # A key as text of bounded length.
            if key is None:
                shown = "no key"
            else:
                text = key[: _SHOWN + 1].decode(errors="backslashreplace")
                shown = f"key {text if len(key) <= _SHOWN else text[:_SHOWN] + '...'}"
            what = (
                f"a record of {item.size} bytes, with {shown}, is too large for topic {destination.topic}, "
                f"whose limit is {self._limit}"
            )
            if destination.oversized == "fail":
                raise SinkError(
                    what,
                    table=destination.table,
                    version=version,
                    hint="Raise max.message.bytes of the topic, or set sink.oversized to dlq or skip",
                )
            if destination.oversized == "dlq":
                document = {
                    "reason": "the record is larger than the topic takes",
                    "pipeline": destination.pipeline,
                    "table": destination.table,
                    "topic": destination.topic,
                    "version": version,
                    "key": None if key is None else key[: self._key_limit].decode(errors="backslashreplace"),
                    "size": item.size,
                    "limit": self._limit,
                }
                value = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
                key = key if len(key or b"") <= self._key_limit else None
                send_record(producer, destination.dlq_topic, 0, key, value, limited_by=destination.topic)
            if not self.count or destination.oversized == "skip":
                where = "skipped" if destination.oversized == "skip" else f"see topic {destination.dlq_topic}"
                log.warning("%s: %s", what, where, extra={"table": destination.table, "version": version})
            self.count += 1
