"""Announced objects: fetched in order, few bytes at a time, and once for each read."""

import asyncio
from collections.abc import Iterator
from itertools import permutations

import numpy as np
import pytest

from cdfd.storage.location import open_storage
from cdfd.storage.s3 import prefetch
from cdfd.storage.s3 import storage as s3_storage
from cdfd.storage.s3.native import CONNECTIONS
from cdfd.storage.s3.storage import S3Storage
from tests.support.s3.proxy import Proxy
from tests.support.s3.server import Server

LARGE = s3_storage.WHOLE_OBJECT_BYTES + 1000
"""Bytes of an object that is its end and one more range."""


@pytest.fixture
def store(proxy: Proxy, bucket: str) -> Iterator[S3Storage]:
    actual = open_storage(f"s3://{bucket}/t", Server(proxy.url).options())
    assert isinstance(actual, S3Storage)
    yield actual
    assert not actual._prefetcher._held


def put(store: S3Storage, proxy: Proxy, names: str, size: int) -> dict[str, bytes]:
    contents = {name: np.random.default_rng(ord(name)).bytes(size) for name in names}
    for name, data in contents.items():
        asyncio.run(store.put(name, data))
    proxy.asked.clear()
    return contents


def read(store: S3Storage, name: str, size: int) -> bytes:
    with store.open_input_file(name, size) as file:
        return bytes(file.read())


def gets(proxy: Proxy, name: str) -> int:
    return proxy.count("GET", f"t/{name}")


def test_a_small_object_that_is_read_twice_is_one_request(store: S3Storage, proxy: Proxy) -> None:
    contents = put(store, proxy, "ab", 1000)
    for name in "aabab":
        store.prefetch(name, 1000)
    for name in "aabab":
        assert read(store, name, 1000) == contents[name]
    assert (gets(proxy, "a"), gets(proxy, "b")) == (1, 1)
    assert read(store, "a", 1000) == contents["a"]
    assert gets(proxy, "a") == 2


def test_a_large_object_is_fetched_for_each_read(store: S3Storage, proxy: Proxy) -> None:
    contents = put(store, proxy, "a", LARGE)
    for _ in range(2):
        store.prefetch("a", LARGE, whole=True)
    # Closing the first one cancels its requests only.
    with store.open_input_file("a", LARGE):
        pass
    assert read(store, "a", LARGE) == contents["a"]
    assert gets(proxy, "a") <= 4


def test_an_object_of_unknown_size_is_read_once(store: S3Storage, proxy: Proxy) -> None:
    """A log entry may be written again, so one response is for one read."""
    put(store, proxy, "a", 10)
    for _ in range(2):
        store.prefetch("a")
    assert asyncio.run(store.read("a"))
    asyncio.run(store.put("a", b"another"))
    assert asyncio.run(store.read("a")) == b"another"


def test_requests_start_in_order_as_many_as_may_run(
    store: S3Storage, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "RUNNING_BYTES", 2500)
    contents = put(store, proxy, "abcdef", 1000)
    proxy.delay = 0.1
    for name in "abcdef":
        store.prefetch(name, 1000)
    assert store._prefetcher._running == 3000
    for name in "abcdef":
        assert read(store, name, 1000) == contents[name]
    assert [asked.path[-1] for asked in proxy.asked[:3]] in map(list, permutations("abc"))
    assert sorted(asked.path[-1] for asked in proxy.asked) == list("abcdef")
    assert not store._prefetcher._running


def test_connections_are_left_to_other_tables(store: S3Storage, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prefetch.RUNNING_REQUESTS < CONNECTIONS
    monkeypatch.setattr(prefetch, "RUNNING_REQUESTS", 2)
    contents = put(store, proxy, "abcdef", 10)
    proxy.delay = 0.1
    for name in "abcdef":
        store.prefetch(name, 10)
    assert store._prefetcher._requests == 2
    for name in "abcdef":
        assert read(store, name, 10) == contents[name]
        assert store._prefetcher._requests <= 2
    assert sorted(asked.path[-1] for asked in proxy.asked) == list("abcdef")
    assert not store._prefetcher._requests


def test_what_is_held_is_bounded(store: S3Storage, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further objects wait for memory until others are read. Objects that are never read make room for later ones."""
    monkeypatch.setattr(prefetch, "MAX_BYTES", 3000)
    contents = put(store, proxy, "abcdefghij", 1000)
    for name in "abcdefghij":
        store.prefetch(name, 1000)
    assert store._prefetcher._held == 3000
    for name in "fghij":
        assert read(store, name, 1000) == contents[name]
        assert store._prefetcher._held <= 3000
    assert not store._prefetcher._announced
