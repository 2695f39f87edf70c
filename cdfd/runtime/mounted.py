"""Files that are read again when they change: mounted secrets, certificates and keys.

Kubernetes replaces a mounted secret by a symbolic link to another folder, and editors by a rename. Both give the path another inode, so the
state of a file is compared through its links. A check costs one `stat`, and no thread or inotify watch.
"""

import logging
import os
from collections.abc import Callable, Iterable
from typing import TypeAlias

_MAX_BYTES = 1 << 20

logger = logging.getLogger("cdfd.config")

FileState: TypeAlias = "tuple[int, int, int, int] | None"
"""Device, inode, size and time of modification of a file; None if it is not there."""


def state_of(path: str) -> FileState:
    """The state of a file, links followed."""
    try:
        stat = os.stat(path)
    except (OSError, ValueError):  # ValueError: a name that no file has, such as one with a null character
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def states_of(paths: Iterable[str | None]) -> tuple[FileState, ...]:
    """The states of several files; a missing path counts as a file that is not there."""
    return tuple(None if path is None else state_of(path) for path in paths)


def read_secret(path: str) -> str:
    """The text of a mounted secret, without the final line end, which editors and `echo` add.

    Raises:
        ValueError: the file cannot be read, or has no usable text. The error never has the text.
    """
    try:
        with open(path, "rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise ValueError(f"cannot read the file: {error.strerror}") from None
    except ValueError:  # of the name or of the content
        raise ValueError("cannot read the file: its name or content is not UTF-8 text") from None
    if not text.strip():
        raise ValueError("the file is empty")
    if len(data) > _MAX_BYTES:
        raise ValueError(f"the file is larger than {_MAX_BYTES} bytes")
    return text.removesuffix("\n").removesuffix("\r")


class MountedText:
    """The text of a mounted file, as it is now. Thread-safe.

    A file that is gone, empty or unreadable does not change the text: a writer may be about to replace it. The log has one warning then.

    Args:
        path: of the file.
        read_file: reads it.

    Raises:
        ValueError: as `read_file` says.
    """

    __slots__ = ("_known", "_read_file", "path")

    def __init__(self, path: str, read_file: Callable[[str], str] = read_secret) -> None:
        self.path = path
        self._read_file = read_file
        state = state_of(path)  # before the content: a change in between is seen at the next call
        self._known = (state, read_file(path))

    def read(self) -> str:
        """The text. Reads the file only if it has changed."""
        before, text = self._known
        state = state_of(self.path)
        if state == before:
            return text
        try:
            text = self._read_file(self.path)
        except ValueError as error:
            logger.warning("%s: %s; its earlier text stays in use", self.path, error)
        else:
            logger.info("%s has changed and is read again", self.path)
        self._known = (state, text)
        return text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MountedText) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)
