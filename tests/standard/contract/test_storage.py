"""The contract of every `Storage`.

To add an implementation, add a function to `STORES`. It takes an empty folder for its use, and yields an empty store
whose listing pages contain a handful of objects at most.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd.catalogs.base import CatalogTable
from cdfd.catalogs.storage import CatalogStorage
from cdfd.catalogs.vending import Vendor
from cdfd.errors import ExistsError, NotFoundError, PathError, StorageError
from cdfd.storage import local as local_storage
from cdfd.storage.base import FolderListing, Stat, Storage, WholeFiles
from cdfd.storage.fsspec_storage import FsspecStorage
from cdfd.storage.local import LocalStorage
from cdfd.storage.s3.client import client_for
from cdfd.storage.s3.native import LISTING_PAGE
from cdfd.storage.s3.options import parse
from cdfd.storage.s3.storage import S3Storage
from tests.support.axes import under_test
from tests.support.catalogs.memory import MemoryCatalog
from tests.support.fsspec_systems import LocalSystem, MemorySystem
from tests.support.memory_storage import MemoryStorage
from tests.support.s3.fixtures import new_bucket
from tests.support.s3.server import Server


@contextmanager
def local(folder: Path) -> Iterator[Storage]:
    with patch.object(local_storage, "_LISTING_PAGE", 3):
        yield LocalStorage(folder / "root")


@contextmanager
def local_behind_link(folder: Path) -> Iterator[Storage]:
    (folder / "real").mkdir()
    (folder / "link").symlink_to(folder / "real")
    with patch.object(local_storage, "_LISTING_PAGE", 3):
        yield LocalStorage(folder / "link", sync=False)


@contextmanager
def memory(folder: Path) -> Iterator[Storage]:
    yield MemoryStorage()


@contextmanager
def fsspec_memory(folder: Path) -> Iterator[Storage]:
    yield FsspecStorage(MemorySystem(), str(folder), "memory://x")


@contextmanager
def fsspec_local(folder: Path) -> Iterator[Storage]:
    yield FsspecStorage(LocalSystem(), str(folder), folder.as_uri())


@contextmanager
def by_catalog(folder: Path) -> Iterator[Storage]:
    """An external table, which the user's own credentials open."""
    catalog = MemoryCatalog()
    catalog.known["main.sales.orders"] = CatalogTable("id", str(folder / "root"))
    yield CatalogStorage("uc://main.sales.orders", "main.sales.orders", Vendor(catalog))


STORES: list[Callable[[Path], AbstractContextManager[Storage]]] = [
    local,
    by_catalog,
    local_behind_link,
    memory,
    fsspec_memory,
    fsspec_local,
]
SERVERS = {"moto_server": 3, "versitygw_server": 3, "versitygw_server, by obstore": LISTING_PAGE}
"""Of S3, each in a process of its own: fixtures, and the objects of a page. A table is in a folder of a bucket of its own. Pages of the usual
size are listed by obstore."""


def id_of(store: object) -> str:
    return store if isinstance(store, str) else str(getattr(store, "__name__", store))


@pytest.fixture(params=[*STORES, *under_test("s3", SERVERS)], ids=id_of)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if isinstance(request.param, str):
        server: Server = request.getfixturevalue(request.param.partition(",")[0])
        yield S3Storage(
            new_bucket(server), "lake/table", client_for(parse(server.options())), page=SERVERS[request.param]
        )
        return
    with request.param(tmp_path) as storage:
        yield storage


async def listed(store: Storage, prefix: str, start_after: str = "") -> list[Stat]:
    return [entry async for entry in store.list(prefix, start_after)]


async def paths(store: Storage, prefix: str, start_after: str = "") -> list[str]:
    return [entry.path for entry in await listed(store, prefix, start_after)]


