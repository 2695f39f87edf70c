"""Whole files on a local disk, written so that readers never see half of one and a crash never loses one.

The bytes go to a temporary file in the same folder, are synced, and get their name in one step. Temporary names begin
with a dot, so that readers of a transaction log skip them. Everything here blocks and raises plain `OSError`: the
adapters that use it say in their own words what was being done, with `explain`.
"""

from __future__ import annotations

import errno
import os
import secrets
from dataclasses import dataclass

_PREFIX, _SUFFIX = ".cdfd-", ".tmp"


def temporary_path(folder: str) -> str:
    """A name in `folder` that nothing has: `.cdfd-<16 hex digits>.tmp`."""
    return os.path.join(folder, f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}")


def is_temporary(name: str) -> bool:
    """Whether a file name is one of `temporary_path`'s."""
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def create(path: str, data: bytes, *, sync: bool) -> None:
    """Create `path` with `data`, or raise `FileExistsError` and leave what is there as it is.

    `link` refuses an existing target atomically, which `rename` does not.
    """
    temporary = _write_temporary(path, data, sync=sync)
    try:
        os.link(temporary, path)
    finally:
        os.unlink(temporary)
    if sync:
        sync_folder(os.path.dirname(path))


def replace(path: str, data: bytes, *, sync: bool) -> None:
    """Create `path` with `data`, or replace all of it."""
    temporary = _write_temporary(path, data, sync=sync)
    try:
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    if sync:
        sync_folder(os.path.dirname(path))


def _write_temporary(path: str, data: bytes, *, sync: bool) -> str:
    folder = os.path.dirname(path)
    temporary = temporary_path(folder)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, 0o666)
    except FileNotFoundError:
        make_folder(folder, sync=sync)
        descriptor = os.open(temporary, flags, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(descriptor)
    except OSError:
        os.unlink(temporary)
        raise
    return temporary


def make_folder(path: str, *, sync: bool) -> None:
    """Create a folder and those above it that are missing. `NotADirectoryError` where a file is in the way."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_folder(parent, sync=sync)
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
    if sync:
        sync_folder(parent)


def sync_folder(path: str) -> None:
    """Make the names in a folder durable: syncing a file says nothing about its name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What an `OSError` means to a user: the system's words, what can be done, and whether waiting may be enough."""

    reason: str
    hint: str | None
    retriable: bool


# What passes without a change to the configuration, to rights or to the files themselves: something is full, busy, or cannot be reached.
_TRANSIENT = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOLCK, errno.ENOBUFS),
        *(errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ETXTBSY, errno.EDEADLK),
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN, errno.EPIPE),
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET),
    }
)
_PERMISSION = "Check that the user cdfd runs as may read and write there"
_HINTS = {
    errno.EACCES: _PERMISSION,
    errno.EPERM: f"{_PERMISSION}, and that the file system has hard links",
    errno.EOPNOTSUPP: "The file system has no hard links, which exclusive writes need: use another one",
    errno.ENOSPC: "Free some space on the file system, or some of its inodes",
    errno.EDQUOT: "Free some space, or raise the quota",
    errno.ENOMEM: "The system has no memory left for it",
    errno.EFBIG: "Raise the largest size of a file (ulimit -f), or use another file system",
    errno.ENOTCONN: "The network file system is not connected: remount it if this lasts",
    errno.EROFS: "The file system is mounted read-only",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
    errno.ENFILE: "The system has too many open files",
    errno.ENOTDIR: "Something on the way to it is a file, not a folder",
    errno.EISDIR: "A folder has that name",
    errno.ENOTEMPTY: "A folder has that name",
    errno.ELOOP: "A symbolic link on the way to it leads back to itself",
    errno.EIO: "The device or the network file system reports a fault: see the system's log",
    errno.ESTALE: "The network file system has forgotten the file: remount it if this lasts",
}


def explain(error: OSError) -> Explanation:
    """What to tell a user about an `OSError`."""
    code = error.errno
    reason = error.strerror or str(error)
    if code is None:
        return Explanation(reason, None, retriable=False)
    return Explanation(reason, _HINTS.get(code), retriable=code in _TRANSIENT)


def is_transient(error: BaseException) -> bool:
    """Whether an error is one of the system that may pass while nobody changes anything here; what is wrong with a file's content is none."""
    return isinstance(error, OSError) and error.errno in _TRANSIENT
