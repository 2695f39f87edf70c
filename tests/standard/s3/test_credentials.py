"""Credentials that expire, are rotated, or come late, while a client is in use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cdfd.catalogs.base import Credential
from cdfd.catalogs.vending import VendedKeys, Vendor
from cdfd.errors import StorageError
from cdfd.storage.credentials import SOURCE
from cdfd.storage.s3 import client as s3_client
from cdfd.storage.s3.storage import S3Storage, open_s3
from tests.support.catalogs.memory import MemoryCatalog
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


def open_vended(proxy: Proxy, bucket: str) -> tuple[MemoryCatalog, S3Storage]:
    """A store with keys of a catalog, which vends other ones at each request."""
    catalog, location = MemoryCatalog(vends=True), f"s3://{bucket}/t"

    def vend(name: str) -> tuple[Credential]:
        key = f"vended-key-{catalog.vended}"
        keys = {"s3.access-key-id": key, "s3.secret-access-key": SECRET, "s3.session-token": "vended-token"}
        return (Credential(location, keys),)

    catalog.keys = vend
    source = VendedKeys(Vendor(catalog), "main.sales.orders", "id", location)
    return catalog, open_s3(location, {SOURCE: source, "endpoint_url": proxy.url, "region": "us-east-1"})


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


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "InvalidToken", "ExpiredToken"])
async def test_refused_keys_of_a_catalog_are_vended_again(proxy: Proxy, bucket: str, code: str) -> None:
    catalog, store = open_vended(proxy, bucket)
    await store.put("x", b"data")
    proxy.faults = [Fault("answer", 9999, 403, code, concerns=lambda asked: "vended-key-1/" in asked.key)]
    reads = await asyncio.gather(*(store.read("x") for _ in range(20)))
    assert (set(reads), catalog.vended) == ({b"data"}, 2)


async def test_keys_that_are_not_in_the_options_are_masked_in_answers(
    proxy: Proxy, bucket: str, write_keys: Callable[[str], None]
) -> None:
    write_keys("key-of-the-profile")
    message = f"vended-key-1 vended-token key-of-the-profile {SECRET} may not do that"
    proxy.faults = [Fault("answer", 9999, 403, "AccessDenied", message=message)]
    with pytest.raises(StorageError) as of_catalog:
        await open_vended(proxy, bucket)[1].read("x")
    assert "AccessDenied: *** *** key-of-the-profile *** may not do that" in str(of_catalog.value)
    with pytest.raises(StorageError) as of_profile:
        await open_store(proxy, bucket).read("x")
    assert "AccessDenied: vended-key-1 vended-token *** *** may not do that" in str(of_profile.value)


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