class TestFolders:
    async def test_folders_of_a_folder(self, store: Storage) -> None:
        assert isinstance(store, FolderListing)

        for path in ("b/x", "a/y/z", "a/w", "file", "c d/x", "e/1", "f/1", "a/y/q/r"):
            await store.put(path, b"")
        assert list(await store.folders()) == ["a", "b", "c d", "e", "f"]
        assert list(await store.folders("a")) == ["y"]
        assert list(await store.folders("a/y")) == ["q"]
        assert list(await store.folders("b")) == []
        assert list(await store.folders("nothing")) == []
        with pytest.raises(PathError):
            await store.folders("../other")

    def test_an_empty_store_has_none(self, store: Storage) -> None:
        assert isinstance(store, FolderListing)
        assert list(asyncio.run(store.folders())) == []


class TestReading:
    async def test_what_was_put_is_read(self, store: Storage) -> None:
        await store.put("a/b/c.bin", b"0123456789")
        assert await store.read("a/b/c.bin") == b"0123456789"

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [
            (0, None, b"0123456789"),
            (3, None, b"3456789"),
            (0, 4, b"0123"),
            (4, 3, b"456"),
            (8, 100, b"89"),
            (9, 1, b"9"),
            (10, None, b""),
            (10, 1, b""),
            (99, None, b""),
            (99, 5, b""),
            (0, 0, b""),
            (5, 0, b""),
            (0, 1 << 62, b"0123456789"),  # a length from a hostile header allocates what there is, no more
        ],
    )
    async def test_ranges(self, store: Storage, start: int, length: int | None, expected: bytes) -> None:
        await store.put("digits", b"0123456789")
        assert await store.read("digits", start, length) == expected

    @pytest.mark.parametrize(("start", "length"), [(-1, None), (0, -1), (-5, 5)])
    async def test_ranges_that_cannot_be(self, store: Storage, start: int, length: int | None) -> None:
        await store.put("digits", b"0123456789")
        with pytest.raises(StorageError, match="no range"):
            await store.read("digits", start, length)

    async def test_empty_object(self, store: Storage) -> None:
        await store.put("empty", b"")
        assert await store.read("empty") == b""
        assert (await store.stat("empty")).size == 0

    @pytest.mark.parametrize("path", ["no", "folder/no", "object/below", "folder"])
    async def test_nothing_there(self, store: Storage, path: str) -> None:
        await store.put("object", b"x")
        await store.put("folder/object", b"x")
        with pytest.raises(NotFoundError) as caught:
            await store.read(path)
        assert caught.value.path == path
        assert not caught.value.retriable
        with pytest.raises(NotFoundError):
            await store.read(path, 3, 5)
        with pytest.raises(NotFoundError):
            await store.stat(path)
        with pytest.raises(NotFoundError):
            store.open_input_file(path)

    @pytest.mark.parametrize("length", [0, 4, 10, 1 << 40])
    async def test_the_beginning_and_what_it_is_of(self, store: Storage, length: int) -> None:
        await store.put("digits", b"0123456789")
        assert await store.fetch("digits", length) == (b"0123456789"[:length], await store.stat("digits"))
        await store.put("empty", b"")
        assert await store.fetch("empty", length) == (b"", await store.stat("empty"))
        with pytest.raises(NotFoundError):
            await store.fetch("none", length)
        with pytest.raises(PathError):
            await store.fetch("../none", length)

    async def test_many_at_once(self, store: Storage) -> None:
        await asyncio.gather(*(store.put(f"n/{n}", b"%d" % n) for n in range(40)))
        assert await asyncio.gather(*(store.read(f"n/{n}") for n in range(40))) == [b"%d" % n for n in range(40)]


class TestStat:
    async def test_size_and_time(self, store: Storage) -> None:
        await store.put("first", b"12345")
        await store.put("second", b"")
        first, second = await store.stat("first"), await store.stat("second")
        assert (first.path, first.size) == ("first", 5)
        # Milliseconds since 1970: later than 2020, before 2100, and in the order of writing.
        assert 1_577_836_800_000 < first.modified_ms <= second.modified_ms < 4_102_444_800_000
        assert await listed(store, "") == [first, second]


