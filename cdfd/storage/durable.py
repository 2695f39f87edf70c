"""Atomic and durable writes of local files: readers never see half a file, and a crash never loses one.

The bytes go to a temporary file in the same folder, are synced, and get their name in one step. Temporary names begin with a dot, so that
readers of a transaction log skip them. Everything here blocks and raises plain `OSError`. Callers build their error with `explain`.
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from typing import BinaryIO, TypeVar

from cdfd.errors import CdfdError

_PREFIX, _SUFFIX = ".cdfd-", ".tmp"


def temporary_name() -> str:
    """A unique name: `.cdfd-<16 hex digits>.tmp`."""
    return f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"


def is_temporary(name: str) -> bool:
    """Whether a file name is one of `temporary_name`'s."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def create(folder: int, name: str, data: bytes | memoryview, *, mode: int, sync: bool) -> None:
    """Create a file with `data`. If the name exists, raise `FileExistsError` and change nothing.

    `link` refuses an existing target atomically, which `rename` does not. Neither follows a symbolic link of that name.

    Args:
        folder: descriptor of the folder.
        name: of the file in it.
        data: all of the file.
        mode: of the file, before the process's umask.
        sync: whether file and name are synced to the device.
    """
    temporary = _write_temporary(folder, data, mode=mode, sync=sync)
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    finally:
        os.unlink(temporary, dir_fd=folder)
    if sync:
        sync_folder(folder)


def replace(folder: int, name: str, data: bytes | memoryview, *, mode: int, sync: bool) -> None:
    """Create a file with `data`, or replace all of it; as `create` otherwise."""
    put(folder, name, data, mode=mode, sync=sync)
    if sync:
        sync_folder(folder)


def put(folder: int, name: str, data: bytes | memoryview, *, mode: int, sync: bool) -> None:
    """As `replace`, but the name is not synced: the next `sync_folder` does that."""
    temporary = _write_temporary(folder, data, mode=mode, sync=sync)
    try:
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(temporary, dir_fd=folder)
        raise


@contextlib.contextmanager
def replacing(path: str, *, mode: int) -> Iterator[BinaryIO]:
    """A file for writing that takes its name when the block ends, and replaces one of that name. After an error there is no new file.

    A device, a FIFO or a link, such as /dev/null and /dev/stdout, would be gone: `FileExistsError`, before the block.

    Args:
        path: of the file.
        mode: of the file, before the process's umask.
    """
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isfile(path)):
        raise FileExistsError(errno.EEXIST, "it is a device, a link or a folder, which the file would replace", path)
    temporary = os.path.join(os.path.dirname(path), temporary_name())
    with os.fdopen(open_new(None, temporary, mode), "wb", buffering=1 << 20) as file:
        try:
            yield file
            file.flush()
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def open_new(folder: int | None, name: str, mode: int) -> int:
    """A descriptor of a file that did not exist, for writing. Without a descriptor of its folder, `name` is a path."""
    return os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)


def _write_temporary(folder: int, data: bytes | memoryview, *, mode: int, sync: bool) -> str:
    temporary = temporary_name()
    descriptor = open_new(folder, temporary, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(descriptor)
    except OSError:
        os.unlink(temporary, dir_fd=folder)
        raise
    return temporary


def make_folder(path: str, *, mode: int = 0o777, sync: bool) -> None:
    """Create a folder and missing folders above it. `NotADirectoryError` if a file has one of these names."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_folder(parent, mode=mode, sync=sync)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
    if sync:
        sync_folder(None, parent)


def nearest_existing(path: str) -> str:
    """The path itself, or its nearest ancestor that exists."""
    place = os.path.abspath(path)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    return place


def sync_folder(folder: int | None, path: str = ".") -> None:
    """Make the names in a folder durable: syncing a file does not sync its name. `folder` may be an O_PATH descriptor, or None."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


E = TypeVar("E", bound=CdfdError)


# Transient errors: something is full, busy, or cannot be reached. They need no change of configuration, permissions or files.
_TRANSIENT = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOLCK, errno.ENOBUFS),
        *(errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ETXTBSY, errno.EDEADLK),
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN, errno.EPIPE),
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET),
    }
)
_READ_PERMISSION = "Check that the user cdfd runs as may read there"
_PERMISSION = "Check that the user cdfd runs as may read and write there"
_READING = frozenset({"read", "open", "list", "stat"})
"""The verbs of what only reads."""
_HINTS = {
    errno.EACCES: _PERMISSION,
    errno.EPERM: f"{_PERMISSION}, and that the file system has hard links",
    errno.EOPNOTSUPP: "The file system has no hard links, which exclusive writes need: use another one",
    errno.ENOSPC: "Free some space on the file system, or some of its inodes",
    errno.EDQUOT: "Free some space, or raise the quota",
    errno.ENOMEM: "The system has no memory left: free some",
    errno.EFBIG: "Raise the largest size of a file (ulimit -f), or use another file system",
    errno.ENOTCONN: "The network file system is not connected: remount it if this lasts",
    errno.EROFS: "The file system is mounted read-only",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
    errno.ENFILE: "The system has too many open files",
    errno.ENOTDIR: "A part of the path is a file, not a folder",
    errno.EISDIR: "A folder has that name",
    errno.ENOTEMPTY: "A folder has that name",
    errno.ELOOP: "It is a symbolic link that cdfd does not follow, or one that leads back to itself",
    errno.EIO: "The device or the network file system reports a fault: see the system's log",
    errno.ESTALE: "The network file system has lost the file: remount it if this lasts",
}


def explain(error: OSError, doing: str, path: str, kind: type[E]) -> E:
    """An `OSError` for users, as an error of cdfd: the system's message, a hint, and whether the error is transient."""
    hint = None if error.errno is None else _HINTS.get(error.errno)
    if error.errno in (errno.EACCES, errno.EPERM) and doing.partition(" ")[0] in _READING:
        hint = _READ_PERMISSION
    what = f"cannot {doing}: {error.strerror or error}"
    return kind(what, path=path, hint=hint, retriable=error.errno in _TRANSIENT)


def is_transient(error: BaseException) -> bool:
    """Whether an error is a transient one of the system. Errors in a file's content are not."""
    return isinstance(error, OSError) and error.errno in _TRANSIENT
