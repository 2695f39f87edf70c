"""What messages of a queue say of objects in S3: from S3 itself, or by way of SNS or EventBridge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

import orjson

_WRAPS = 2
"""Envelopes around an event: of SNS, in one of somebody's own making."""


class Created(NamedTuple):
    """An object that was written."""

    bucket: str
    key: str


def parse(body: str) -> list[Created] | None:
    """Objects that a message says were created; None where it is no event of S3.

    An event of another kind (a deletion, the test event of a new configuration) has none.
    """
    for _ in range(_WRAPS + 1):
        try:
            found = orjson.loads(body)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(found, dict):
            return None
        if found.get("source") == "aws.s3":
            return list(_from_event_bridge(found))
        if found.get("Event") == "s3:TestEvent":
            return []
        if isinstance(found.get("Records"), list):
            return _from_s3(found["Records"])
        wrapped = found.get("Message")
        if not isinstance(wrapped, str):
            return None
        body = wrapped
    return None


def _from_s3(records: list[Any]) -> list[Created] | None:
    created = []
    for record in records:
        if not isinstance(record, dict) or record.get("eventSource") not in ("aws:s3", "minio:s3"):
            return None
        if str(record.get("eventName")).removeprefix("s3:").startswith("ObjectCreated:"):
            bucket, key = _names(record.get("s3"))
            # Keys are encoded here as in a form.
            created.append(Created(bucket, unquote_plus(key)))
    return created


def _from_event_bridge(event: dict[str, Any]) -> Iterator[Created]:
    if event.get("detail-type") == "Object Created":
        yield Created(*_names(event.get("detail")))


def _names(place: Any) -> tuple[str, str]:
    """Bucket and key; empty where they are not there."""
    found = place if isinstance(place, dict) else {}
    bucket, object_ = found.get("bucket"), found.get("object")
    return _text(bucket, "name"), _text(object_, "key")


def _text(place: Any, name: str) -> str:
    value = place.get(name) if isinstance(place, dict) else None
    return value if isinstance(value, str) else ""
