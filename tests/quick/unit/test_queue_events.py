"""The objects that events of stores name."""

import base64
import json
from typing import Any

import pytest

from cdfd.storage.queues.base import ObjectCreated
from cdfd.storage.queues.events import parse_azure_event, parse_gcs_event, parse_s3_event

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
    assert parse_s3_event(json.dumps(event)) == [ObjectCreated("b", KEY)] * times


@pytest.mark.parametrize(
    "event",
    [{"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}, BRIDGE | {"detail-type": "Object Deleted"}],
)
def test_events_of_another_kind(event: Any) -> None:
    assert parse_s3_event(json.dumps(event)) == []


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
    assert parse_s3_event(body) is None


@pytest.mark.parametrize(
    "place", [None, 3, {}, {"bucket": "b", "object": []}, {"bucket": {"name": 3}, "object": {"key": None}}]
)
def test_one_that_names_nothing(place: Any) -> None:
    assert parse_s3_event(json.dumps({"Records": [record() | {"s3": place}]})) == [ObjectCreated("", "")]
    assert parse_s3_event(json.dumps(BRIDGE | {"detail": place})) == [ObjectCreated("", "")]


def test_key_of_event_bridge_is_not_encoded() -> None:
    key = "lake/a+b%20c/_delta_log/1.json"
    event = BRIDGE | {"detail": {"bucket": {"name": "b"}, "object": {"key": key}}}
    assert parse_s3_event(json.dumps(event)) == [ObjectCreated("b", key)]


GCS = {"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": KEY, "payloadFormat": "NONE"}


def test_object_of_cloud_storage() -> None:
    assert parse_gcs_event(GCS) == [ObjectCreated("b", KEY)]


@pytest.mark.parametrize("kind", ["OBJECT_DELETE", "OBJECT_ARCHIVE", "OBJECT_METADATA_UPDATE"])
def test_other_event_of_cloud_storage_announces_nothing(kind: str) -> None:
    assert parse_gcs_event(GCS | {"eventType": kind}) == []


@pytest.mark.parametrize(
    "attributes", [None, 3, [], {}, {"eventType": 3}, {"eventType": "OBJECT_FINALIZE"}, GCS | {"eventType": "X"}]
)
def test_no_event_of_cloud_storage(attributes: object) -> None:
    assert parse_gcs_event(attributes) is None


SUBJECT = f"/blobServices/default/containers/b/blobs/{KEY}"
URL = "https://lake.dfs.core.windows.net/b/lake/my%20orders/_delta_log/00000000000000000001.json"
GRID = {"eventType": "Microsoft.Storage.BlobCreated", "subject": SUBJECT, "data": {"url": URL}}
CLOUD = {"specversion": "1.0", "type": "Microsoft.Storage.BlobCreated", "subject": SUBJECT[1:], "data": {"url": URL}}
RENAMED = GRID | {
    "eventType": "Microsoft.Storage.BlobRenamed",
    "data": {"destinationUrl": URL, "sourceUrl": "https://lake.dfs.core.windows.net/b/temporary"},
}


@pytest.mark.parametrize("coded", [True, False], ids=["Base64", "plain"])
@pytest.mark.parametrize("event", [GRID, CLOUD, RENAMED, [GRID], GRID | {"data": None}, GRID | {"subject": "x"}])
def test_blob_of_azure(event: Any, coded: bool) -> None:
    text = json.dumps(event)
    assert parse_azure_event(base64.b64encode(text.encode()).decode() if coded else text) == [ObjectCreated("b", KEY)]


def test_blob_of_azure_whose_subject_and_url_differ_is_both() -> None:
    event = GRID | {"subject": SUBJECT.replace(" ", "%20")}
    assert parse_azure_event(json.dumps(event)) == [
        ObjectCreated("b", KEY.replace(" ", "%20")),
        ObjectCreated("b", KEY),
    ]


def test_other_event_of_azure_storage_announces_nothing() -> None:
    assert parse_azure_event(json.dumps(GRID | {"eventType": "Microsoft.Storage.BlobDeleted"})) == []


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "3",
        "[3]",
        "{}",
        "////",
        base64.b64encode(b"\xff").decode(),
        json.dumps(GRID | {"eventType": "Microsoft.KeyVault.SecretExpired"}),
        json.dumps([GRID, {"eventType": "Other"}]),
    ],
)
def test_no_event_of_azure_storage(body: str) -> None:
    assert parse_azure_event(body) is None


@pytest.mark.parametrize("data", [None, 3, {}, {"url": 3}, {"url": "https://[x/b/k"}, {"url": "https://lake/b"}])
def test_event_of_azure_that_names_nothing(data: Any) -> None:
    assert parse_azure_event(json.dumps(GRID | {"subject": "", "data": data})) == []
