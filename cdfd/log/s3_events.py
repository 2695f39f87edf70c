"""Parses S3 event notifications: messages from S3 itself, or through SNS or EventBridge."""

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

import orjson

_WRAPS = 2
"""Envelopes around an event, at most: that of SNS, and a custom one."""


class Created(NamedTuple):
    """An object that was written."""

    bucket: str
    key: str


def parse(body: str) -> list[Created] | None:
    """The objects that a message announces as created; None for a message that is not an S3 event.

    Events of other kinds (a deletion, the test event of a new configuration) announce none.
    """
    for _ in range(_WRAPS + 1):
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(document, dict):
            return None
        if document.get("source") == "aws.s3":
            return list(_from_event_bridge(document))
        if document.get("Event") == "s3:TestEvent":
            return []
        if isinstance(document.get("Records"), list):
            records = document["Records"]
            created = []
            for record in records:
                if not isinstance(record, dict) or record.get("eventSource") not in ("aws:s3", "minio:s3"):
                    return None
                if str(record.get("eventName")).removeprefix("s3:").startswith("ObjectCreated:"):
                    bucket, key = _names(record.get("s3"))
                    # Keys in these events are URL-encoded, with + for a space.
                    created.append(Created(bucket, unquote_plus(key)))
            return created
        wrapped = document.get("Message")
        if not isinstance(wrapped, str):
            return None
        body = wrapped
    return None


def _from_event_bridge(event: dict[str, Any]) -> Iterator[Created]:
    if event.get("detail-type") == "Object Created":
        yield Created(*_names(event.get("detail")))


def _names(place: Any) -> tuple[str, str]:
    """Bucket and key; empty if they are missing."""
    fields = place if isinstance(place, dict) else {}
    bucket, object_ = fields.get("bucket"), fields.get("object")
    return _text(bucket, "name"), _text(object_, "key")


def _text(place: Any, name: str) -> str:
    value = place.get(name) if isinstance(place, dict) else None
    return value if isinstance(value, str) else ""
