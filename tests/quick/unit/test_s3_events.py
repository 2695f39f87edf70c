"""The objects in S3 that messages name."""

import json
from typing import Any

import pytest

from cdfd.log.notifications import Created, parse_event

KEY = "lake/my orders/_delta_log/00000000000000000001.json"


def record(event: str = "ObjectCreated:Put", source: str = "aws:s3") -> dict[str, Any]:
    named = {"bucket": {"name": "b"}, "object": {"key": KEY.replace(" ", "+").replace("_", "%5F"), "size": 3}}
    return {"eventSource": source, "eventName": event, "s3": named}


S3 = {"Records": [record(), record("ObjectRemoved:Delete"), record("ObjectCreated:CompleteMultipartUpload")]}
BRIDGE = {
    "source": "aws.s3",
    "detail-type": "Object Created",
    "detail": {"bucket": {"name": "b"}, "object": {"key": KEY}},
}


def sns(event: Any) -> dict[str, Any]:
    return {"Type": "Notification", "Message": json.dumps(event)}


@pytest.mark.parametrize(
    ("event", "times"),
    [
        (S3, 2),
        (sns(S3), 2),
        (BRIDGE, 1),
        (sns(BRIDGE), 1),
        ({"Records": [record("s3:ObjectCreated:Put", "minio:s3")]}, 1),
    ],
    ids=["S3", "by SNS", "EventBridge", "EventBridge by SNS", "MinIO"],
)
def test_objects_that_were_created(event: Any, times: int) -> None:
    assert parse_event(json.dumps(event)) == [Created("b", KEY)] * times


@pytest.mark.parametrize(
    "event",
    [{"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}, BRIDGE | {"detail-type": "Object Deleted"}],
)
def test_events_of_another_kind(event: Any) -> None:
    assert parse_event(json.dumps(event)) == []


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "3",
        "{}",
        '{"Records": [3]}',
        '{"Records": [{"eventSource": "aws:kinesis"}]}',
        json.dumps(sns(sns(sns(S3)))),
    ],
)
def test_no_event_of_s3(body: str) -> None:
    assert parse_event(body) is None


@pytest.mark.parametrize(
    "place", [None, 3, {}, {"bucket": "b", "object": []}, {"bucket": {"name": 3}, "object": {"key": None}}]
)
def test_one_that_names_nothing(place: Any) -> None:
    assert parse_event(json.dumps({"Records": [record() | {"s3": place}]})) == [Created("", "")]
    assert parse_event(json.dumps(BRIDGE | {"detail": place})) == [Created("", "")]
