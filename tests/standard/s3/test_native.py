"""The native client of reading: the same bytes as botocore's, and botocore's errors."""

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from unittest.mock import AsyncMock

import obstore
import pytest
from aiobotocore.session import AioSession
from botocore.credentials import ReadOnlyCredentials

from cdfd.errors import NotFoundError, StorageError
from cdfd.storage.location import open_storage
from cdfd.storage.s3 import native as s3_native
from cdfd.storage.s3.errors import Request
from cdfd.storage.s3.native import GetResult, NativeReader, reader_for
from cdfd.storage.s3.options import parse
from cdfd.storage.s3.storage import S3Storage
from tests.support.s3.fixtures import new_bucket
from tests.support.s3.proxy import Asked, Fault, Proxy, proxied
from tests.support.s3.server import KEY_ID, SECRET, Server, moto

DATA = bytes(range(256)) * 4000


def open_store(url: str, bucket: str, **options: object) -> S3Storage:
    actual = open_storage(f"s3://{bucket}/t", Server(url).options(deadline=10, read_timeout="1s", **options))
    assert isinstance(actual, S3Storage)
    return actual


def is_get(asked: Asked) -> bool:
    return asked.method == "GET" and bool(asked.path)


def is_off(asked: Asked, by: timedelta) -> bool:
    """Whether a request was not signed with the time of a store that is so much ahead."""
    return abs(asked.time - datetime.now(UTC) - by) > timedelta(minutes=15)