class TestIdentity:
    """Which writing of an object it is: the same by every way to ask, another one for each writing that a reader could take for it."""

    async def test_it_is_the_same_until_the_object_is_written_again(self, store: Storage) -> None:
        await store.put("t/x", b"12345")
        first = await store.stat("t/x")
        assert first.identity
        for _ in range(2):
            assert (await store.stat("t/x")).identity == first.identity
            assert (await store.fetch("t/x", 9))[1].identity == first.identity
            assert (await store.fetch_many(["t/x"], 9))[0][1].identity == first.identity
            assert [entry.identity for entry in await listed(store, "t/")] == [first.identity]

    @pytest.mark.parametrize("removed", [False, True])
    async def test_other_bytes_have_another_one(self, store: Storage, removed: bool) -> None:
        """Or the one they had is not settled, where the store cannot tell writings of one moment apart."""

        await store.put("x", b"12345")
        first = await store.stat("x")
        if removed:
            await store.delete("x")
        await store.put("x", b"54321")
        second = await store.stat("x")
        assert second.identity != first.identity or not first.settled

    async def test_it_settles(self, store: Storage) -> None:
        await store.put("x", b"12345")
        async with asyncio.timeout(30):
            while not (first := await store.stat("x")).settled:
                await asyncio.sleep(0.02)
        await store.put("x", b"54321")
        assert (await store.stat("x")).identity != first.identity


class TestWriting:
    async def test_put_replaces(self, store: Storage) -> None:
        await store.put("x", b"a long first version")
        await store.put("x", b"short")
        assert await store.read("x") == b"short"
        assert await paths(store, "") == ["x"]

    async def test_put_if_absent_leaves_what_is_there(self, store: Storage) -> None:
        await store.put_if_absent("log/0.json", b"first")
        with pytest.raises(ExistsError) as caught:
            await store.put_if_absent("log/0.json", b"second")
        assert caught.value.path == "log/0.json"
        assert await store.read("log/0.json") == b"first"
        assert await paths(store, "log/") == ["log/0.json"]

    async def test_one_of_many_writers_is_first(self, store: Storage) -> None:
        async def attempt(n: int) -> int | None:
            try:
                await store.put_if_absent("log/1.json", b"%d" % n)
            except ExistsError:
                return None
            return n

        winners = [n for n in await asyncio.gather(*map(attempt, range(20))) if n is not None]
        assert len(winners) == 1
        assert await store.read("log/1.json") == b"%d" % winners[0]
        assert await paths(store, "log/") == ["log/1.json"]

    async def test_readers_see_old_or_new(self, store: Storage) -> None:
        async def write() -> None:
            for n in range(30):
                await store.put("x", bytes([n]) * 100_000)

        await store.put("x", bytes(100_000))
        writing = asyncio.create_task(write())
        while not writing.done():
            seen = await store.read("x")
            assert (len(seen), len(set(seen))) == (100_000, 1)
            await asyncio.sleep(0)
        await writing

    async def test_the_caller_may_reuse_its_buffer(self, store: Storage) -> None:
        data = bytearray(b"before")
        await store.put("x", data)
        data[:] = b"after!"
        assert await store.read("x") == b"before"


class TestDeleting:
    async def test_what_is_deleted_is_gone(self, store: Storage) -> None:
        for name in ("log/0", "log/1", "log/2"):
            await store.put(name, b"x")
        await store.delete("log/1")
        assert await paths(store, "log/") == ["log/0", "log/2"]
        with pytest.raises(NotFoundError):
            await store.read("log/1")
        with pytest.raises(NotFoundError):
            await store.stat("log/1")
        await store.put_if_absent("log/1", b"anew")
        assert await store.read("log/1") == b"anew"

    @pytest.mark.parametrize("path", ["none", "none/below", "object/below", "folder", "folder/none"])
    async def test_nothing_to_delete(self, store: Storage, path: str) -> None:
        await store.put("object", b"x")
        await store.put("folder/object", b"x")
        await store.delete(path)
        assert await store.read("object") == b"x"
        assert await store.read("folder/object") == b"x"

    async def test_several_may_delete_the_same(self, store: Storage) -> None:
        await store.put("x", b"x")
        await asyncio.gather(*(store.delete("x") for _ in range(10)))
        assert await paths(store, "") == []


