"""Files and folders confined to a root: a symbolic link that leads out of it is not followed.

Every user with write access to a table can create links in it, at any time. So a path is walked segment by segment: each segment is opened
relative to the folder before it, without following links. This way, the object that was checked is the one that is open. A link on the way is
resolved. The walk starts again at its target, if that lies below the root or an allowed folder.

    orders/part-0.parquet -> blobs/0      read: below the root
    orders/part-0.parquet -> /etc/shadow  PathError
    orders -> /mnt/lake/orders            the root itself comes from the user: followed

Hard links look like files, and are not detected. Everything here blocks, and raises plain `OSError` in addition to `PathError`.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cdfd.errors import PathError
from cdfd.storage.durable import make_folder, sync_folder

# O_PATH opens folders without read permission. Systems without it require read permission.
_FOLDER: int = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# The errors of opening a link with O_NOFOLLOW: for a file, for a folder, on BSD.
_LINKED = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})


class ConfinedRoot:
    """A root folder and everything below it.

    Args:
        root: an absolute path; need not exist yet.
        allowed: local folders outside the root to which links may lead.
    """

    def __init__(self, root: str, allowed: Sequence[str] = ()) -> None:
        self.root = root
        self.allowed = tuple(allowed)

    @contextmanager
    def folder(self, path: str, requested: str = "") -> Iterator[int]:
        """A descriptor of the folder at `path`, usable as `dir_fd`; the root is the empty path. Errors name the path `requested`."""
        descriptor = self._folder(path, requested)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _folder(self, path: str, requested: str) -> int:
        try:
            return _descend(self.root, path)
        except OSError as error:
            if error.errno not in _LINKED:
                raise
        return _descend(*self._resolve_link(path, requested))

    def open(self, path: str, flags: int) -> int:
        """A descriptor of the file at `path`."""
        folder = self._folder(path.rpartition("/")[0], path)
        try:
            return self.open_in(folder, path, flags)
        finally:
            os.close(folder)

    def open_in(self, folder: int, path: str, flags: int) -> int:
        """A descriptor of the file at `path`, whose folder is open as `folder`."""
        try:
            return os.open(path.rpartition("/")[2], flags | os.O_NOFOLLOW, dir_fd=folder)
        except OSError as error:
            if error.errno not in _LINKED:
                raise
        root, inside = self._resolve_link(path)
        below = _descend(root, os.path.dirname(inside))
        try:
            return os.open(os.path.basename(inside), flags | os.O_NOFOLLOW, dir_fd=below)
        finally:
            os.close(below)

    def stat_in(self, folder: int, path: str) -> os.stat_result:
        """The stat of `path`, of a link's target if it is a link; its folder is open as `folder`."""
        found = os.stat(os.path.basename(path), dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            return found
        root, inside = self._resolve_link(path)
        below = _descend(root, os.path.dirname(inside))
        try:
            found = os.stat(os.path.basename(inside), dir_fd=below, follow_symlinks=False)
        finally:
            os.close(below)
        if stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return found

    def make(self, path: str, *, mode: int, sync: bool) -> None:
        """Create the folder at `path` and missing folders above it. `NotADirectoryError` if a file has one of these names."""
        make_folder(self.root, mode=mode, sync=sync)
        try:
            _make(self.root, path, mode=mode, sync=sync)
        except OSError as error:
            if error.errno not in _LINKED:
                raise
            _make(*self._resolve_link(path), mode=mode, sync=sync)

    def _resolve_link(self, path: str, requested: str = "") -> tuple[str, str]:
        """The real location of `path`: a root without links, and the path in it, which need not exist."""
        target = os.path.realpath(os.path.join(self.root, path))
        for place in map(os.path.realpath, (self.root, *self.allowed)):
            if target == place or target.startswith(place.rstrip("/") + "/"):
                return place, target[len(place) :].lstrip("/")
        raise PathError(
            f"a symbolic link leads out of the table, to {target}",
            path=requested or path,
            hint="If this is intended, add the target to `allowed_roots`",
        )


def _segments(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment not in ("", ".")]


def _descend(root: str, path: str) -> int:
    # Links are followed in the root, which is the way to the first segment, and nowhere else.
    first, *others = _segments(path) or ("",)
    descriptor = os.open(f"{root}/{first}", _FOLDER | os.O_NOFOLLOW if first else _FOLDER)
    for segment in others:
        try:
            below = os.open(segment, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _make(root: str, path: str, *, mode: int, sync: bool) -> None:
    descriptor = os.open(root, _FOLDER)
    try:
        for segment in _segments(path):
            try:
                below = os.open(segment, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            except FileNotFoundError:
                below = _make_one(descriptor, segment, mode=mode, sync=sync)
            descriptor, above = below, descriptor
            os.close(above)
    finally:
        os.close(descriptor)


def _make_one(folder: int, name: str, *, mode: int, sync: bool) -> int:
    try:
        os.mkdir(name, mode, dir_fd=folder)
    except FileExistsError:
        pass  # another process created it, or the name is taken: opening it shows which
    else:
        if sync:
            sync_folder(folder)
    return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
