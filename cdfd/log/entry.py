"""An entry of a log as it was read, and the hash of its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from cdfd.delta.commit import Commit, Reader, lines
from cdfd.delta.header import Header
from cdfd.delta.snapshot import COMPACT_AT, Snapshot
from cdfd.storage.base import Stat

T = TypeVar("T")

EMPTY_DIGEST = hashlib.blake2b(digest_size=16).hexdigest()
"""The hash of an entry without bytes."""


INLINE_ACTIONS = 2000
"""File actions of a commit from which work on it is done in a thread: it takes some 20 microseconds for each of them."""


def is_large(commit: Commit, state: Snapshot | None = None) -> bool:
    """Whether work on a commit, and on the state before it, takes so long that a thread should do it, while other tables go on."""
    actions = len(commit.adds) + len(commit.removes) + len(commit.cdcs)
    # A state may be compacted, and a large one needs an index before files are found in it.
    entries = 0 if state is None else len(state.base.adds) + len(state.overlay) + 2 * actions
    return actions >= INLINE_ACTIONS or entries >= COMPACT_AT


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A commit, the stat of its log file, and the hash of the file's bytes (`parse_and_digest`)."""

    commit: Commit
    stat: Stat
    digest: str


@dataclass(frozen=True, slots=True)
class EntryFingerprint:
    """A log entry as it was read.

    Attributes:
        version: of the table.
        stat: of its file.
        digest: of its bytes; see `parse_and_digest`.
        file: path of a file that it adds or removes. None if there is none, or if the entry was not parsed.
        applied: whether its actions were applied. The entry must not grow after that.
    """

    version: int
    stat: Stat
    digest: str
    file: str | None = None
    applied: bool = False

    @classmethod
    def of(cls, entry: LogEntry) -> EntryFingerprint:
        """The fingerprint of an entry whose actions are applied."""
        named = entry.commit.adds or entry.commit.removes
        return cls(entry.commit.version, entry.stat, entry.digest, named[0].path if named else None, applied=True)


def parse_and_digest(parse: Callable[[bytes | Iterable[bytes]], T], data: bytes | Iterable[bytes]) -> tuple[T, str]:
    """The result of `parse` for the bytes of an entry, whole or in chunks, and their BLAKE2b hash: 16 bytes, as hexadecimal digits."""
    if isinstance(data, bytes):
        return parse(data), hashlib.blake2b(data, digest_size=16).hexdigest()
    digest = hashlib.blake2b(digest_size=16)

    def hash_each() -> Iterator[bytes]:
        for chunk in data:
            digest.update(chunk)
            yield chunk

    return parse(hash_each()), digest.hexdigest()


def entry_size(data: bytes | Iterable[bytes], line_bytes: int | None = None) -> int:
    """The number of bytes: a `parse` for `parse_and_digest`. It fails where `commit.parse` would, because a sparse file may have any size.

    Raises:
        LogError: a line is too long; `line_bytes` as for `commit.parse`.
    """
    reader = Reader(0, with_stats=False)
    for _ in lines(reader.count_bytes(data), line_bytes) if not isinstance(data, bytes) else ():
        pass
    return len(data) if isinstance(data, bytes) else reader.size


@dataclass(frozen=True, slots=True)
class KeptState:
    """The state of a table at a version.

    Attributes:
        entry: the fingerprint of the version's log entry.
        header: protocol and metadata.
        snapshot: the files; None if they are not kept.
    """

    entry: EntryFingerprint
    header: Header
    snapshot: Snapshot | None = None