class TestListing:
    async def test_direct_children_in_order(self, store: Storage) -> None:
        names = ["log/10", "log/9", "log/a.json", "log/B", "log/deeper/x", "log/_last", "other", "log2", "log/.hidden"]

        for name in names:
            await store.put(name, b"")
        assert await paths(store, "log/") == [
            "log/.hidden", "log/10", "log/9", "log/B", "log/_last", "log/a.json"
        ]  # fmt: skip
        assert await paths(store, "") == ["log2", "other"]

    async def test_prefix_and_start(self, store: Storage) -> None:
        for n in range(25):
            await store.put(f"log/{n:020d}.json", b"x" * n)
        await store.put("log/zz", b"")
        every = [f"log/{n:020d}.json" for n in range(25)]
        assert await paths(store, "log/0") == every
        assert await paths(store, "log/0", every[20]) == every[21:]
        # Between two names, before the first, after the last; a start that is in no folder of this prefix.
        assert await paths(store, "log/0", f"{every[6]}.5") == every[7:]
        assert await paths(store, "log/0", "log/") == every
        assert await paths(store, "log/0", "log/1") == []
        assert await paths(store, "log/0", "a") == every
        assert await paths(store, "log/0", "m") == []
        assert await paths(store, "log/00000000000000000003") == [every[3]]
        assert [entry.size for entry in await listed(store, "log/0")] == list(range(25))

    async def test_order_is_that_of_utf8(self, store: Storage) -> None:
        # Beyond the basic plane UTF-16 would sort before U+FF5E.
        names = ["a", "z", "é", "ﬀ", "～", "😀"]

        for name in reversed(names):
            await store.put(f"d/{name}", b"")
        assert await paths(store, "d/") == [f"d/{name}" for name in names]
        assert await paths(store, "d/", "d/～") == ["d/😀"]

    @pytest.mark.parametrize("prefix", ["", "none/", "none/x", "object/", "object/x"])
    async def test_nothing_to_list(self, store: Storage, prefix: str) -> None:
        if prefix:
            await store.put("object", b"")
        assert await listed(store, prefix) == []

    async def test_a_listing_may_be_left(self, store: Storage) -> None:
        for n in range(20):
            await store.put(f"d/{n:02d}", b"")
        async for entry in store.list("d/"):
            assert entry.path == "d/00"
            break


class TestNames:
    @pytest.mark.parametrize(
        "path",
        [
            "with space/and + plus",
            "region=eu%2Fwest/part-0.parquet",
            "percent%2525",
            "umlaut-ä/😀",
            "..data/..x/y..",
            "back\\slash",
            "quote'\"",
            "new\nline",
            "#?&",
            "-",
        ],
    )
    async def test_names_are_taken_literally(self, store: Storage, path: str, request: pytest.FixtureRequest) -> None:
        if request.node.callspec.params["store"] == "moto_server":
            path = path.replace("\n", " ")  # moto's router knows no path with a line end; versitygw does

        await store.put_if_absent(path, b"x")
        assert await store.read(path) == b"x"
        assert (await store.stat(path)).path == path
        folder = path[: path.rfind("/") + 1]
        assert await paths(store, folder) == [path]
        assert await paths(store, path) == [path]

    @pytest.mark.parametrize(
        "path", ["../x", "a/../../x", "a/..", "..", "/etc/passwd", "//x", "a\0b", "\ud800", "", "a/"]
    )
    async def test_names_that_are_refused(self, store: Storage, path: str) -> None:
        with pytest.raises(PathError):
            await store.read(path)
        with pytest.raises(PathError):
            await store.stat(path)
        with pytest.raises(PathError):
            await store.put(path, b"x")
        with pytest.raises(PathError):
            await store.put_if_absent(path, b"x")
        with pytest.raises(PathError):
            await store.delete(path)
        with pytest.raises(PathError) as caught:
            store.open_input_file(path)
        str(caught.value).encode()  # what is wrong with the path must not break the message
        if path not in ("", "a/"):
            with pytest.raises(PathError):
                await listed(store, path)


