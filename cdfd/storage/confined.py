"""Files and folders confined to a root: a symbolic link that leads out of it is not followed.

Every user with write access to a table can create links in it, at any time. So a path is walked segment by segment: each segment is opened
relative to the folder before it, without following links. This way, the object that was checked is the one that is open. A link on the way is
resolved. The walk starts again at its target, if that lies below the root or an allowed folder.

    orders/part-0.parquet -> blobs/0      read: below the root
    orders/part-0.parquet -> /etc/shadow  PathError
    orders -> /mnt/lake/orders            the root itself comes from the user: followed

The root of a table that a search found below a folder does not come from the user, but that folder does. Such a root is confined to the
folder, and the table to its root.

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
        within: the root, or a folder above it, as the user named it. Links below it may lead to no other place, also those that are part of
            the root.
    """

    def __init__(self, root: str, allowed: Sequence[str], within: str | None) -> None:
        self.root = root
        self.allowed = tuple(allowed)
        self._within = root if within is None else within
        self._prefix = os.path.relpath(root, self._within)

    @contextmanager
    def folder(self, path: str, requested: str = "") -> Iterator[int]:
        """A descriptor of the folder at `path`, usable as `dir_fd`; the root is the empty path. Errors name the path `requested`."""
        try:
            descriptor = _descend(self._within, f"{self._prefix}/{path}")
        except OSError as error:
            if error.errno not in _LINKED:
                raise
            descriptor = _descend(*self._resolve_link(path, requested))
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def open(self, path: str, flags: int) -> int:
        """A descriptor of the file at `path`."""
        with self.folder(path.rpartition("/")[0], path) as folder:
            return self.open_in(folder, path, flags)

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
        result = os.stat(os.path.basename(path), dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISLNK(result.st_mode):
            return result
        root, inside = self._resolve_link(path)
        below = _descend(root, os.path.dirname(inside))
        try:
            result = os.stat(os.path.basename(inside), dir_fd=below, follow_symlinks=False)
        finally:
            os.close(below)
        if stat.S_ISLNK(result.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return result

    def make(self, path: str, *, mode: int, sync: bool) -> None:
        """Create the folder at `path` and missing folders above it. `NotADirectoryError` if a file has one of these names."""
        make_folder(self._within, mode=mode, sync=sync)
        try:
            _make(self._within, f"{self._prefix}/{path}", mode=mode, sync=sync)
        except OSError as error:
            if error.errno not in _LINKED:
                raise
            _make(*self._resolve_link(path), mode=mode, sync=sync)

    def _resolve_link(self, path: str, requested: str = "") -> tuple[str, str]:
        """The real location of `path`: a folder that the user named, without links, and the path in it, which need not exist."""
        named = [os.path.realpath(place) for place in (self._within, *self.allowed)]
        root, target = (os.path.realpath(os.path.join(self.root, each)) for each in ("", path))
        above = next((place for place in named if _is_below(root, place)), None)
        if above is None:
            raise _refusal(self._within, root, requested or path)
        for inside, place in ((root, above), *((each, each) for each in named[1:])):
            if _is_below(target, inside):
                return place, target[len(place) :].lstrip("/")
        raise _refusal("the table", target, requested or path)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _refusal(place: str, target: str, path: str) -> PathError:
    return PathError(
        f"a symbolic link leads out of {place}, to {target}",
        path=path,
        hint="If this is intended, add the target to `allowed_roots`",
    )


def _segments(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment not in ("", ".")]


def _descend(root: str, path: str) -> int:
    # Links are followed in the root, which is the way to the first segment, and nowhere else.
    first, *others = _segments(path) or ("",)
    descriptor = _open_folder(f"{root}/{first}") if first else os.open(root, _FOLDER)
    for segment in others:
        try:
            below = _open_folder(segment, descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _open_folder(name: str, above: int | None = None) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
    except NotADirectoryError:
        # Linux says so of a link too, which may be one that leads to itself.
        if stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


def _make(root: str, path: str, *, mode: int, sync: bool) -> None:
    descriptor = os.open(root, _FOLDER)
    try:
        for segment in _segments(path):
            try:
                below = _open_folder(segment, descriptor)
            except FileNotFoundError:
                try:
                    os.mkdir(segment, mode, dir_fd=descriptor)
                except FileExistsError:
                    pass  # another process created it, or the name is taken: opening it shows which
                else:
                    if sync:
                        sync_folder(descriptor)
                below = _open_folder(segment, descriptor)
            descriptor, above = below, descriptor
            os.close(above)
    finally:
        os.close(descriptor)
