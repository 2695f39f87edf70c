"""Stores by fsspec: which of them a ledger may be in, what is said where they fail or are not installed."""

import asyncio
import importlib
import importlib.util
import io
import re
import sys
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.utils import infer_storage_options

from cdfd.config.parser import parse
from cdfd.demo.writer import TableWriter
from cdfd.errors import CdfdError, MissingFileError, NotFoundError, StorageError, UnsupportedError
from cdfd.log.table import Table, versions
from cdfd.model.file_scan import FileScan
from cdfd.scan.execute import Execution
from cdfd.scan.table_files import TableFiles
from cdfd.storage import deadline, fsspec_storage
from cdfd.storage.base import Storage
from cdfd.storage.fsspec_storage import FsspecStorage, _as_stat
from cdfd.storage.location import open_storage
from tests.support.fsspec_systems import MemorySystem
from tests.support.lake import SCHEMA, WITHIN, rows
from tests.support.threads import observe_threads, turns_during


class Custom(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A file system that no library registers, with a failure that a test sets."""

    protocol = ("custom",)
    failure: Exception | None = None

    def info(self, path: str, **options: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        return super().info(path, **options)


class Careless(MemoryFileSystem):  # type: ignore[misc]  # as above
    """One that says it is careful."""

    protocol = ("gs",)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        super().pipe_file(path, value)


class Azure(MemoryFileSystem):  # type: ignore[misc]  # as above
    """One that takes URIs apart as adlfs does: the container, then the path in it."""

    protocol = ("abfss", "abfs", "az")
    account = ""

    def __init__(self, account_name: str = "", **options: Any) -> None:
        super().__init__(**options)
        type(self).account = account_name

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        parts = infer_storage_options(path if "://" in path else f"abfs://{path.lstrip('/')}")
        container = parts.get("username") or parts.get("host")
        return f"/{container}{parts['path']}".rstrip("/") if container else ""

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        matched = re.fullmatch(r"(.+)\.dfs\.core\.windows\.net", infer_storage_options(path).get("host", ""))
        return {"account_name": matched[1]} if matched else {}


def test_azure_s_own_uris(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(importlib.import_module("fsspec.registry")._registry, "abfss", Azure)
    monkeypatch.setattr(Azure, "store", {})
    uri = "abfss://lake@shop.dfs.core.windows.net/a b/orders"

    async def scenario() -> int:
        storage = open_storage(uri)
        assert storage.uri == uri
        await TableWriter(storage, SCHEMA, table_id="T").create()
        writer = TableWriter(storage, SCHEMA, table_id="T")
        await storage.put("x%20y", b"1")
        assert [each.path async for each in storage.list("_delta_log/")] == [f"_delta_log/{0:020}.json"]
        return len(await storage.read("x%20y")) + writer.rows().num_rows

    assert asyncio.run(asyncio.wait_for(scenario(), WITHIN)) == 1
    assert Azure.account == "shop"
    assert "/lake/a b/orders/x%20y" in Azure.store


@pytest.fixture
def root(tmp_path: Any) -> str:
    return str(tmp_path)


def made(kind: type[Any], root: str) -> FsspecStorage:
    return FsspecStorage(kind(skip_instance_cache=True), root, "custom://x")


@pytest.mark.parametrize("kind", [Custom, Careless])
def test_a_conditional_put_that_cannot_be_relied_on(kind: type[Any], root: str) -> None:
    with pytest.raises(UnsupportedError, match="Keep the ledger elsewhere"):
        asyncio.run(made(kind, root).put_if_absent("x", b"1"))


@pytest.mark.parametrize(
    ("failure", "said", "retriable"),
    [
        (PermissionError("no"), "permission denied", False),
        (OSError("the line is dead"), "cannot stat: OSError: the line is dead", True),
        (RuntimeError("500"), "RuntimeError: 500", True),
    ],
)
def test_what_it_says_is_translated(failure: Exception, said: str, retriable: bool, root: str) -> None:
    store = made(Custom, root)
    store._current().failure = failure
    with pytest.raises(StorageError, match=said) as caught:
        asyncio.run(store.stat("x"))
    assert caught.value.retriable is retriable


@pytest.mark.parametrize(
    ("doing", "call"),
    [
        ("stat", lambda store: store.stat("a/x")),
        ("read", lambda store: store.read("a/x")),
        ("list", lambda store: anext(store.list("a/"))),
        ("write", lambda store: store.put("a/x", b"1")),
    ],
    ids=["stat", "read", "list", "write"],
)
async def test_a_call_without_an_answer_is_given_up(
    doing: str, call: Callable[[Storage], Awaitable[object]], root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a connection was half open."""
    answered = threading.Event()

    class Silent(Custom):
        def info(self, *args: Any, **options: Any) -> Any:
            answered.wait(WITHIN)

        ls = pipe_file = info

    for name in ("DEADLINE_SECONDS", "SLOW_SECONDS"):
        monkeypatch.setattr(deadline, name, 0.05)
    try:
        with pytest.raises(StorageError, match=f"cannot {doing}: no answer; gave up after 0.05 seconds") as caught:
            async with asyncio.timeout(WITHIN):
                await call(made(Silent, root))
        assert caught.value.retriable
    finally:
        answered.set()


async def test_calls_that_were_given_up_leave_one_thread(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answered, calls = threading.Event(), []

    class Silent(Custom):
        def info(self, path: str, **options: Any) -> Any:
            calls.append(path)
            answered.wait(WITHIN)
            return super().info(path, **options)

    monkeypatch.setattr(deadline, "DEADLINE_SECONDS", 0.05)
    try:
        for _ in range(3):
            with pytest.raises(StorageError, match=r"gave up after 0\.05 seconds"):
                await made(Silent, root).stat("x")
        assert len(calls) == 1
    finally:
        answered.set()
    monkeypatch.setattr(deadline, "DEADLINE_SECONDS", WITHIN)
    with pytest.raises(NotFoundError):
        await made(Silent, root).stat("x")


async def test_a_long_listing_is_made_in_a_thread_and_returned_in_pages(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made(Custom, root)
    names = [f"a/{number:03}" for number in range(100)]
    for name in names:
        await store.put(name, b"x")
    monkeypatch.setattr(fsspec_storage, "_LISTING_PAGE", 10)
    threads = observe_threads(monkeypatch, fsspec_storage, "_as_stat")
    listing = store.list("a/0", "a/019")
    assert (await anext(listing)).path == "a/020"

    async def read() -> None:
        assert [stat.path async for stat in listing] == names[21:]

    assert await turns_during(read()) >= 7
    assert threads == [True] * 80


async def test_a_table_of_it_is_read(root: str) -> None:
    """Written, read, and followed: all of a table."""
    store: Storage = FsspecStorage(MemorySystem(), root, "memory://lake")

    writer = TableWriter(store, SCHEMA)
    await writer.create()
    for version in range(1, 4):
        await writer.insert(rows(version))
    local = Table.open(".")
    table = Table(type(local.log)(store), type(local.files)(store, open_storage, ()))
    execution = Execution(table.files)
    actual = []
    async with asyncio.timeout(WITHIN):
        with table.tailer() as tailer:
            async for version in versions(tailer, table.stream(), 1, 3):
                for batch in execution.batches([version.plan]):  # type: ignore[attr-defined]
                    actual += batch.rows.column("id").to_pylist()
    assert (actual) == [1, 2, 3]


@pytest.mark.parametrize(("uri", "package"), [("gs://b/x", "gcsfs"), ("abfss://c/x", "adlfs"), ("az://c/x", "adlfs")])
def test_what_is_not_installed(uri: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec(package) is None:
        with pytest.raises(UnsupportedError, match=f"pip install {package}"):
            open_storage(uri)
    monkeypatch.setitem(sys.modules, "cdfd.storage.fsspec_storage", None)
    with pytest.raises(UnsupportedError, match=rf"pip install 'cdfd\[fsspec\]' {package}"):
        open_storage(uri)


@pytest.mark.parametrize(
    "info",
    [
        {"mtime": 1_700_000_000.5},
        {"LastModified": datetime(2023, 11, 14, 22, 13, 20, 500_000, UTC)},
        {"last_modified": datetime(2023, 11, 14, 22, 13, 20, 500_000)},  # noqa: DTZ001 -- as some file systems have it
        {"mtime": None, "updated": "2023-11-14T22:13:20.500Z"},
    ],
)
def test_modification_time_is_read_in_each_form(info: dict[str, Any]) -> None:
    assert _as_stat("x", {"size": 1, **info}).modified_ms == 1_700_000_000_500
    assert _as_stat("x", {"size": 1}).modified_ms == 0


@pytest.mark.parametrize("milliseconds", [1_000_000_000_013, 1_700_000_000_001, 2_147_483_648_509, 4_102_444_800_999])
def test_modification_time_has_its_millisecond(milliseconds: int) -> None:
    moments = (milliseconds + offset for offset in range(1000))
    for moment in moments:
        seconds = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=moment)
        times = [
            _as_stat("x", {"size": 1, "mtime": each}).modified_ms
            for each in (seconds, seconds.isoformat(), moment / 1000)
        ]
        assert times == [moment] * 3


def test_the_configuration_takes_it() -> None:
    settings = parse("{pipeline: p, tables: [{uri: 'gs://b/orders'}], sink: {kind: files, path: /out}}", {})
    assert settings.storage.options("gs://b/orders") == {}
    assert settings.storage.options("S3A://b/orders")["deadline"] == 60.0


class HttpError(Exception):
    """As gcsfs has it: no error of an operating system."""


class ResourceNotFoundError(Exception):
    """As Azure's client has it."""


@pytest.mark.parametrize(
    ("failure", "kind", "what", "retriable"),
    [
        (TimeoutError(), StorageError, "cannot read: TimeoutError", True),
        (OSError("the line is dead"), StorageError, "cannot read: OSError: the line is dead", True),
        (HttpError("503"), StorageError, "cannot read: HttpError: 503", True),
        (PermissionError(), StorageError, "permission denied", False),
        (FileNotFoundError(), MissingFileError, "the file is gone", False),
        (ResourceNotFoundError(), MissingFileError, "the file is gone", False),
    ],
)
@pytest.mark.parametrize("method", ["read", "seek"])
def test_store_that_fails_in_the_middle_of_a_file(
    failure: Exception, kind: type[Exception], what: str, retriable: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged file would be an error for ever."""
    monkeypatch.setitem(sys.modules, "gcsfs.retry", SimpleNamespace(HttpError=HttpError))
    azure = SimpleNamespace(ResourceNotFoundError=ResourceNotFoundError)
    monkeypatch.setitem(sys.modules, "azure.core.exceptions", azure)
    monkeypatch.setattr("cdfd.storage.fsspec_storage.WHOLE_OBJECT_BYTES", 1)
    data = io.BytesIO()
    pq.write_table(pa.table({"n": range(10)}), data)
    memory = MemorySystem(skip_instance_cache=True)
    memory.pipe_file("/table/x.parquet", data.getvalue())

    class Failing(io.BytesIO):
        pass

    def fail(*_: object) -> None:
        raise failure

    setattr(Failing, method, fail)
    monkeypatch.setattr(memory, "open", lambda *_: Failing(data.getvalue()))
    storage = FsspecStorage(memory, "/table", "gs://x")
    with (
        pytest.raises(kind, match=what) as caught,
        TableFiles(storage, open_storage).open_scan(FileScan("x.parquet", "insert", {}, len(data.getvalue()))),
    ):
        pass
    assert isinstance(caught.value, CdfdError)
    assert caught.value.retriable is retriable
    assert caught.value.path == "x.parquet"


def test_name_of_nothing_is_not_found(root: str) -> None:
    store = made(Custom, root)
    with pytest.raises(NotFoundError):
        store.open_input_file("x")


class Signed(MemoryFileSystem):  # type: ignore[misc]  # as above
    """Azure's store, which refuses signatures that have ended."""

    protocol = ("abfss",)
    valid: ClassVar[set[str]] = set()

    def __init__(self, sas_token: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.token = sas_token

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return Azure._strip_protocol(path)

    def info(self, path: str, **options: Any) -> Any:
        self.check()
        return super().info(path, **options)

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self.check()
        file, check = super().open(path, mode, **options), self.check

        class Checked(io.RawIOBase):
            def read(self, size: int | None = -1, /) -> bytes:
                check()
                return bytes(file.read(size))

            def seek(self, offset: int, whence: int = 0, /) -> int:
                return int(file.seek(offset, whence))

            def tell(self) -> int:
                return int(file.tell())

        return Checked()

    def check(self) -> None:
        if self.token not in self.valid:
            raise PermissionError("the signature has ended")


class Signatures:
    """A source of credentials whose last one is valid."""

    def __init__(self) -> None:
        self.now = 0

    def renew(self) -> None:
        self.now += 1
        Signed.valid = {f"sig-{self.now}"}

    async def config(self) -> dict[str, str]:
        return {"azure.sas-token": f"sig-{self.now}"}

    async def keys(self) -> Any:
        raise AssertionError("these are keys of S3")

    def expire(self) -> None:
        pass


def test_vended_credentials_are_renewed_in_the_middle_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda scheme: Signed)
    monkeypatch.setattr(
        fsspec.core, "url_to_fs", lambda uri, use_listings_cache, **arguments: (Signed(**arguments), "")
    )
    monkeypatch.setattr("cdfd.storage.fsspec_storage.WHOLE_OBJECT_BYTES", 1)
    source = Signatures()
    source.renew()
    storage = open_storage("abfss://lake@shop.dfs.core.windows.net/signed", {"credential_source": source})
    asyncio.run(storage.put("x", bytes(range(200))))
    with storage.open_input_file("x") as file:
        assert file.read(50) == bytes(range(50))
        source.renew()
        assert file.read(50) == bytes(range(50, 100))
        file.seek(150)
        source.renew()
        assert file.read() == bytes(range(150, 200))
    source.renew()
    assert asyncio.run(storage.read("x", 0, 1)) == b"\0"
