"""Stores through fsspec: Google Cloud Storage, Azure, and others with an implementation.

Each method calls the fsspec file system in worker threads. Implementations differ in quality. A ledger needs conditional puts: cdfd uses them
only with file systems that are known to support them, and verifies the first one.
"""

import asyncio
import contextlib
import io
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import fsspec
import pyarrow as pa

from cdfd.errors import ConfigError, ExistsError, NotFoundError, StorageError, UnsupportedError
from cdfd.storage.base import Stat, check_path, check_prefix, check_range, fetch_each
from cdfd.storage.credentials import SOURCE, KeySource
from cdfd.storage.deadline import limit_call
from cdfd.storage.s3.loop import request_loop

T = TypeVar("T")

WHOLE_OBJECT_BYTES = 4 << 20
"""Bytes up to which an object is read at once."""
EXCLUSIVE_PROTOCOLS = frozenset({"gs", "gcs", "abfs", "abfss", "az"})
"""Protocols of file systems whose `pipe_file(mode="create")` is atomic. fsspec's own default checks first and writes then, so two writers may
both succeed. gcsfs requires generation 0 and adlfs sends `overwrite=False`; both stores check that atomically."""

_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
_TAGS = ("ETag", "etag", "generation")
_SETTLED_MS = 2000
_LISTING_PAGE = 1000
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class FsspecStorage:
    """The `Storage` port over a file system of fsspec.

    Args:
        system: the file system; without a cache of listings.
        root: path of the root in it.
        uri: of the root, for messages.
        renewed: the same file system with credentials that have not ended. It may block; it is called in worker threads.
    """

    remote = True

    def __init__(self, system: Any, root: str, uri: str, renewed: Callable[[], Any] | None = None) -> None:
        self._current = renewed or (lambda: system)
        self._root = root.rstrip("/")
        self.uri = uri.rstrip("/")
        protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
        self._exclusive = bool(protocols & EXCLUSIVE_PROTOCOLS)
        self._verified_exclusive = False

    async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of an object; see the port."""
        check_range(path, start, length)
        return (await self._run("read", path, lambda: self._part(path, start, length)))[0]

    async def fetch(self, path: str, length: int) -> tuple[bytes, Stat]:
        """Bytes of an object and its stat; see the port. Two requests."""
        check_range(path, 0, length)
        return await self._run("read", path, lambda: self._part(path, 0, length))

    async def fetch_many(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
        """Bytes of objects and their stats; see the port."""
        return await fetch_each(self, paths, length)

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[Stat, None]:
        """Objects of a folder. All are requested at once, because fsspec has no pages; see the port."""
        check_prefix(prefix)
        folder = prefix[: prefix.rfind("/") + 1]
        stats = await self._run("list", prefix, lambda: self._list(folder, prefix, start_after), checked=True)
        for number, stat in enumerate(stats, 1):
            yield stat
            if not number % _LISTING_PAGE:
                await asyncio.sleep(0)

    async def folders(self, folder: str = "") -> Sequence[str]:
        """Names of folders; see `FolderListing`."""
        check_prefix(folder)
        return await self._run("list", folder, lambda: self._folders(folder), checked=True)

    async def put_if_absent(self, path: str, data: bytes) -> None:
        """Create an object; see the port. The first one verifies that the store supports this.

        Raises:
            UnsupportedError: the file system cannot create objects atomically.
        """
        data = bytes(data)
        if not self._exclusive:
            raise _unconditional(path)
        await self._run("write", path, lambda: self._create(path, data))
        if not self._verified_exclusive:
            # A store with conditional puts refuses to create the same object again.
            with contextlib.suppress(ExistsError):
                await self._run("write", path, lambda: self._create(path, data))
                raise _unconditional(path)
            self._verified_exclusive = True

    async def put(self, path: str, data: bytes | memoryview) -> None:
        """Create or replace an object; see the port."""
        data = bytes(data)
        await self._run("write", path, lambda: self._current().pipe_file(self._key(path), data))

    async def stat(self, path: str) -> Stat:
        """Size and modification time; see the port."""
        return await self._run("stat", path, lambda: self._stat(path))

    async def delete(self, path: str) -> None:
        """Remove an object; see the port."""

        def remove() -> None:
            with contextlib.suppress(NotFoundError):
                self._stat(path)
                self._current().rm_file(self._key(path))

        with contextlib.suppress(NotFoundError):
            await self._run("delete", path, remove)

    def prefetch(self, path: str, size: int | None = None, *, whole: bool = False) -> None:
        """Does nothing: there is no prefetching; see the port."""
        check_path(path)

    def open_input_file(self, path: str, size: int | None = None) -> pa.NativeFile:
        """Random access: small objects are read whole, others by the file system's own file; see the port."""
        check_path(path)
        with _translate_errors("read", path):
            size = self._stat(path).size
            if size <= WHOLE_OBJECT_BYTES:
                return pa.BufferReader(self._bytes(path, 0, size))
            return pa.PythonFile(RenewedFile(self._current, self._key(path), path), "r")

    # --- in threads ---

    async def _run(self, doing: str, path: str, work: Callable[[], T], *, checked: bool = False) -> T:
        if not checked:
            check_path(path)

        def translate() -> T:
            with _translate_errors(doing, path):
                return work()

        return await limit_call(self.uri, doing, path, translate)

    def _part(self, path: str, start: int, length: int | None) -> tuple[bytes, Stat]:
        stat = self._stat(path)
        end = stat.size if length is None else min(stat.size, start + length)
        return self._bytes(path, start, end), stat

    def _bytes(self, path: str, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        return bytes(self._current().cat_file(self._key(path), start=start, end=end))

    def _stat(self, path: str) -> Stat:
        info = self._current().info(self._key(path))
        if info["type"] != "file":
            raise NotFoundError("there is no object with that name", path=path)
        return _as_stat(path, info)

    def _list(self, folder: str, prefix: str, start_after: str) -> Sequence[Stat]:
        stats = {}
        for info in self._entries(folder):
            name = info["name"].rstrip("/").rpartition("/")[2]
            path = f"{folder}{name}"
            is_listed = path.startswith(prefix) and path > start_after and not path.endswith("/")
            if is_listed and info["type"] == "file" and self._key(path) == info["name"]:
                stats[path] = _as_stat(path, info)
        return [stats[path] for path in sorted(stats)]

    def _folders(self, folder: str) -> Sequence[str]:
        folders = (info["name"] for info in self._entries(folder) if info["type"] == "directory")
        return sorted({name.rstrip("/").rpartition("/")[2] for name in folders})

    def _entries(self, folder: str) -> Sequence[Mapping[str, Any]]:
        try:
            entries: Sequence[Mapping[str, Any]] = self._current().ls(f"{self._root}/{folder}".rstrip("/"), detail=True)
        except _ABSENT:
            return ()
        return entries

    def _create(self, path: str, data: bytes) -> None:
        self._current().pipe_file(self._key(path), data, mode="create")

    def _key(self, path: str) -> str:
        return f"{self._root}/{path}"


class RenewedFile(io.RawIOBase):
    """A file for reading, which is opened again once its file system has been renewed. An open file keeps its first credentials.

    Args:
        system: the file system now.
        key: of the file in it.
        path: of the file in its store, for errors.
    """

    def __init__(self, system: Callable[[], Any], key: str, path: str) -> None:
        self._current = system
        self._path = path
        self._key = key
        self._system = system()
        self._file = self._system.open(key, "rb")

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Bytes from the current position on. Raises errors of stores: other ones would mean that the file is damaged."""
        with _translate_errors("read", self._path):
            system = self._current()
            if system is not self._system:
                at = self._file.tell()
                self._file.close()
                self._system, self._file = system, system.open(self._key, "rb")
                self._file.seek(at)
            data: bytes = self._file.read(-1 if size is None else size)
            return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move to a position."""
        with _translate_errors("read", self._path):
            position: int = self._file.seek(offset, whence)
            return position

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def _renewed(uri: str, options: Mapping[str, object], source: KeySource) -> Callable[[], Any]:
    """The file system of a location, opened again whenever its source has another credential. Blocks, and raises what the source does."""
    lock = threading.Lock()
    last: Mapping[str, str] | None = None
    system: Any = None

    def current() -> Any:
        nonlocal last, system
        config = request_loop().submit(source.config()).result()
        with lock:
            if config != last:
                # A vended credential as options of adlfs or gcsfs.
                credential: dict[str, object] = {}
                if "azure.sas-token" in config:
                    credential = {"sas_token": config["azure.sas-token"]}
                elif "gcs.oauth-token" in config:
                    from google.oauth2.credentials import Credentials  # gcsfs has it, and takes no bare token

                    credential = {"token": Credentials(config["gcs.oauth-token"])}  # type: ignore[no-untyped-call]
                arguments = {**options, **credential, "skip_instance_cache": True}
                system = fsspec.core.url_to_fs(uri, use_listings_cache=False, **arguments)[0]
                last = config
            return system

    return current


def open_fsspec(uri: str, options: Mapping[str, object], package: str) -> FsspecStorage:
    """The store at a URI that fsspec supports, by the implementation of a package. It accesses nothing yet.

    Raises:
        ConfigError: the file system does not accept the options.
        UnsupportedError: its implementation is not installed.
    """
    scheme = uri.partition(":")[0].lower()
    try:
        system = fsspec.get_filesystem_class(scheme)
    except (ImportError, ValueError):
        what = f"fsspec's implementation of {scheme}:// locations is not installed"
        raise UnsupportedError(what, path=uri, hint=f"Run: pip install {package}") from None
    source = cast("KeySource | None", options.get(SOURCE))
    own = {name: value for name, value in options.items() if name != SOURCE}
    try:
        if source is not None:
            return FsspecStorage(system, system._strip_protocol(uri), uri, _renewed(uri, own, source))
        system, root = fsspec.core.url_to_fs(uri, use_listings_cache=False, **own)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the location cannot be opened: {type(error).__name__}", path=uri) from None
    return FsspecStorage(system, root, uri)


@contextlib.contextmanager
def _translate_errors(doing: str, path: str) -> Iterator[None]:
    try:
        yield
    except _kinds(_ABSENT, _ABSENT_TOO):
        raise NotFoundError("there is no object with that name", path=path) from None
    except FileExistsError:
        raise ExistsError("there is an object with that name already", path=path) from None
    except PermissionError:
        hint = "Check the permissions of these credentials"
        raise StorageError(f"cannot {doing}: permission denied", path=path, hint=hint) from None
    except _kinds((OSError, RuntimeError, ValueError), _FAILURES) as error:
        raise StorageError(f"cannot {doing}: {type(error).__name__}: {error}", path=path, retriable=True) from None


_ABSENT_TOO = (("azure.core.exceptions", "ResourceNotFoundError"),)
"""An open file of adlfs raises this one once the object is gone."""
_FAILURES = (
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("azure.core.exceptions", "AzureError"),
    ("aiohttp", "ClientError"),
)


def _kinds(own: tuple[type[Exception], ...], names: Sequence[tuple[str, str]]) -> tuple[type[Exception], ...]:
    """Exceptions of Python, and those of file systems whose modules are in use."""
    kinds = (getattr(sys.modules.get(module), name, None) for module, name in names)
    return (*own, *(kind for kind in kinds if kind is not None))


def _unconditional(path: str) -> UnsupportedError:
    return UnsupportedError(
        "this store has no conditional put that cdfd can rely on",
        path=path,
        hint="Keep the ledger elsewhere: `progress.ledger` with a path, or on S3; see docs/s3.md",
    )


def _as_stat(path: str, info: Mapping[str, Any]) -> Stat:
    """The stat from a file system's info. Without an ETag, its times identify a write; some stores count in seconds."""
    value = next((info[name] for name in _TIMES if info.get(name) is not None), 0)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        value = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
    # A float of seconds may be a little less than its millisecond, but it is exact to the microsecond.
    modified = round(value * 1_000_000) // 1000 if isinstance(value, int | float) else 0
    tags = [str(info[name]) for name in _TAGS if info.get(name) is not None]
    times = [str(info[name]) for name in ("ino", "mtime") if info.get(name) is not None]
    settled = bool(tags) or time.time() * 1000 - modified > _SETTLED_MS
    return Stat(path, int(info["size"]), modified, "-".join([str(info["size"]), str(modified), *tags, *times]), settled)
