"""Properties of a folder as a store: temporary files, special files, errors of the operating system."""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdfd.errors import CdfdError, ExistsError, NotFoundError, PathError, StorageError
from cdfd.storage import deadline
from cdfd.storage.confined import ConfinedRoot
from cdfd.storage.durable import explain, is_temporary, make_folder, temporary_name
from cdfd.storage.local import LocalStorage
from tests.support.full_disk import largest_file
from tests.support.privileges import unprivileged
from tests.support.sampling import stride


async def paths(store: LocalStorage, prefix: str) -> list[str]:
    return [entry.path async for entry in store.list(prefix)]


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


async def test_root_may_come_later_and_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStorage("lake/orders")
    monkeypatch.chdir("/")

    with pytest.raises(NotFoundError):
        await store.read("_delta_log/0.json")
    assert await paths(store, "_delta_log/") == []
    await store.put_if_absent("_delta_log/0.json", b"{}")
    assert await store.read("_delta_log/0.json") == b"{}"
    assert (store.uri, store.root) == ("lake/orders", str(tmp_path / "lake/orders"))


@pytest.mark.parametrize("root", ["a\0b", "a\ud800b"])
def test_root_that_cannot_be(root: str) -> None:
    with pytest.raises(PathError):
        LocalStorage(root)


def test_modification_time_is_the_file_s(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    os.utime(tmp_path / "x", ns=(0, 1_700_000_000_123_999_999))
    assert asyncio.run(LocalStorage(tmp_path).stat("x")).modified_ms == 1_700_000_000_123


@pytest.mark.parametrize("sync", [True, False])
def test_writes_leave_only_their_file_with_the_usual_mode(tmp_path: Path, sync: bool) -> None:
    umask = os.umask(0o027)
    try:

        async def scenario() -> None:
            store = LocalStorage(tmp_path, sync=sync)
            await store.put_if_absent("a/b/one", b"1")
            await store.put("a/b/two", b"2")

        asyncio.run(scenario())
    finally:
        os.umask(umask)
    assert names(tmp_path / "a/b") == ["one", "two"]
    assert {(tmp_path / "a/b" / name).stat().st_mode & 0o777 for name in ("one", "two")} == {0o640}
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o750


def test_temporary_files_of_the_dead_are_hidden(tmp_path: Path) -> None:
    left = tmp_path / temporary_name()
    left.write_bytes(b"half a log en")
    assert is_temporary(left.name)
    assert left.name.startswith(".")
    assert asyncio.run(paths(LocalStorage(tmp_path), "")) == []


@pytest.mark.parametrize("method", ["put", "put_if_absent"])
def test_a_failed_write_leaves_nothing(tmp_path: Path, method: str) -> None:
    store = LocalStorage(tmp_path)
    (tmp_path / "kept").write_bytes(b"old")
    with largest_file(1000), pytest.raises(StorageError, match="cannot write: File too large"):
        asyncio.run(getattr(store, method)("new", bytes(5000)))
    with largest_file(1000), pytest.raises(StorageError):
        asyncio.run(store.put("kept", bytes(5000)))
    assert names(tmp_path) == ["kept"]
    assert (tmp_path / "kept").read_bytes() == b"old"


def test_a_file_in_the_way_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = LocalStorage(tmp_path)
    for path in ("file/x", "file/deeper/x"):
        for write in (store.put, store.put_if_absent):
            with pytest.raises(StorageError, match="cannot write") as caught:
                asyncio.run(write(path, b""))
            assert type(caught.value) is StorageError
            assert "is a file" in (caught.value.hint or "")
    with pytest.raises(NotADirectoryError):
        make_folder(str(tmp_path / "file"), sync=False) or make_folder(str(tmp_path / "file/x"), sync=False)


def test_a_folder_in_the_way_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="cannot write"):
        asyncio.run(LocalStorage(tmp_path).put("folder", b""))
    assert names(tmp_path) == ["folder"]


def test_a_fifo_does_not_hang_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0.json")
    store = LocalStorage(tmp_path)
    for call in (lambda: asyncio.run(store.read("0.json")), lambda: store.open_input_file("0.json")):
        with pytest.raises(StorageError, match="not a regular file"):
            call()
    assert asyncio.run(paths(store, "")) == []