class TestColumns:
    async def test_parquet_is_read_from_it(self, store: Storage) -> None:
        table = pa.table({"n": range(1000), "s": [f"name {n}" for n in range(1000)]})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=100)
        data = sink.getvalue().to_pybytes()

        await store.put("t/part-0.parquet", data)
        for size in (None, len(data)):
            with store.open_input_file("t/part-0.parquet", size) as source:
                assert source.size() == len(data)
                assert pq.ParquetFile(source).read_row_group(3, columns=["s"]).column("s")[0].as_py() == "name 300"

    async def test_in_a_worker_thread(self, store: Storage) -> None:
        await store.put("x", b"0123456789")

        def read() -> tuple[bytes, int]:
            with store.open_input_file("x") as source:
                source.seek(4)
                return source.read(3), threading.get_ident()

        data, thread = await asyncio.to_thread(read)
        assert (data, thread != threading.get_ident()) == (b"456", True)

    async def test_an_open_file_survives_its_replacement(self, store: Storage) -> None:
        await store.put("x", b"old bytes")
        with store.open_input_file("x") as source:
            await store.put("x", b"new")
            assert source.read() == b"old bytes"


class TestFetchMany:
    async def test_all_of_several(self, store: Storage) -> None:
        for name in "abc":
            await store.put(f"t/{name}", name.encode() * 5)
        actual = await store.fetch_many(["t/c", "t/a", "t/b"], 15)
        assert [data for data, _ in actual] == [b"ccccc", b"aaaaa", b"bbbbb"]
        assert [stat for _, stat in actual] == [await store.stat(f"t/{name}") for name in "cab"]

    @pytest.mark.parametrize(
        ("names", "length", "count"),
        [
            ("", 9, 0),
            ("x", 9, 0),
            ("axb", 99, 1),
            ("abc", 14, 2),
            ("abc", 4, 0),
            ("a", 5, 1),
            ("aeb", 10, 3),
            ("e", 0, 1),
        ],
    )
    async def test_up_to_the_first_that_cannot_be_had(
        self, store: Storage, names: str, length: int, count: int
    ) -> None:
        for name in "abc":
            await store.put(name, name.encode() * 5)
        await store.put("e", b"")
        actual = await store.fetch_many(list(names), length)
        assert [stat.path for _, stat in actual] == list(names)[:count]

    async def test_a_path_that_leads_out(self, store: Storage) -> None:
        await store.put("a", b"a")
        with pytest.raises(PathError):
            await store.fetch_many(["a", "../a"], 9)


@pytest.mark.parametrize("store", [local, local_behind_link, *under_test("s3", SERVERS)], indirect=True, ids=id_of)
class TestWholeFiles:
    """Stores that read several files together; the others read them one by one."""

    @pytest.fixture
    def together(self, store: Storage) -> WholeFiles:
        assert isinstance(store, WholeFiles)
        return store

    async def test_files_in_order(self, store: Storage, together: WholeFiles) -> None:
        for path in ("a", "b/c", "b/d"):
            await store.put(path, path.encode())
        store.prefetch("b/d", 3)
        actual = await asyncio.to_thread(together.read_whole, ["b/d", "a", "b/c"], [3, 9, 3])
        assert list(actual) == [b"b/d", b"a", b"b/c"]

    async def test_a_file_that_is_larger_than_it_should_be(self, store: Storage, together: WholeFiles) -> None:
        """Its size comes from the log, and bounds the memory."""
        await store.put("a", b"four")
        with pytest.raises(StorageError, match="more than 3 bytes"):
            await asyncio.to_thread(together.read_whole, ["a"], [3])

    async def test_a_file_that_is_gone(self, store: Storage, together: WholeFiles) -> None:
        await store.put("a", b"x")
        with pytest.raises(NotFoundError):
            await asyncio.to_thread(together.read_whole, ["a", "none"], [1, 1])
