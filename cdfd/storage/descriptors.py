"""Open files and folders of the local file system: what a name leads to cannot be exchanged for something else once it is open.

Everything here blocks, and raises plain `OSError` in addition to the errors that are named.
"""

import os
import stat
import sys
import time
from collections.abc import Iterator

import pyarrow as pa

from cdfd.errors import NotFoundError, StorageError
from cdfd.storage.base import Stat

# The folder in which the open descriptors of this process are files. It reopens a file independently of its name.
_DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
# Kernels count file times in steps of up to 10 ms, and some mounted file systems in seconds.
_SETTLED_NS = 50_000_000


def regular(descriptor: int, path: str) -> int:
    """The descriptor of a regular file; that of anything else is closed."""
    try:
        require_file(os.fstat(descriptor), path)
    except StorageError:
        os.close(descriptor)
        raise
    return descriptor


def content(descriptor: int, path: str, start: int, length: int | None) -> tuple[bytes, Stat]:
    """Bytes of an open file, and its stat after the read, so that the caller can detect growth. Closes the file."""
    try:
        available = max(0, os.fstat(descriptor).st_size - start)
        data = pread(descriptor, start, available if length is None else min(length, available))
        return data, as_stat(path, os.fstat(descriptor))
    finally:
        os.close(descriptor)


def name_of(descriptor: int) -> str:
    """A name of an open file that leads to that file alone."""
    return f"{_DESCRIPTORS}/{descriptor}"


def columns(descriptor: int) -> pa.NativeFile:
    """An open file for a columnar reader. Arrow opens files by name only, and the name may belong to another file by now."""
    try:
        return pa.OSFile(name_of(descriptor), "r")
    except OSError:
        # The system, or a sandbox, has no such names. This is slower, because Python reads the file.
        return pa.PythonFile(os.fdopen(os.dup(descriptor), "rb", buffering=0), "r")
    finally:
        os.close(descriptor)


def entries(folder: int) -> Iterator[os.DirEntry[str]]:
    """The entries of an open folder, in no order."""
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(descriptor) as listing:
            yield from listing
    finally:
        os.close(descriptor)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or may be one: a link that cannot be followed counts, because listing it raises the error."""
    try:
        return entry.is_dir()
    except OSError:
        # A loop, or a target in a folder that may not be searched. The entries next to it are not affected.
        return entry.is_symlink()


def as_stat(path: str, file: os.stat_result) -> Stat:
    """The port's stat of a file at `path`."""
    # A new file may reuse the inode number of a removed one, and users can set the modification time. They cannot set the change time.
    identity = f"{file.st_ino}-{file.st_size}-{file.st_mtime_ns}-{file.st_ctime_ns}"
    newest = max(file.st_mtime_ns, file.st_ctime_ns)
    settle = _SETTLED_NS if file.st_ctime_ns % 1_000_000_000 else 2_000_000_000
    return Stat(path, file.st_size, file.st_mtime_ns // 1_000_000, identity, time.time_ns() - newest > settle)


def is_utf8(name: str) -> bool:
    """Whether the bytes of a file's name are UTF-8."""
    # Python decodes others as surrogate escapes.
    return name.isascii() or not any("\udc80" <= character <= "\udcff" for character in name)


def pread(descriptor: int, start: int, length: int) -> bytes:
    """Bytes `[start, start + length)` of an open file; fewer at its end."""
    data = os.pread(descriptor, length, start)
    if len(data) == length or not data:
        return data
    # The kernel returns at most 2 GiB at once.
    parts = [data]
    done = len(data)
    while done < length and (data := os.pread(descriptor, length - done, start + done)):
        parts.append(data)
        done += len(data)
    return b"".join(parts)


def require_file(file: os.stat_result, path: str) -> None:
    """`NotFoundError` for a folder, `StorageError` for a device, socket or FIFO."""
    if stat.S_ISDIR(file.st_mode):
        raise NotFoundError("there is no object with that name, only a folder", path=path)
    if not stat.S_ISREG(file.st_mode):
        raise StorageError("it is not a regular file", path=path, hint="Remove the device, socket or FIFO")
