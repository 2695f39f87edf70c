"""Credentials that expire, are rotated, or come late, while a client is in use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cdfd.errors import StorageError
from cdfd.storage.s3 import client as s3_client
from cdfd.storage.s3.storage import S3Storage, open_s3
from tests.support.s3.proxy import Fault, Proxy
from tests.support.s3.server import SECRET


@pytest.fixture
def write_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes the access key of the profile that the environment has."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def write(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET}\n")

    return write


def open_store(proxy: Proxy, bucket: str, deadline: str = "20s") -> S3Storage:
    return open_s3(f"s3://{bucket}/t", {"endpoint_url": proxy.url, "region": "us-east-1", "deadline": deadline})


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"])
async def test_rotated_keys_of_a_profile(
    proxy: Proxy, bucket: str, write_keys: Callable[[str], None], code: str
) -> None:
    write_keys("old-key")
    store = open_store(proxy, bucket)
    await store.put("x", b"data")
    proxy.faults = [Fault("answer", 9999, 403, code, concerns=lambda asked: "old-key" in asked.key)]
    write_keys("new-key")
    assert await store.read("x") == b"data"


async def test_wrong_keys_are_refused_after_a_second_look(
    proxy: Proxy, bucket: str, write_keys: Callable[[str], None]
) -> None:
    write_keys("old-key")
    proxy.faults = [Fault("answer", 9999, 403, "InvalidAccessKeyId")]
    with pytest.raises(StorageError, match="InvalidAccessKeyId") as raised:
        await open_store(proxy, bucket).put("x", b"data")
    assert (raised.value.retriable, proxy.count("PUT")) == (False, 2)


async def test_keys_that_come_after_the_first_request(
    proxy: Proxy, bucket: str, write_keys: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "RENEW_SECONDS", 0.0)
    store = open_store(proxy, bucket, "1s")
    with pytest.raises(StorageError, match=r"no answer|no credentials"):
        await store.put("x", b"data")
    write_keys("new-key")
    await store.put("x", b"data")
    assert await store.read("x") == b"data"


async def test_expired_credentials_do_not_open_further_clients(
    proxy: Proxy, bucket: str, write_keys: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client, "RENEW_SECONDS", 0.0)
    write_keys("old-key")
    store = open_store(proxy, bucket, "2s")
    proxy.faults = [Fault("answer", 9999, 400, "ExpiredToken")]
    with pytest.raises(StorageError, match="ExpiredToken"):
        await store.put("x", b"data")
    assert proxy.count("PUT") > 2
    assert len(store._client._open._exit_callbacks) == 1  # type: ignore[attr-defined]
