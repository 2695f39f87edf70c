"""The events by which stores announce new objects, as their queues carry them. Pure.

Messages come from outside: whatever is not an event of the store is None, and an event that lacks names announces an object without a name.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

import orjson

from cdfd.storage.queues.base import ObjectCreated

_WRAPS = 2
"""Envelopes around an event, at most: that of SNS, and a custom one."""


def parse_s3_event(body: str) -> list[ObjectCreated] | None:
    """The objects that an event of S3 announces as created; None for a message that is not an event of S3.

    Events come from S3 itself ("Event message structure" in its user guide), from EventBridge ("EventBridge event message structure"), or
    from either one through SNS. Events of other kinds (a deletion, the test event of a new configuration) announce none.
    """
    for _ in range(_WRAPS + 1):
        document = _document(body)
        if not isinstance(document, dict):
            return None
        if document.get("source") == "aws.s3":
            # Keys in these events are not encoded.
            created = document.get("detail-type") == "Object Created"
            return [ObjectCreated(*_s3_names(document.get("detail")))] if created else []
        if document.get("Event") == "s3:TestEvent":
            return []
        if isinstance(document.get("Records"), list):
            created = []
            for record in document["Records"]:
                if not isinstance(record, dict) or record.get("eventSource") not in ("aws:s3", "minio:s3"):
                    return None
                if str(record.get("eventName")).removeprefix("s3:").startswith("ObjectCreated:"):
                    bucket, key = _s3_names(record.get("s3"))
                    # Keys in these events are URL-encoded, with + for a space.
                    created.append(ObjectCreated(bucket, unquote_plus(key)))
            return created
        wrapped = document.get("Message")
        if not isinstance(wrapped, str):
            return None
        body = wrapped
    return None


def parse_gcs_event(attributes: object) -> list[ObjectCreated] | None:
    """The object that a notification of Google Cloud Storage announces as created, by the attributes of its Pub/Sub message.

    None if they are not those of a notification ("Pub/Sub notifications for Cloud Storage"). Its data is not needed.
    """
    bucket, key, event = (_text(attributes, name) for name in ("bucketId", "objectId", "eventType"))
    if not event.startswith("OBJECT_") or not bucket:
        return None
    return [ObjectCreated(bucket, key)] if event == "OBJECT_FINALIZE" else []


def parse_azure_event(body: str) -> list[ObjectCreated] | None:
    """The blobs that an event of Azure Event Grid announces as created; None for a message that is not an event of Azure Storage.

    A storage queue has events in Base64, in the schema of Event Grid or of CloudEvents 1.0 ("Azure Blob Storage as an Event Grid source").
    The account is not part of the result: an event of another account's container of the same name only wakes a reader in vain.
    """
    with suppress(ValueError):  # JSON never is Base64: it begins with a bracket
        body = b64decode(body, validate=True).decode()
    document = _document(body)
    events = document if isinstance(document, list) else [document]
    if not events:
        return None
    created: list[ObjectCreated] = []
    for event in events:
        kind = _text(event, "eventType") or _text(event, "type")
        if not kind.startswith("Microsoft.Storage."):
            return None
        if kind in _AZURE_CREATED:
            created += dict.fromkeys(_from_event_grid(event))
    return created


# Writers of accounts with a hierarchical namespace rename a temporary file to the log entry.
_AZURE_CREATED = {"Microsoft.Storage.BlobCreated", "Microsoft.Storage.BlobRenamed"}


def _from_event_grid(event: Mapping[str, Any]) -> Iterator[ObjectCreated]:
    """The blob as the subject names it, and as the URL does. They differ in keys with special characters: only a URL is encoded."""
    container, separator, key = _text(event, "subject").partition("/containers/")[2].partition("/blobs/")
    if separator:
        yield ObjectCreated(container, key)
    url = _text(event.get("data"), "destinationUrl") or _text(event.get("data"), "url")
    try:
        path = urlsplit(url).path
    except ValueError:
        return
    container, separator, key = path.removeprefix("/").partition("/")
    if separator:
        yield ObjectCreated(unquote(container), unquote(key))


def _document(body: str) -> Any:
    """A message as JSON; None if it is none."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _s3_names(place: Any) -> tuple[str, str]:
    """Bucket and key; empty if they are missing."""
    fields = place if isinstance(place, dict) else {}
    return _text(fields.get("bucket"), "name"), _text(fields.get("object"), "key")


def _text(place: Any, name: str) -> str:
    value = place.get(name) if isinstance(place, Mapping) else None
    return value if isinstance(value, str) else ""
