"""A folder of the local file system (or of one that is mounted) as a store."""

import os
import stat
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from typing import TypeVar

import pyarrow as pa

from cdfd.errors import ExistsError, NotFoundError, PathError, StorageError
from cdfd.storage.base import Stat, check_path, check_prefix, check_range, is_same
from cdfd.storage.confined import ConfinedRoot
from cdfd.storage.deadline import limit_call
from cdfd.storage.descriptors import (
    as_stat,
    columns,
    content,
    entries,
    is_folder,
    is_utf8,
    pread,
    regular,
    require_file,
)
from cdfd.storage.durable import create, explain, is_temporary, replace

T = TypeVar("T")

# O_NONBLOCK: opening a FIFO in the table must not hang.
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_LISTING_PAGE = 1000
# Bytes of a file that is read as fast as its footer alone.
_SMALL = 64 << 10


class LocalStorage:
    """The `Storage` port over a folder, which need not exist yet.

    All work is done in worker threads. A small read takes 0.1 ms that way instead of 0.005 ms inline, but a hanging disk or network mount
    does not block the event loop. Run long scans in threads of their own: `asyncio.to_thread` has few, and the next log entry would wait
    for one.

    The root may be a symbolic link. Links inside it are followed if their target is inside it, or in an allowed folder. Every method
    refuses other links with `PathError` (see `confined`). A listing contains such a link, with the link's own size: reading it raises the
    error. Files whose names are not UTF-8 cannot be named and are not listed.

    Args:
        root: the folder; a relative path is resolved against the current working directory.
        sync: whether to sync writes to the device.
        allowed: local folders outside the root to which links may lead.
        within: a folder above the root. The root may then be a link, or be reached by one, only if its target is inside that folder, or in
            an allowed one.
        mode: of new files, before the process's umask. Users that may read new files may also search new folders.
    """

    remote = False

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        sync: bool = True,
        allowed: Sequence[str] = (),
        within: str | None = None,
        mode: int = 0o666,
    ) -> None:
        self.uri = os.fspath(root)
        """The root as it was given."""
        if "\0" in self.uri:
            raise PathError("the storage root contains a NUL character", path=self.uri.replace("\0", "\\0"))
        try:
            os.fsencode(self.uri)
        except UnicodeEncodeError:
            raise PathError("the storage root is not a path of this system", path=ascii(self.uri)[1:-1]) from None
        self.root = os.path.abspath(self.uri)
        """The root as an absolute path."""
        self._confined = ConfinedRoot(self.root, allowed, within)
        self._sync = sync
        self._mode = mode

    async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of a file; see the port."""
        check_range(path, start, length)
        return (await self._run("read", path, lambda: self._read(path, start, length)))[0]

    async def fetch(self, path: str, length: int) -> tuple[bytes, Stat]:
        """Bytes of a file and its stat, after them; see the port."""
        check_range(path, 0, length)
        return await self._run("read", path, lambda: self._read(path, 0, length))

    async def fetch_many(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
        """Bytes of files and their stats, by one thread; see the port."""
        for path in paths:
            check_path(path)
        return await self._run("read", paths[0] if paths else "", lambda: self._read_folders(paths, length))

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[Stat, None]:
        """Files of a folder; see the port. The folder's matching names are held at once, their stats by page."""
        check_prefix(prefix)
        folder = prefix[: prefix.rfind("/") + 1]
        beginning = prefix[len(folder) :]

        def matches(entry: os.DirEntry[str]) -> bool:
            return (
                entry.name.startswith(beginning)
                and folder + entry.name > start_after
                and not entry.is_dir(follow_symlinks=False)
                and not is_temporary(entry.name)
                and is_utf8(entry.name)
            )

        names = await self._run("list", prefix, lambda: self._names(folder, matches))
        for at in range(0, len(names), _LISTING_PAGE):
            page = names[at : at + _LISTING_PAGE]
            for each in await self._run("list", prefix, partial(self._stat_page, folder, page)):
                yield each

    async def folders(self, folder: str = "") -> Sequence[str]:
        """Names of folders, of links to folders, and of links that cannot be followed; see `FolderListing`."""
        check_prefix(folder)
        below = f"{folder}/" if folder else ""
        return await self._run(
            "list", folder, lambda: self._names(below, lambda entry: is_folder(entry) and is_utf8(entry.name))
        )

    async def links(self, folder: str = "") -> Collection[str]:
        """The names of the symbolic links in a folder; none if it does not exist.

        Raises:
            StorageError: the folder cannot be listed.
        """
        check_prefix(folder)
        below = f"{folder}/" if folder else ""
        return set(await self._run("list", folder, lambda: self._names(below, lambda entry: entry.is_symlink())))

    async def file_ids(self, paths: Sequence[str]) -> Sequence[tuple[int, int] | None]:
        """Device and inode of the file behind each path, which identify it. Links are followed wherever they lead; nothing is read.

        A file may have several names: by symbolic links, hard links and mounts, and on file systems that ignore case.

        Args:
            paths: relative to the root, or absolute.

        Returns:
            For each path its file, or None if there is none.

        Raises:
            StorageError: a path cannot be followed, such as a link that leads to itself.
        """

        def ids() -> Sequence[tuple[int, int] | None]:
            known = dict[str, tuple[int, int]]()
            for path in paths:
                with suppress(NotFoundError), _translate_errors("stat", path):
                    file = os.stat(os.path.join(self.root, path))
                    known[path] = file.st_dev, file.st_ino
            return [*map(known.get, paths)]

        return await self._run("stat", "", ids)

    async def put_if_absent(self, path: str, data: bytes) -> None:
        """Create a file under a temporary name and link it to `path`; see the port."""
        await self._run("write", path, lambda: self._write(create, path, data))

    async def put(self, path: str, data: bytes | memoryview) -> None:
        """Write a file under a temporary name and rename it to `path`; see the port."""
        await self._run("write", path, lambda: self._write(replace, path, data))

    async def delete(self, path: str) -> None:
        """Remove a file; of a symbolic link the link, not what it leads to. See the port."""
        check_path(path)
        await self._run("delete", path, lambda: self._delete(path))

    async def stat(self, path: str) -> Stat:
        """Size and modification time of a file; see the port."""
        check_path(path)
        return await self._run("stat", path, lambda: self._stat(path))

    def prefetch(self, path: str, size: int | None = None, *, whole: bool = False) -> None:
        """Does nothing: local reads are fast; see the port."""
        check_path(path)

    def open_input_file(self, path: str, size: int | None = None) -> pa.NativeFile:
        """Random access through `pread`; a small file is read at once.

        Not a memory map, although that is as fast and takes a tenth less memory: truncating a mapped file kills the
        process that reads it (SIGBUS).
        """
        if size is not None and size <= _SMALL:
            data, content = self._read(path, 0, _SMALL + 1)
            if content.size <= _SMALL:
                return pa.BufferReader(data)
        with _translate_errors("open", path):
            return columns(self._open(path))

    def read_whole(self, paths: Sequence[str], sizes: Sequence[int]) -> Sequence[bytes]:
        """All bytes of files, each folder opened once; see `WholeFiles`."""
        contents: list[bytes] = []
        for folder, group in groupby(zip(paths, sizes, strict=True), lambda wanted: wanted[0].rpartition("/")[0]):
            wanted = list(group)
            with _translate_errors("read", wanted[0][0]), self._confined.folder(folder, wanted[0][0]) as descriptor:
                for path, size in wanted:
                    check_path(path)
                    with _translate_errors("read", path):
                        file = regular(self._confined.open_in(descriptor, path, _OPEN), path)
                        try:
                            data = pread(file, 0, size + 1)
                        finally:
                            os.close(file)
                    if len(data) > size:
                        raise StorageError(f"the file has more than {size} bytes, which it should have", path=path)
                    contents.append(data)
        return contents

    # --- in threads ---

    async def _run(self, doing: str, path: str, work: Callable[[], T]) -> T:
        """The result of a call in a thread. A mount whose server is gone does not answer."""
        return await limit_call(self.uri, doing, path, work)

    def _delete(self, path: str) -> None:
        name = os.path.basename(path)
        try:
            with self._confined.folder(os.path.dirname(path), path) as folder:
                if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise explain(error, "delete", path, StorageError) from error

    def _stat(self, path: str) -> Stat:
        with _translate_errors("stat", path), self._confined.folder(os.path.dirname(path), path) as folder:
            return self._stat_in(folder, path)

    def _open(self, path: str) -> int:
        check_path(path)
        return regular(self._confined.open(path, _OPEN), path)

    def _read(self, path: str, start: int, length: int | None) -> tuple[bytes, Stat]:
        with _translate_errors("read", path):
            return content(self._open(path), path, start, length)

    def _read_folders(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
        contents: list[tuple[bytes, Stat]] = []
        for folder, group in groupby(paths, os.path.dirname):
            wanted = list(group)
            read = self._read_folder(folder, wanted, length)
            contents += read
            length -= sum(stat.size for _, stat in read)
            if len(read) < len(wanted):
                break
        return contents

    def _read_folder(self, folder: str, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
        contents: list[tuple[bytes, Stat]] = []
        with (
            suppress(StorageError),
            _translate_errors("read", folder),
            self._confined.folder(folder, paths[0]) as descriptor,
        ):
            with suppress(StorageError):
                for path in paths:
                    with _translate_errors("read", path):
                        file = regular(self._confined.open_in(descriptor, path, _OPEN), path)
                        data, stat = content(file, path, 0, length + 1)
                    if stat.size > length or len(data) != stat.size:
                        break
                    length -= stat.size
                    contents.append((data, stat))
            for number, (_, stat) in enumerate(contents):
                with suppress(StorageError):
                    # Checked after all of them were read, so that a file that is being written had time to grow.
                    if is_same(stat, self._stat_in(descriptor, stat.path)):
                        continue
                return contents[:number]
        return contents

    def _names(self, folder: str, accepts: Callable[[os.DirEntry[str]], bool]) -> Sequence[str]:
        """The names of entries of a folder, in the order of code points, which is that of UTF-8 bytes. None if it does not exist."""
        with _translate_errors("list", folder):
            try:
                with self._confined.folder(folder) as below:
                    return sorted(entry.name for entry in entries(below) if accepts(entry))
            except (FileNotFoundError, NotADirectoryError):
                return ()

    def _stat_page(self, folder: str, names: Sequence[str]) -> Sequence[Stat]:
        page = []
        with suppress(NotFoundError), _translate_errors("list", folder), self._confined.folder(folder) as below:
            for name in names:
                path = folder + name
                with _translate_errors("list", path), suppress(FileNotFoundError):
                    try:
                        stated = self._confined.stat_in(below, path)
                    except (FileNotFoundError, NotADirectoryError):
                        continue  # removed since, or a link to nothing
                    except (PathError, OSError):
                        # A link out of the table, into a folder that may not be searched, or to itself. Reading it raises the error.
                        # Listing it does not, because it may never be read.
                        page.append(as_stat(path, os.stat(name, dir_fd=below, follow_symlinks=False)))
                        continue
                    if stat.S_ISREG(stated.st_mode):
                        page.append(as_stat(path, stated))
        return page

    def _stat_in(self, folder: int, path: str) -> Stat:
        with _translate_errors("stat", path):
            stat = self._confined.stat_in(folder, path)
            require_file(stat, path)
            return as_stat(path, stat)

    def _write(self, write: Callable[..., None], path: str, data: bytes | memoryview) -> None:
        check_path(path)
        above, name = os.path.split(path)
        try:
            try:
                with self._confined.folder(above, path) as folder:
                    write(folder, name, data, mode=self._mode, sync=self._sync)
            except FileNotFoundError:
                # Users that may read the files may search the folder: 0o640 -> 0o750.
                searched = self._mode | 0o100 | (self._mode & 0o444) >> 2
                self._confined.make(above, mode=searched, sync=self._sync)
                with self._confined.folder(above, path) as folder:
                    write(folder, name, data, mode=self._mode, sync=self._sync)
        except FileExistsError as error:
            raise ExistsError("there is an object with that name already", path=path) from error
        except OSError as error:
            raise explain(error, "write", path, StorageError) from error


@contextmanager
def _translate_errors(doing: str, path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError("there is no object with that name", path=path) from error
    except OSError as error:
        raise explain(error, doing, path, StorageError) from error
