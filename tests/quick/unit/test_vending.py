"""Credentials that a catalog vends: shared by prefix, renewed before they end."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from dataclasses import dataclass
from threading import Event
from weakref import ref

import pytest

from cdfd.catalogs.base import Credential, holds
from cdfd.catalogs.vending import VendedKeys, Vendor
from cdfd.errors import StorageError
from cdfd.storage.credentials import SOURCE
from cdfd.storage.location import open_storage
from cdfd.storage.s3 import client as s3_client
from cdfd.storage.s3.client import client_for
from cdfd.storage.s3.loop import request_loop
from cdfd.storage.s3.options import parse
from tests.support.catalogs.memory import MemoryCatalog
from tests.support.lake import run

ORDERS, ITEMS = "s3://lake/sales/orders", "s3://lake/sales/items"


@dataclass
class Time:
    seconds: float = 1_000_000.0


def credential(prefix: str, key: str = "k", ends: float | None = None) -> Credential:
    return Credential(prefix, {"s3.access-key-id": key}, None if ends is None else int(ends * 1000))


class Scene:
    """A catalog in memory, a clock, and the vendor between them."""

    def __init__(self, *vended: Credential) -> None:
        self.time = Time()
        self.catalog = MemoryCatalog(vends=True)
        self.vend(*vended)
        self.vendor = Vendor(self.catalog, lambda: self.time.seconds)

    def vend(self, *vended: Credential) -> None:
        self.catalog.keys = lambda name: vended

    def key(self, location: str = ORDERS, name: str = "a.b.c") -> str:
        return run(self.vendor.credential(name, None, location)).config["s3.access-key-id"]


def test_longest_prefix_counts() -> None:
    scene = Scene(
        credential("s3://lake", "far"), credential("s3://lake/sales/", "near"), credential("s3://lake/sales/ord", "x")
    )
    assert scene.key() == "near"
    assert scene.key("s3a://lake/other", "a.b.d") == "far"
    assert scene.catalog.vended == 1


@pytest.mark.parametrize(
    ("prefix", "location", "expected"),
    [
        ("s3://b/t", "s3://b/t", True),
        ("s3://b/t/", "s3a://b/t/x", True),
        ("s3://b/t", "s3://b/t2", False),
        ("s3://b", "s3://bc/t", False),
        ("S3://b/t", "s3://b/t", True),
        ("abfss://c@a.dfs.core.windows.net", "abfss://c@a.dfs.core.windows.net/t", True),
        ("/data", "/data/t", True),
        ("/data", "/data2", False),
    ],
)
def test_prefix_is_a_folder(prefix: str, location: str, expected: bool) -> None:
    assert holds(prefix, location) is expected


@pytest.mark.parametrize(("life", "renewed_after"), [(3600, 3300), (100, 80)])
def test_renewed_before_the_end(life: float, renewed_after: float) -> None:
    scene = Scene()
    scene.vend(credential(ORDERS, "first", scene.time.seconds + life))
    assert scene.key() == "first"
    scene.vend(credential(ORDERS, "second", scene.time.seconds + 2 * life))
    scene.time.seconds += renewed_after - 1
    assert scene.key() == "first"
    scene.time.seconds += 2
    assert scene.key() == "second"


def test_one_without_an_end_is_kept() -> None:
    scene = Scene(credential(ORDERS))
    scene.key()
    scene.time.seconds += 1e9
    scene.key()
    assert scene.catalog.vended == 1


def test_catalog_that_is_down_is_noticed_once_the_last_one_has_ended() -> None:
    scene = Scene()
    scene.vend(credential(ORDERS, "first", scene.time.seconds + 3600))
    scene.key()

    def down(name: str) -> tuple[Credential, ...]:
        raise StorageError("the catalog cannot be reached", retriable=True)

    scene.catalog.keys = down
    scene.time.seconds += 3500
    assert scene.key() == "first"
    scene.time.seconds += 97
    with pytest.raises(StorageError, match="cannot be reached"):
        scene.key()


def test_refused_one_is_forgotten() -> None:
    scene = Scene(credential(ORDERS, "first"))
    scene.key()
    scene.vend(credential(ORDERS, "second"))
    scene.vendor.expire(ORDERS, "first")
    assert scene.key() == "second"
    scene.vendor.expire(ORDERS, "first")  # by a request that began before
    scene.key()
    assert scene.catalog.vended == 2


def test_table_that_is_opened_again_has_the_same_client() -> None:
    scene = Scene()

    def client(name: str = "a.b.c", location: str = ORDERS, vendor: Vendor = scene.vendor) -> object:
        return client_for(parse({SOURCE: VendedKeys(vendor, name, "id", location)}, {}))

    assert client() is client()
    others = [client(name="a.b.d"), client(location=ITEMS), client(vendor=Vendor(scene.catalog))]
    assert len({id(client()), *map(id, others)}) == 4


def test_clients_of_tables_that_are_gone_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_client, "_recent", deque(maxlen=2), raising=False)
    vendor, loop = Scene().vendor, request_loop()
    gc.collect()
    before, hooks = len(s3_client._clients), len(loop._closing)
    places = [f"s3://lake/{n}" for n in range(9)]
    stores = [open_storage(place, {SOURCE: VendedKeys(vendor, "a.b.c", "id", place)}) for place in places]
    used, closed = [ref(store._client) for store in stores], Event()  # type: ignore[attr-defined]

    async def open_something() -> None:
        stores[0]._client._open.callback(closed.set)  # type: ignore[attr-defined]

    loop.submit(open_something()).result(10)
    gc.collect()
    assert all(client() is not None for client in used)
    stores.clear()
    gc.collect()
    assert closed.wait(10)
    assert [n for n, client in enumerate(used) if client() is not None] == [7, 8]

    async def settle() -> None:
        await asyncio.sleep(0.05)

    loop.submit(settle()).result(10)
    assert len(s3_client._clients) <= before + 2
    assert len(loop._closing) <= hooks + 3


def test_callers_share_a_request() -> None:
    scene = Scene(credential("s3://lake"))

    async def both() -> None:
        names = [("a.b.c", ORDERS)] * 3 + [("a.b.d", ITEMS)] * 3
        await asyncio.gather(*(scene.vendor.credential(name, None, location) for name, location in names))

    run(both())
    assert scene.catalog.vended == 1


def test_credentials_of_one_table_each_are_requested_at_the_same_time() -> None:
    scene = Scene()
    scene.catalog.keys = lambda name: (credential(f"s3://lake/{name}"),)

    async def many() -> None:
        await asyncio.gather(*(scene.vendor.credential(f"a.b.{n}", None, f"s3://lake/a.b.{n}") for n in range(5)))

    run(many())
    assert scene.catalog.vended == 5


def test_early_request_is_that_of_the_table_and_its_error_is_not_lost() -> None:
    scene = Scene()
    scene.catalog.keys = lambda name: (credential(f"s3://lake/{name}"),)
    scene.key("s3://lake/a.b.c", "a.b.c")

    async def early(name: str) -> None:
        scene.vendor.request_early(name)
        await asyncio.sleep(0)
        await scene.vendor.credential(name, None, f"s3://lake/{name}")

    run(early("a.b.d"))
    run(early("a.b.d"))
    assert scene.catalog.vended == 2

    def refused(name: str) -> tuple[Credential, ...]:
        raise StorageError("refused")

    scene.catalog.keys = refused
    with pytest.raises(StorageError, match="refused"):
        run(early("a.b.e"))


@pytest.mark.parametrize(
    "vended", [(), (credential(ITEMS),), (credential(ORDERS, ends=5.0),)], ids=["none", "another", "ended"]
)
def test_none_for_the_location_is_a_transient_error(vended: tuple[Credential, ...]) -> None:
    with pytest.raises(StorageError, match="other locations, or have ended") as caught:
        Scene(*vended).key()
    assert caught.value.retriable


def test_secrets_are_in_no_repr() -> None:
    assert "hidden" not in repr(Credential(ORDERS, {"s3.secret-access-key": "hidden"}))
