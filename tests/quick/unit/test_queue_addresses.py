"""Addresses of queues."""

import pytest

from cdfd.errors import ConfigError
from cdfd.storage.queues import address
from cdfd.storage.queues.address import QueueAddress

AWS = "https://sqs.eu-west-1.amazonaws.com/123/shop"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sqs://eu-west-1/shop", QueueAddress("sqs", "eu-west-1", "shop")),
        (AWS, QueueAddress("sqs", "eu-west-1", "shop", AWS)),
        (
            "sqs://sqs.us-gov-east-1.amazonaws.com/1/q",
            QueueAddress("sqs", "us-gov-east-1", "q", "https://sqs.us-gov-east-1.amazonaws.com/1/q"),
        ),
        ("http://localhost:4566/0/q", QueueAddress("sqs", None, "q", "http://localhost:4566/0/q")),
        ("pubsub://shop-lake/cdfd", QueueAddress("pubsub", "shop-lake", "cdfd")),
        ("pubsub://example.com:shop/cdfd-orders", QueueAddress("pubsub", "example.com:shop", "cdfd-orders")),
        ("azure-queue://shoplake/cdfd", QueueAddress("azure-queue", "shoplake", "cdfd")),
        ("https://shoplake.queue.core.windows.net/cdfd", QueueAddress("azure-queue", "shoplake", "cdfd")),
    ],
)
def test_address_names_service_owner_and_queue(text: str, expected: QueueAddress) -> None:
    assert QueueAddress.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "shop",
        "sqs://shop",
        "https://sqs.eu-west-1.amazonaws.com/shop",
        "https://user:secret@sqs.eu-west-1.amazonaws.com/1/shop",
        "https://[x/1/2",
        "ftp://x/1/2",
        "pubsub://shop",
        "pubsub://shop/a/b",
        "azure-queue://Shop/cdfd",
        "azure-queue://shoplake/cdfd?sv=secret",
    ],
)
def test_other_text_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="address of the queue") as caught:
        QueueAddress.parse(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("kind", "package"), [("pubsub", "google.auth"), ("azure-queue", "azure.storage.queue")])
def test_missing_extra_is_named(kind: address.Kind, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "_EXTRAS", {kind: f"no_such_package.{package}"})
    with pytest.raises(ConfigError, match="is not installed") as caught:
        QueueAddress(kind, "owner", "name").check_installed()
    assert f"'cdfd[{kind}]'" in str(caught.value.hint)


def test_queue_of_sqs_needs_no_extra() -> None:
    QueueAddress.parse(AWS).check_installed()