def table_with_links(tmp_path: Path) -> Path:
    """A folder with links: to a file and a folder of its own, and of others, absolute and relative."""
    for folder in ("elsewhere/deep", "table/own", "table/_delta_log"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "elsewhere/data").write_bytes(b"secret")
    (tmp_path / "elsewhere/deep/data").write_bytes(b"secret")
    (tmp_path / "table/own/data").write_bytes(b"data")
    root = tmp_path / "table"
    (root / "in").symlink_to("own/data")
    (root / "in-absolute").symlink_to(root / "own/data")
    (root / "in-folder").symlink_to(root / "own")
    (root / "out").symlink_to(tmp_path / "elsewhere/data")
    (root / "out-relative").symlink_to("../elsewhere/data")
    (root / "out-folder").symlink_to("../elsewhere")
    (root / "out-by-two").symlink_to("own/second")
    (root / "own/second").symlink_to(tmp_path / "elsewhere/data")
    (root / "out-and-back").symlink_to("out-folder/../table/own/data")
    (root / "nowhere").symlink_to("own/gone")
    (root / "nowhere-out").symlink_to(tmp_path / "gone")
    return root


INSIDE = ("in", "in-absolute", "in-folder/data", "out-and-back")
OUTSIDE = (
    "out",
    "out-relative",
    "out-folder/data",
    "out-folder/deep/data",
    "out-by-two",
    "nowhere-out",
    "in-folder/second",
)
READS: dict[str, Callable[[LocalStorage, str], object]] = {
    "read": lambda store, path: asyncio.run(store.read(path)),
    "fetch": lambda store, path: asyncio.run(store.fetch(path, 10))[0],
    "fetch_many": lambda store, path: asyncio.run(store.fetch_many([path], 10))[0][0],
    "open_input_file": lambda store, path: store.open_input_file(path).read(),
    "open_input_file, small": lambda store, path: store.open_input_file(path, 6).read(),
}


@pytest.mark.parametrize("call", READS.values(), ids=READS)
def test_links_are_followed_inside_the_root_only(tmp_path: Path, call: Callable[[LocalStorage, str], object]) -> None:
    root = table_with_links(tmp_path)
    store = LocalStorage(root)
    for path in INSIDE:
        assert call(store, path) == b"data", path
    for path in OUTSIDE:
        with pytest.raises(PathError, match="symbolic link leads out") as caught:
            call(store, path)
        assert caught.value.path == path
        assert "allowed_roots" in (caught.value.hint or "")
    for path in ("out", "out-relative", "out-folder/data", "out-folder/deep/data", "out-by-two"):
        assert call(LocalStorage(root, allowed=[str(tmp_path / "elsewhere")]), path) == b"secret"
        with pytest.raises(PathError):  # next to an allowed folder whose name begins alike
            call(LocalStorage(root, allowed=[str(tmp_path / "else")]), path)


async def test_stats_listings_and_links(tmp_path: Path) -> None:
    root = table_with_links(tmp_path)
    store = LocalStorage(root)

    assert (await store.stat("in")).size == 4
    assert await paths(store, "in-folder/") == ["in-folder/data", "in-folder/second"]
    for path in OUTSIDE:
        with pytest.raises(PathError):
            await store.stat(path)
    # A link to the outside does not break a listing; reading it raises the error.
    actual = {entry.path: entry.size async for entry in store.list("")}
    assert set(actual) >= {"in", "out", "out-relative"}
    assert actual["out"] == len(os.readlink(root / "out"))
    with pytest.raises(PathError):
        await paths(store, "out-folder/")
    with pytest.raises(NotFoundError):
        await store.read("nowhere")


@pytest.mark.parametrize("method", ["put", "put_if_absent"])
async def test_nothing_is_written_through_a_link(tmp_path: Path, method: str) -> None:
    root = table_with_links(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()}
    store = LocalStorage(root)

    for path in ("out-folder/new", "out-folder/deep/new", "out-folder/made/new", "nowhere-out/new"):
        with pytest.raises(PathError):
            await getattr(store, method)(path, b"1")
    with pytest.raises(PathError):
        await store.delete("out-folder/data")
    await getattr(store, method)("in-folder/new/file", b"1")
    if method == "put":
        await store.put("out", b"1")  # the link is replaced, not what it leads to
        assert await store.read("out") == b"1"
    else:
        with pytest.raises(ExistsError):
            await store.put_if_absent("out", b"1")
    assert (root / "own/new/file").read_bytes() == b"1"
    assert {path: path.read_bytes() for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()} == before
    assert not (tmp_path / "gone").exists()