@pytest.fixture
def natively(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys that obstore was asked for."""
    keys: list[str] = []
    ask = obstore.get_async

    def counted(store: Any, key: str, **options: Any) -> Any:
        keys.append(key)
        return ask(store, key, **options)

    monkeypatch.setattr(obstore, "get_async", counted)
    return keys


async def got(
    store: S3Storage, path: str, start: int = 0, length: int | None = None, etag: str | None = None
) -> GetResult | None:
    async def ask() -> GetResult | None:
        native = await store._client.native()
        assert native is not None
        return await native.get(store._request("read", path), start, length, etag)

    return await store._client.loop.run(ask())


class TestBytes:
    @pytest.mark.parametrize(
        ("start", "length"), [(0, None), (0, 10), (5, 100), (5, None), (-7, None), (0, 1 << 40), (-(1 << 40), None)]
    )
    async def test_are_those_of_botocore(
        self, server: Server, start: int, length: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = open_store(server.url, new_bucket(server))
        await store.put("a b%20c/ü=?#.parquet", DATA)
        ours = await got(store, "a b%20c/ü=?#.parquet", start, length)
        assert ours is not None
        monkeypatch.setattr(store._client, "native", AsyncMock(return_value=None))
        request = store._request("read", "a b%20c/ü=?#.parquet")
        theirs = await store._client.loop.run(store._client.get(request, start, length))
        assert bytes(ours.data) == bytes(theirs.data)
        assert (ours.size, ours.modified_ms, ours.etag) == (theirs.size, theirs.modified_ms, theirs.etag)

    def test_a_file_is_read_by_it(self, proxy: Proxy, bucket: str, natively: list[str]) -> None:
        store = open_store(proxy.url, bucket)
        asyncio.run(store.put("x", DATA))
        with store.open_input_file("x", len(DATA)) as file:
            assert file.read() == DATA
        assert (natively, proxy.count("GET")) == (["t/x"], 1)

    async def test_a_read_ahead_is_done_by_it(self, proxy: Proxy, bucket: str, natively: list[str]) -> None:
        store = open_store(proxy.url, bucket)
        await store.put("x", DATA)
        store.prefetch("x")
        assert await store.read("x") == DATA
        assert (natively, proxy.count("GET")) == (["t/x"], 1)


class TestUnknown:
    async def test_an_object_that_is_not_there(self, proxy: Proxy, bucket: str, natively: list[str]) -> None:
        store = open_store(proxy.url, bucket)
        await store.put("x", DATA)
        with pytest.raises(NotFoundError, match="no object with that name"):
            await asyncio.to_thread(store.open_input_file, "none", 10)
        assert (natively, proxy.count("GET")) == (["t/none"], 1)
        assert await got(store, "x") is not None

    async def test_an_object_that_is_not_there_when_it_is_read_ahead(self, proxy: Proxy, bucket: str) -> None:
        store = open_store(proxy.url, bucket)
        await store.put("x", DATA)
        store.prefetch("absent")
        with pytest.raises(NotFoundError, match="no object with that name"):
            await store.read("absent")
        # asyncio logs their errors when they are deleted.
        futures = [each for each in gc.get_objects() if isinstance(each, asyncio.Future) and each._log_traceback]
        assert not [each for each in futures if isinstance(each._exception, NotFoundError)]

    async def test_an_answer_that_does_not_say_what_is_not_there(self, proxy: Proxy, bucket: str) -> None:
        store = open_store(proxy.url, bucket)
        await store.put("x", DATA)
        proxy.faults = [Fault("answer", 1, 404, "", concerns=is_get)]
        assert await store.read("x") == DATA

    async def test_another_write_of_an_object(self, proxy: Proxy, bucket: str) -> None:
        store = open_store(proxy.url, bucket)
        await store.put("x", DATA)
        assert await got(store, "x", etag='"another"') is None
        assert await got(store, "x") is not None

    async def test_an_empty_object(self, proxy: Proxy, bucket: str) -> None:
        store = open_store(proxy.url, bucket)
        await store.put("empty", b"")
        await store.put("x", DATA)
        with await asyncio.to_thread(store.open_input_file, "empty", 10) as file:
            assert file.read() == b""
        assert await got(store, "x") is not None

    @pytest.mark.parametrize("path", ["a//b", "a/./b"])
    async def test_names_that_it_would_change(self, proxy: Proxy, bucket: str, path: str, natively: list[str]) -> None:
        store = open_store(proxy.url, bucket)
        await store.put(path, DATA)
        with await asyncio.to_thread(store.open_input_file, path, len(DATA)) as file:
            assert file.read() == DATA
        assert (natively, proxy.count("GET")) == ([], 1)

    @pytest.mark.parametrize("kind", ["answer", "reset", "truncate", "stall"])
    async def test_after_a_failure_botocore_asks_for_a_while(
        self, proxy: Proxy, bucket: str, kind: str, natively: list[str]
    ) -> None:
        store = open_store(proxy.url, bucket)
        await store.put("x", DATA)
        proxy.faults = [Fault(kind, concerns=is_get)]  # type: ignore[arg-type]  # one of the kinds
        for _ in range(2):
            with await asyncio.to_thread(store.open_input_file, "x", len(DATA)) as file:
                assert file.read() == DATA
        assert (natively, proxy.count("GET")) == (["t/x"], 3)

    async def test_requests_that_wait_for_one_that_fails_are_left_to_botocore(
        self, proxy: Proxy, bucket: str, natively: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(s3_native, "CONNECTIONS", 1)
        store = open_store(proxy.url, bucket)
        await store.put("x", DATA)
        proxy.faults = [Fault("stall", concerns=is_get)]
        assert await asyncio.gather(got(store, "x"), got(store, "x")) == [None, None]
        assert natively == ["t/x"]

    async def test_requests_that_get_no_connection_are_left_to_botocore(
        self, proxy: Proxy, natively: list[str]
    ) -> None:
        options = parse({"endpoint_url": proxy.url, "skip_signature": "true", "deadline": "200ms"}, {})
        reader, request = NativeReader(proxy.url, "us-east-1", options, None), Request("read", "lake", "t/x", "x")
        reader._room = asyncio.Semaphore(0)
        async with asyncio.timeout(30):
            assert await reader.get(request, 0, None, None) is None
            assert await reader.head(request) is None
        assert (natively, proxy.asked) == ([], [])

    async def test_with_a_corrected_clock(self, proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
        store = open_store(proxy.url, bucket)
        await store.put("x", DATA)
        monkeypatch.setattr(store._client._clock, "offset", timedelta(hours=1))
        assert await got(store, "x") is None

    async def test_with_the_clock_of_each_store(
        self, proxy: Proxy, moto_server: Server, bucket: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        late, right = open_store(proxy.url, bucket), open_store(moto_server.url, bucket)
        await late.put("x", DATA)
        for theirs in (timedelta(hours=2), timedelta(0)):
            date = {"Date": format_datetime(datetime.now(UTC) + theirs, usegmt=True)}
            wrong = [
                Fault("answer", 999, 403, "RequestTimeTooSkewed", date, lambda asked, by=theirs: is_off(asked, by))
            ]
            late._client._native, proxy.faults = None, wrong
            assert await late.read("x") == DATA
            assert is_off(proxy.asked[-1], timedelta(hours=2) - theirs)
            assert await got(right, "x") is not None
        proxy.faults, late._client._native = [], None
        assert await got(late, "x") is not None
        assert caplog.text.count("the clock of this machine is wrong") == 1

    def test_a_denied_file_has_botocore_s_error_without_secrets(self, proxy: Proxy, bucket: str) -> None:
        store = open_store(proxy.url, bucket, session_token="a-session-token")
        asyncio.run(store.put("x", DATA))
        proxy.faults = [Fault("answer", 9, 403, f"Denied{SECRET}a-session-token", concerns=is_get)]
        with pytest.raises(StorageError, match="Allow s3:GetObject on") as caught:
            store.open_input_file("x", len(DATA))
        said = f"{caught.value!r} {caught.value.__dict__}"
        assert SECRET not in said
        assert "a-session-token" not in said

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_reads_with_botocore(self, moto_server: Server, bucket: str) -> None:
        store = open_store(moto_server.url, bucket)
        asyncio.run(store.put("x", DATA))
        with store.open_input_file("x", len(DATA)):
            pass
        child = os.fork()
        if not child:
            os._exit(_read_in_child(moto_server.url, bucket))
        assert os.waitpid(child, 0)[1] == 0


def _read_in_child(url: str, bucket: str) -> int:
    try:
        with open_store(url, bucket).open_input_file("x", len(DATA)) as file:
            return 0 if file.read() == DATA else 1
    except BaseException:  # noqa: BLE001 - the child ends here, whatever happens
        return 2


def lists(proxy: Proxy) -> list[bool]:
    """For each LIST, whether it was sent by obstore, which lists folders in folders too."""
    return ["delimiter" not in asked.query for asked in proxy.asked if "list-type" in asked.query]


NAMES = [f"log/{number:02d}" for number in range(15)]
"""More than one page of a listing."""


@pytest.fixture(scope="module")
def small_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that lists ten objects a page: on a busy machine, moto needs longer for 1,000 than the read timeout of these tests."""
    with moto(tmp_path_factory.mktemp("pages"), page=10) as server:
        yield server


@pytest.fixture
def paged(small_pages: Server) -> Iterator[Proxy]:
    """A network in front of it."""
    with proxied(small_pages.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def large_bucket(small_pages: Server) -> str:
    """A bucket with these objects."""
    bucket = new_bucket(small_pages)
    store = open_store(small_pages.url, bucket)

    async def put() -> None:
        await asyncio.gather(*(store.put(name, b"x") for name in NAMES))

    asyncio.run(put())
    return bucket


class TestListings:
    @pytest.mark.parametrize("after", ["", "log/00.json", "log/01", "log/😀"])
    async def test_are_those_of_botocore(self, proxy: Proxy, bucket: str, after: str) -> None:
        store = open_store(proxy.url, bucket)
        for name in ("log/00.json", "log/01 %20ü.json", "log/02.json", "logs/03.json", "log"):
            await store.put(name, name.encode())
        ours = [stat async for stat in store.list("log/", after)]
        theirs = [stat async for stat in S3Storage(bucket, "t", store._client, page=2).list("log/", after)]
        assert ours == theirs
        assert lists(proxy)[0]
        assert not any(lists(proxy)[1:])

    async def test_a_folder_that_does_not_exist(self, proxy: Proxy, bucket: str) -> None:
        store = open_store(proxy.url, bucket)
        assert [stat async for stat in store.list("log/")] == []
        assert lists(proxy) == [True]

    async def test_all_pages_are_listed(self, paged: Proxy, large_bucket: str) -> None:
        store = open_store(paged.url, large_bucket)
        assert [stat.path async for stat in store.list("log/")] == NAMES
        assert lists(paged) == [True, True]

    @pytest.mark.parametrize("inside", ["log/_sidecars/1", "log/_sidecars/", "log/_empty"])
    async def test_a_folder_in_the_folder_is_left_to_botocore(self, proxy: Proxy, bucket: str, inside: str) -> None:
        """And so is an empty object, which may be the marker of a folder."""
        store = open_store(proxy.url, bucket)
        for name in ("log/00", "log/_last", "log/~"):
            await store.put(name, b"x")
        # The port refuses to write a marker.
        marked = Request("write", bucket, f"t/{inside}", inside)
        await store._client.loop.run(store._client.put(marked, b"" if inside != "log/_sidecars/1" else b"x"))
        expected = ["log/00", "log/_last", "log/~"]
        actual = [stat.path async for stat in store.list("log/")]
        assert actual == (sorted([*expected, inside]) if inside == "log/_empty" else expected)
        assert lists(proxy) == [True, False]

    @pytest.mark.parametrize("kind", ["answer", "reset", "truncate", "stall"])
    async def test_after_a_failure_botocore_goes_on(self, paged: Proxy, large_bucket: str, kind: str) -> None:
        store = open_store(paged.url, large_bucket)
        paged.faults = [Fault(kind, concerns=lambda asked: "continuation-token" in asked.query)]  # type: ignore[arg-type]  # one of the kinds
        assert [stat.path async for stat in store.list("log/")] == NAMES
        assert lists(paged) == [True, True, False]

    async def test_a_reader_that_takes_its_time(self, proxy: Proxy, bucket: str) -> None:
        """The deadline is that of requests: it does not run while the reader does something else."""
        store = open_storage(f"s3://{bucket}/t", Server(proxy.url).options(deadline="2s"))
        for name in ("log/00", "log/_sidecars/1", "log/~"):
            await store.put(name, b"x")
        actual = []
        async for stat in store.list("log/"):
            actual.append(stat.path)
            await asyncio.sleep(2.1)
        assert actual == ["log/00", "log/~"]

    async def test_one_that_is_cancelled_leaves_the_client_usable(self, proxy: Proxy, bucket: str) -> None:
        """obstore panics in each request of a client whose first listing was dropped before its answer came."""
        store = open_store(proxy.url, bucket)
        proxy.delay, proxy.faults = 0.2, [Fault("answer")]  # whose connection stays open

        async def cancel() -> None:
            native = await store._client.native()
            assert native is not None
            listing = await native.listing(store._request("list", "log/"), "")
            assert listing is not None
            page = asyncio.create_task(listing.page())
            await asyncio.sleep(proxy.delay / 2)
            page.cancel()
            with pytest.raises(asyncio.CancelledError):
                await page
            await asyncio.sleep(2 * proxy.delay)  # a traceback may hold the listing so long
            native._paused_until = 0.0

        await store._client.loop.run(cancel())
        gc.collect()
        assert [stat async for stat in store.list("log/")] == []
        assert lists(proxy) == [True, True]

    async def test_a_server_that_includes_the_key_that_a_listing_starts_after(
        self, proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = open_store(proxy.url, bucket)
        for name in ("log/00", "log/01", "log/_sidecars/1", "log/~"):
            await store.put(name, b"x")
        page = store._client.page

        async def including(request: Request, parameters: dict[str, Any], spent: float = 0.0) -> dict[str, Any]:
            before = parameters["StartAfter"]
            assert before.endswith("log/01")
            return await page(request, parameters | {"StartAfter": before[:-1]}, spent)

        monkeypatch.setattr(store._client, "page", including)
        assert [stat.path async for stat in store.list("log/")] == ["log/00", "log/01", "log/~"]


class TestSettings:
    async def test_credentials_that_are_renewed(
        self, proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(s3_native, "PAUSE_SECONDS", 0)  # the keys are wrong
        keys = _Renewing(["OLD", "OLD", "NEW"])
        await open_store(proxy.url, bucket).put("x", DATA)
        reader = NativeReader(proxy.url, "us-east-1", parse({"endpoint_url": proxy.url}), keys)
        request = Request("read", bucket, "t/x", "x")
        for _ in range(3):
            await reader.get(request, 0, None, None)
        assert [asked.key.partition("Credential=")[2][:3] for asked in proxy.asked if is_get(asked)] == [
            "OLD",
            "OLD",
            "NEW",
        ]

    async def test_variables_of_the_environment_do_not_count(
        self, proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await open_store(proxy.url, bucket).put("x", DATA)
        for name, value in (
            ("AWS_SKIP_SIGNATURE", "true"),
            ("AWS_ACCESS_KEY_ID", "another"),
            ("AWS_SESSION_TOKEN", "another"),
            ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1"),
            ("AWS_REGION", "eu-north-1"),
            ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true"),
        ):
            monkeypatch.setenv(name, value)
        store = open_store(proxy.url, bucket)
        await store.stat("x")
        assert await got(store, "x") is not None
        assert f"Credential={KEY_ID}/" in proxy.asked[-1].key
        assert "/us-east-1/s3/" in proxy.asked[-1].key
        assert "x-amz-security-token" not in proxy.asked[-1].key

    async def test_unsigned_requests(self, proxy: Proxy, bucket: str) -> None:
        options = parse({"endpoint_url": proxy.url, "skip_signature": "true"}, {})
        reader = await reader_for(AioSession(), options, _unexpected)
        assert reader is not None
        with pytest.raises(NotFoundError):
            await reader.get(Request("read", bucket, "t/x", "x"), 0, None, None)
        assert (proxy.asked[-1].path, proxy.asked[-1].key) == ("t/x", "")

    @pytest.mark.parametrize(
        ("url", "variables", "kept"),
        [
            ("http://127.0.0.1:1", {}, False),
            ("http://127.0.0.1:1", {"HTTP_PROXY": "http://127.0.0.1:2"}, True),
            ("http://127.0.0.1:1", {"AWS_CA_BUNDLE": "/none.pem"}, False),
            ("https://127.0.0.1:1", {"AWS_CA_BUNDLE": "/none.pem"}, True),
            ("https://127.0.0.1:1", {}, False),
            ("https://127.0.0.1:1", {"AWS_USE_DUALSTACK_ENDPOINT": "true"}, True),
        ],
    )
    async def test_settings_that_need_botocore(
        self, url: str, variables: dict[str, str], kept: bool, clean_environment: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        options = parse({"access_key_id": "key", "secret_access_key": "secret", "endpoint_url": url}, {})
        reader = await reader_for(AioSession(), options, _unexpected)
        assert (reader is None) is kept

    @pytest.mark.parametrize(
        ("bucket", "options", "endpoint"),
        [
            ("lake", {}, "https://lake.s3.eu-west-1.amazonaws.com"),
            ("my.lake", {}, "https://s3.eu-west-1.amazonaws.com"),
            ("lake", {"path_style": "true"}, "https://s3.eu-west-1.amazonaws.com"),
            ("lake", {"endpoint_url": "https://s3.eu-west-1.amazonaws.com"}, "https://s3.eu-west-1.amazonaws.com"),
            ("my.lake", {"path_style": "false"}, "https://my.lake.s3.eu-west-1.amazonaws.com"),
        ],
    )
    def test_the_place_of_the_bucket(self, bucket: str, options: dict[str, str], endpoint: str) -> None:
        url = "https://s3.eu-west-1.amazonaws.com"
        store = NativeReader(url, "eu-west-1", parse(options, {}), None)._open(bucket)
        assert store.config["endpoint"] == endpoint
        assert str(store.config["virtual_hosted_style_request"]) == str(endpoint != url).lower()

    def test_requester_pays(self) -> None:
        options = parse({"request_payer": "true"}, {})
        store = NativeReader("http://127.0.0.1:1", "eu-west-1", options, None)._open("lake")
        assert str(store.config["request_payer"]) == "true"


async def _unexpected() -> None:
    raise AssertionError("there is an endpoint, so no client is needed")


class _Renewing:
    """Credentials that change."""

    def __init__(self, keys: list[str]) -> None:
        self._keys = iter(keys)

    async def get_frozen_credentials(self) -> object:
        return ReadOnlyCredentials(next(self._keys), "secret", None)


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)


EXITING = """
import asyncio, sys, threading, time
from cdfd.storage.location import open_storage

call_soon_threadsafe = asyncio.BaseEventLoop.call_soon_threadsafe

def slow(self, *arguments, **keywords):
    handle = call_soon_threadsafe(self, *arguments, **keywords)
    if isinstance(threading.current_thread(), threading._DummyThread):  # of Rust
        time.sleep(0.5)
    return handle

class Late:
    def __del__(self, sleep=time.sleep):
        sleep(1)

asyncio.BaseEventLoop.call_soon_threadsafe = slow
late = Late()  # deleted while the interpreter ends
store = open_storage(sys.argv[1], {"endpoint_url": sys.argv[2], "access_key_id": sys.argv[3], "secret_access_key": sys.argv[4]})
print(len(asyncio.run(store.read("a"))))
"""


async def test_a_process_ends_well_while_a_thread_of_rust_is_in_python(moto_server: Server, bucket: str) -> None:
    await open_store(moto_server.url, bucket).put("a", DATA)
    arguments = [f"s3://{bucket}/t", moto_server.url, KEY_ID, SECRET]
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", EXITING, *arguments], capture_output=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"%d\n" % len(DATA), b"")
