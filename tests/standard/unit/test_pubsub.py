"""Access tokens and answers of Google Pub/Sub."""

import json
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from cdfd.errors import StorageError
from cdfd.storage.queues import pubsub
from cdfd.storage.queues.base import ObjectCreated
from tests.support.queues.pubsub import PROJECT, PubSub
from tests.support.queues.pubsub import pubsub as serve

NAME = f"projects/{PROJECT}/subscriptions/cdfd"
EVENT = {"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": "k"}


@pytest.fixture
def service() -> Iterator[PubSub]:
    with serve() as running:
        running.create("cdfd")
        yield running


def service_account(folder: Path, service: PubSub) -> Path:
    """The key file of a service account whose tokens the stand-in gives."""
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / "key.json"
    account = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key": pem.decode(),
        "client_email": "cdfd@shop-lake.example",
        "token_uri": f"{service.url}/token",
    }
    file.write_text(json.dumps(account))
    return file


async def test_token_of_a_service_account_is_fetched_once(
    service: PubSub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(service_account(tmp_path, service)))
    service.secured = True
    async with aiohttp.ClientSession() as session:
        subscription = pubsub.Subscription(session, service.url, NAME, pubsub.Tokens())
        for _ in range(2):
            service.publish("cdfd", EVENT)
            [message] = await subscription.receive()
            assert message.created == [ObjectCreated("b", "k")]
    assert service.tokens == 1


async def test_refused_token_is_replaced(service: PubSub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(service_account(tmp_path, service)))
    service.publish("cdfd", EVENT)
    service.answers = [(401, b"{}")]
    async with aiohttp.ClientSession() as session:
        subscription = pubsub.Subscription(session, service.url, NAME, pubsub.Tokens())
        with pytest.raises(StorageError, match="401"):
            await subscription.receive()
        assert len(await subscription.receive()) == 1
    assert service.tokens == 2


async def test_credentials_that_do_not_exist_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    async with aiohttp.ClientSession() as session:
        with pytest.raises(StorageError, match="DefaultCredentialsError") as caught:
            await pubsub.Subscription(session, "http://127.0.0.1:1", NAME, pubsub.Tokens()).receive()
    assert "application default" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, b"not JSON", "not JSON"),
        (200, b"[]", "not JSON"),
        (200, b'{"receivedMessages": 3}', "another form"),
        (200, b'{"receivedMessages": [{"ackId": "x"}]}', "another form"),
        (200, b'{"receivedMessages": [{"ackId": "x", "message": "y"}]}', "another form"),
        (200, b" " * (pubsub.MAX_RESPONSE_BYTES + 1), "more than 32 MiB"),
        (403, b'{"error": {"status": "PERMISSION_DENIED"}}', "PERMISSION_DENIED"),
        (429, b'{"error": {"status": 3}}', "429"),
        (503, b"<html>", "503"),
    ],
)
async def test_other_answers_are_errors(service: PubSub, status: int, body: bytes, reason: str) -> None:
    service.answers = [(status, body)]
    async with aiohttp.ClientSession() as session:
        with pytest.raises(StorageError, match=reason):
            await pubsub.Subscription(session, service.url, NAME, None).receive()


async def test_pull_that_ends_without_a_message_is_empty(service: PubSub) -> None:
    service.answers = [(504, b'{"error": {"status": "DEADLINE_EXCEEDED"}}')]
    async with aiohttp.ClientSession() as session:
        assert await pubsub.Subscription(session, service.url, NAME, None).receive() == []