async def test_a_root_that_is_confined_to_a_folder_above(tmp_path: Path) -> None:
    root = table_with_links(tmp_path)
    lake = tmp_path / "lake"
    (lake / "deep/own").mkdir(parents=True)
    (lake / "deep/own/data").write_bytes(b"data")
    (lake / "in").symlink_to("deep")
    (lake / "out").symlink_to(root)
    (lake / "deep/up").symlink_to("../loose")
    (lake / "loose").write_bytes(b"secret")
    (tmp_path / "way").symlink_to("lake")
    for within in ("lake", "way"):
        for name in ("deep", "in"):
            store = LocalStorage(tmp_path / within / name, within=str(tmp_path / within))
            assert await store.read("own/data") == b"data"
            assert await paths(store, "own/") == ["own/data"]
            await store.put("new/file", b"1")
            with pytest.raises(
                PathError, match="leads out of the table"
            ):  # it is in the folder above, and not in the root
                await store.read("up")
        store = LocalStorage(tmp_path / within / "out", within=str(tmp_path / within))
        for call in (
            store.read("own/data"),
            store.put("new", b"1"),
            store.delete("own/data"),
            paths(store, ""),
            store.folders(),
        ):
            with pytest.raises(PathError, match=f"leads out of {tmp_path}/{within}, to {root}"):
                await call
        there = LocalStorage(tmp_path / within / "out", within=str(tmp_path / within), allowed=[str(root)])
        assert await there.read("own/data") == b"data"
        with pytest.raises(PathError):
            await there.read("out")
    assert (root / "own/data").exists()
    assert not (root / "new").exists()


