"""Encoders of a format, for destinations that no configuration describes."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from cdfd.encode.arrow import RECORD_BYTES
from cdfd.encode.formats import EncoderOptions, FormatChoice, record_format
from cdfd.encode.records import Origin, RecordEncoder
from cdfd.encode.registered import Registration
from cdfd.sinks.kafka.destination import MakeEncoder, TopicFacts
from cdfd.sinks.kafka.records.murmur2 import partitions


def encoders(
    choice: str | FormatChoice, key: Sequence[str] = (), registration: Registration | None = None, **options: Any
) -> MakeEncoder:
    """A function that creates encoders as the connector does. `options`: of `EncoderOptions`."""

    def make(origin: Origin, facts: TopicFacts) -> RecordEncoder:
        of_topic = {
            "partitioner": partial(partitions, count=facts.partitions),
            "record_bytes": min(RECORD_BYTES, facts.limit // 2),
            "clock": time.time_ns,
        }
        return record_format(choice).encoder(
            EncoderOptions(origin, key, facts.tombstones, registration=registration, **of_topic, **options)
        )

    return make