async def test_a_folder_that_is_a_loop_of_links_is_told(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    store = LocalStorage(tmp_path)
    for call in (store.folders("loop"), paths(store, "loop/"), store.read("loop/x"), store.put("loop/x", b"1")):
        with pytest.raises(StorageError, match="leads back to itself"):
            await call


def test_a_link_put_there_while_a_file_is_opened(tmp_path: Path) -> None:
    """Whatever is swapped, at any moment: the reader gets the table's bytes or an error, never the secret, and never waits."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/data").write_bytes(b"secret" * 20_000)
    root = tmp_path / "table"
    (root / "folder").mkdir(parents=True)
    ours = b"public" * 20_000
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for make in (
                lambda: (root / "folder/data").write_bytes(ours),
                lambda: (root / "folder/data").symlink_to(tmp_path / "secret/data"),
                lambda: os.mkfifo(root / "folder/data"),
            ):
                make()
                time.sleep(0.0002)
                os.rename(root / "folder/data", root / "data.new")
                os.rename(root / "data.new", root / "folder/data")
                os.rename(root / "folder", root / "other")
                (root / "folder").symlink_to(tmp_path / "secret")
                (root / "folder").unlink()
                os.rename(root / "other", root / "folder")
                (root / "folder/data").unlink()

    swapping = threading.Thread(target=swap)
    swapping.start()
    store, seen = LocalStorage(root), set[str]()
    try:
        deadline = time.monotonic() + 60
        while not {"read", "PathError", "StorageError"} <= seen and time.monotonic() < deadline:
            try:
                with store.open_input_file("folder/data", 120_000) as file:
                    data = file.read()
                assert ours.startswith(data)
                seen.add("read")
            except (PathError, StorageError) as error:
                seen.add(type(error).__name__)
    finally:
        stop.set()
        swapping.join(30)
    assert {"read", "PathError", "StorageError"} <= seen


NAMES = st.sampled_from(["a", "b", "c", "d"])
WAYS = st.lists(st.one_of(NAMES, st.sampled_from(["..", "."])), min_size=1, max_size=4).map("/".join)
TREES = st.lists(
    st.tuples(
        st.sampled_from(["file", "folder", "link", "link to root", "link out"]),
        st.lists(NAMES, min_size=1, max_size=3),
        WAYS,
    ),
    max_size=12,
)


def grow(root: Path, outside: Path, tree: list[tuple[str, list[str], str]]) -> None:
    """Files, folders and links as drawn, wherever they can be made without going through a link."""
    for kind, segments, target in tree:
        place = root.joinpath(*segments)
        if place.is_symlink() or place.exists() or not os.path.realpath(place.parent).startswith(str(root)):
            continue
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            if kind == "file":
                place.write_bytes(b"ours")
            elif kind == "folder":
                place.mkdir()
            else:
                start = {"link": "", "link to root": f"{root}/", "link out": f"{outside}/"}[kind]
                place.symlink_to(start + target)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def result(store: LocalStorage, path: str) -> bytes | CdfdError:
    try:
        return asyncio.run(store.read(path))
    except (PathError, StorageError) as error:
        return error


@settings(deadline=None, max_examples=150 // stride(4))
@given(tree=TREES, way=WAYS.filter(lambda way: way.split("/")[-1] not in ("..", ".")))
def test_any_tree_of_links(tree: list[tuple[str, list[str], str]], way: str) -> None:
    """A read returns the file that the system finds at the path, if that is in the root. Files outside are neither read nor changed."""
    with TemporaryDirectory() as made:
        top = Path(os.path.realpath(made))
        root, outside = top / "root", top / "out"
        root.mkdir()
        for name in ("a", "b/c", "c/d"):
            (outside / name).parent.mkdir(parents=True, exist_ok=True)
            (outside / name).write_bytes(b"secret")
        grow(root, outside, tree)
        before, store = contents(outside), LocalStorage(root, sync=False)
        real = os.path.realpath(root / way)
        inside = ".." not in way.split("/") and real.startswith(f"{root}/")
        actual = result(store, way)
        if inside and os.path.isfile(real):
            assert actual == b"ours"
        elif inside or (real == str(root) and ".." not in way.split("/")):
            assert isinstance(actual, StorageError)
        else:
            assert isinstance(actual, PathError)
        for write in (store.put, store.put_if_absent):
            with suppress(PathError, StorageError):
                asyncio.run(write(way, b"ours"))
            with suppress(PathError, StorageError):
                asyncio.run(write(f"{way}/x", b"ours"))
        with suppress(PathError, StorageError):
            asyncio.run(store.delete(way))
        assert contents(outside) == before


def test_what_is_open_is_what_was_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a system has no names for descriptors, the file is read all the same."""
    (tmp_path / "x").write_bytes(bytes(100_000))
    monkeypatch.setattr("cdfd.storage.descriptors._DESCRIPTORS", str(tmp_path / "no"))
    with LocalStorage(tmp_path).open_input_file("x") as file:
        assert file.size() == 100_000


def test_a_loop_of_links_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(StorageError, match="leads back to itself") as caught:
        asyncio.run(LocalStorage(tmp_path).read("a"))
    assert caught.value.path == "a"


@pytest.mark.parametrize("target", ["bad", "file/below", "closed/below"])
async def test_a_link_that_cannot_be_followed_hides_no_other_name(target: str) -> None:
    """A loop, a link through a file, and one into a folder that may not be searched."""
    with TemporaryDirectory() as top:  # below folders that all users may search
        folder = Path(top)
        folder.chmod(0o755)
        for name in ("a", "file", "z"):
            (folder / name).write_bytes(b"1")
        (folder / "folder").mkdir()
        (folder / "closed").mkdir(mode=0o700)
        (folder / "bad").symlink_to(target)
        store = LocalStorage(folder)
        with unprivileged():
            assert [path for path in await paths(store, "") if path != "bad"] == ["a", "file", "z"]
            assert [name for name in await store.folders() if name != "bad"] == ["closed", "folder"]
            with pytest.raises(StorageError):
                await store.read("bad")


async def test_links_and_the_files_that_several_names_have(tmp_path: Path) -> None:
    root = table_with_links(tmp_path)
    os.link(root / "own/data", root / "hard")
    store = LocalStorage(root)

    assert await store.links() == {entry.name for entry in root.iterdir() if entry.is_symlink()}
    assert await store.links("own") == {"second"}
    assert await store.links("gone") == set()
    same = ["own/data", *INSIDE, "hard", str(root / "own/data")]
    assert len(set(await store.file_ids(same))) == 1
    other = ["out", str(tmp_path / "elsewhere/data")]
    assert len({*await store.file_ids(other), *await store.file_ids(same)}) == 2
    assert await store.file_ids(["nowhere", "nowhere-out", "own/data/below", "/gone"]) == [None] * 4
    (root / "loop").symlink_to("loop")
    with pytest.raises(StorageError):
        await store.file_ids(["loop"])


def test_names_that_are_too_long(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="File name too long"):
        asyncio.run(LocalStorage(tmp_path).read("x" * 5000))


def test_names_that_are_no_utf8_are_not_listed(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")).write_bytes(b"")
    (tmp_path / "é").write_bytes(b"")
    assert asyncio.run(paths(LocalStorage(tmp_path), "")) == ["é"]


def test_file_without_permission_names_the_user(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"")
    (tmp_path / "secret").chmod(0)
    with unprivileged(), pytest.raises(StorageError, match="Permission denied") as caught:
        asyncio.run(LocalStorage(tmp_path).read("secret"))
    assert caught.value.hint == "Check that the user cdfd runs as may read there"


def test_writing_needs_more_permissions_than_reading() -> None:
    told = explain(PermissionError(errno.EACCES, "no"), "write", "x", StorageError)
    assert told.hint == "Check that the user cdfd runs as may read and write there"


@pytest.mark.parametrize(
    ("number", "retriable", "hint"),
    [
        (errno.EIO, True, "device"),
        (errno.ESTALE, True, "remount"),
        (errno.ENOSPC, True, "space"),
        (errno.EDQUOT, True, "quota"),
        (errno.ENOMEM, True, "memory"),
        (errno.EMFILE, True, "ulimit"),
        (errno.ENFILE, True, "open files"),
        (errno.ENOTCONN, True, "remount"),
        (errno.EACCES, False, "user"),
        (errno.EROFS, False, "read-only"),
        (errno.EFBIG, False, "ulimit"),
        (errno.ENOTDIR, False, "file"),
    ],
)
def test_what_the_system_says_is_explained(number: int, retriable: bool, hint: str) -> None:
    told = explain(OSError(number, os.strerror(number)), "read", "x", StorageError)
    assert (told.what, told.retriable) == (f"cannot read: {os.strerror(number)}", retriable)
    assert told.hint is not None
    assert hint in told.hint


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ECONNRESET, errno.EBUSY, errno.EAGAIN])
def test_what_cannot_be_reached_or_is_busy_is_retried(number: int) -> None:
    assert explain(OSError(number, os.strerror(number)), "read", "x", StorageError).retriable


def test_an_error_without_a_number_is_explained() -> None:
    told = explain(OSError("odd"), "read", "x", StorageError)
    assert (told.what, told.hint, told.retriable) == ("cannot read: odd", None, False)


async def test_a_link_is_deleted_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_bytes(b"kept")
    (tmp_path / "to-file").symlink_to(tmp_path / "folder/file")
    (tmp_path / "to-folder").symlink_to(tmp_path / "folder")

    store = LocalStorage(tmp_path)
    await store.delete("to-file")
    await store.delete("to-folder")
    assert names(tmp_path) == ["folder"]
    assert (tmp_path / "folder/file").read_bytes() == b"kept"


@pytest.mark.parametrize(
    ("doing", "call"),
    [
        ("read", lambda store: store.read("a/x")),
        ("read", lambda store: store.fetch("a/x", 1)),
        ("read", lambda store: store.fetch_many(["a/x"], 1)),
        ("stat", lambda store: store.stat("a/x")),
        ("list", lambda store: paths(store, "a/")),
        ("list", lambda store: store.folders("a")),
        ("list", lambda store: store.links("a")),
        ("write", lambda store: store.put("a/x", b"")),
        ("write", lambda store: store.put_if_absent("a/x", b"")),
        ("delete", lambda store: store.delete("a/x")),
    ],
)
async def test_a_mount_that_hangs_is_an_error_and_keeps_one_thread(
    doing: str, call: Callable[[LocalStorage], Awaitable[object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a network whose server is gone: a table would seem to be at its tip for ever."""
    answered, calls = threading.Event(), list[object]()

    def hang(*args: object) -> None:
        calls.append(args)
        answered.wait(60)
        raise OSError

    with monkeypatch.context() as patched:
        for name in ("DEADLINE_SECONDS", "SLOW_SECONDS"):
            patched.setattr(deadline, name, 0.05)
        for name in ("folder", "open"):
            patched.setattr(ConfinedRoot, name, hang)
        try:
            for _ in range(2):  # a retry waits for the first call
                async with asyncio.timeout(20):
                    with pytest.raises(StorageError, match=f"cannot {doing}: no answer; gave up after 0.05") as caught:
                        await call(LocalStorage(tmp_path))
                assert caught.value.retriable
            assert len(calls) == 1
        finally:
            answered.set()
    assert await paths(LocalStorage(tmp_path), "a/") == []


def test_a_deletion_that_is_forbidden(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"")
    tmp_path.chmod(0o555)
    with unprivileged(), pytest.raises(StorageError, match="cannot delete: Permission denied") as caught:
        asyncio.run(LocalStorage(tmp_path).delete("kept"))
    tmp_path.chmod(0o755)
    assert "user cdfd runs as" in (caught.value.hint or "")
    assert names(tmp_path) == ["kept"]


@pytest.mark.parametrize("said", [None, 0, 5, 100_000, 300_000])
@pytest.mark.parametrize("size", [0, 5, 65_536, 65_537, 200_000])
def test_a_file_of_another_size_than_the_log_says(tmp_path: Path, size: int, said: int | None) -> None:
    data = (bytes(range(256)) * 782)[:size]
    (tmp_path / "x").write_bytes(data)
    with LocalStorage(tmp_path).open_input_file("x", said) as source:
        assert source.size() == size
        assert source.read() == data
