"""A log entry, `n.json`: its bytes to a `Commit` and back.

Source: specification, "Delta Log Entries" and "Actions". One action per line; unknown actions and unknown fields are ignored, empty lines
too. Bytes may come in chunks: what is held is one chunk, the actions that matter, and, of a large commit, its file actions packed in Arrow
columns rather than as objects (`cdfd.delta.files`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from cdfd.delta import action_fields
from cdfd.delta.action_fields import Json
from cdfd.delta.actions import (
    Add,
    Cdc,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Sidecar,
    Txn,
)
from cdfd.delta.files import ALL_FIELDS, COMMITTED, FileList
from cdfd.errors import CdfdError, LogError


@dataclass(frozen=True, slots=True)
class Commit:
    """The actions of one version, in log order within each kind.

    Attributes:
        version: from the file's name.
        adds, removes, cdcs: file actions; tuples, or packed sequences where there are many.
        domains: latest entry per domain.
        sidecars: only in a checkpoint that is written as JSON.
        size: bytes of the log entry.
    """

    version: int
    adds: Sequence[Add] = ()
    removes: Sequence[Remove] = ()
    cdcs: Sequence[Cdc] = ()
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    txns: tuple[Txn, ...] = ()
    domains: tuple[DomainMetadata, ...] = ()
    info: CommitInfo | None = None
    sidecars: tuple[Sidecar, ...] = ()
    size: int = 0

    @property
    def in_commit_timestamp(self) -> int | None:
        """When it was committed, in ms since the Unix epoch, as it says itself; None if it does not."""
        return None if self.info is None else self.info.in_commit_timestamp

    @property
    def only_txns(self) -> tuple[str, ...]:
        """The appIds of a version that holds nothing but transaction identifiers (and `commitInfo`); none of any other."""
        others = (self.adds, self.removes, self.cdcs, self.domains, self.sidecars, self.metadata, self.protocol)
        return () if any(others) else tuple(txn.app_id for txn in self.txns)


def parse(
    version: int, data: bytes | Iterable[bytes], *, with_stats: bool = False, line_bytes: int | None = None
) -> Commit:
    """Parse a log entry.

    Args:
        version: the version that the file's name says.
        data: the whole entry, or its bytes in chunks of any size.
        with_stats: keep all of `add.stats`, which is most of an entry's bytes, and the notes of the file's writer. Otherwise only the
            row count is kept, which is all that deriving changes needs.
        line_bytes: of a line of an action that is not ignored, at most; None: `LINE_BYTES`.

    Raises:
        LogError: a line that is too long or no JSON object, an action whose required fields are missing or of the wrong type, or two
            actions that contradict each other.
    """
    reader = Reader(version, with_stats)
    for number, line in enumerate(lines(reader.count_bytes(data), line_bytes), 1):
        reader.take(number, line)
    return reader.commit()


def serialize(actions: Iterable[tuple[str, Json]]) -> bytes:
    """A log entry of (action name, fields), one line each."""
    return b"".join(orjson.dumps({name: dict(fields)}) + b"\n" for name, fields in actions)


def lines(data: bytes | Iterable[bytes], line_bytes: int | None = None) -> Iterator[bytes]:
    """The lines of an entry that comes whole or in chunks. An action that is ignored has any length: it is an empty line if it is too long.

    Raises:
        LogError: a line of more than `line_bytes` (None: `LINE_BYTES`).
    """
    most = LINE_BYTES if line_bytes is None else line_bytes
    if isinstance(data, bytes) and len(data) <= _PIECE:
        yield from data.split(b"\n")
        return
    pending: list[bytes] = []
    number, pending_bytes, skipped = 1, 0, False
    chunks = (data,) if isinstance(data, bytes) else data
    # Little at a time: every byte of a chunk may be a line break, and every line an object.
    for piece in (chunk[start : start + _PIECE] for chunk in chunks for start in range(0, len(chunk), _PIECE)):
        first, *ending = piece.split(b"\n")
        if not skipped:
            pending.append(first)
            pending_bytes += len(first)
        if pending_bytes > most:
            action = _ACTION.match(pending[0])
            if action is None or action[1].decode() in Reader(0, with_stats=False).takers:
                what = f"line {number} is longer than {most >> 20} MiB" if most >> 20 else f"line {number} is too long"
                raise LogError(what, hint=LONG)
            pending, pending_bytes, skipped = [], 0, True
        if ending:
            yield b"".join(pending)
            yield from ending[:-1]
            number += len(ending)
            pending, pending_bytes, skipped = [ending[-1]], len(ending[-1]), False
    yield b"".join(pending)


class Reader:
    """Collects the actions of one entry and refuses contradictions (specification, "Requirements for Writers")."""

    def __init__(self, version: int, with_stats: bool) -> None:
        self.version = version
        self.with_stats = with_stats
        self.size = 0
        schema = ALL_FIELDS if with_stats else COMMITTED
        self.adds: FileList[Add] = FileList(Add, schema)
        self.removes: FileList[Remove] = FileList(Remove, schema)
        self.cdcs: FileList[Cdc] = FileList(Cdc)
        self.single: dict[str, Any] = {}
        self.txns: dict[str, Txn] = {}
        self.domains: dict[str, DomainMetadata] = {}
        self.sidecars: list[Sidecar] = []
        self.takers: Mapping[str, Callable[[Json], None]] = {
            "add": lambda fields: self.adds.append(action_fields.add(fields, self.with_stats)),
            "remove": lambda fields: self.removes.append(action_fields.remove(fields, self.with_stats)),
            "cdc": lambda fields: self.cdcs.append(action_fields.cdc(fields)),
            "metaData": lambda fields: self._once(self.single, "metaData", action_fields.metadata(fields)),
            "protocol": lambda fields: self._once(self.single, "protocol", action_fields.protocol(fields)),
            # Free form by specification, so nothing about it is an error; the first one counts, as for in-commit timestamps.
            "commitInfo": lambda fields: self.single.setdefault("commitInfo", action_fields.commit_info(fields)),
            "txn": lambda fields: self._once(self.txns, (txn := action_fields.txn(fields)).app_id, txn),
            "sidecar": lambda fields: self.sidecars.append(action_fields.sidecar(fields)),
            "domainMetadata": lambda fields: self._once(
                self.domains, (domain := action_fields.domain_metadata(fields)).domain, domain
            ),
        }

    def count_bytes(self, data: bytes | Iterable[bytes]) -> bytes | Iterable[bytes]:
        """The bytes of the entry, whose number becomes the size of the commit."""
        if isinstance(data, bytes):
            self.size = len(data)
            return data
        return self._count(data)

    def _count(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.size += len(chunk)
            yield chunk

    def take(self, number: int, line: bytes) -> None:
        """One line, whose number in the entry is `number`."""
        if not line or line.isspace():
            return
        try:
            action = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise LogError(f"line {number} is not valid JSON: {error}", version=self.version, hint=TORN) from None
        if not isinstance(action, dict):
            raise LogError(f"line {number} is not a JSON object", version=self.version, hint=TORN)
        for name, fields in action.items():
            taker = self.takers.get(name)
            if taker is None or fields is None:
                continue
            if not isinstance(fields, dict):
                raise LogError(f"line {number}: {name} is not an object", version=self.version)
            try:
                taker(fields)
            except CdfdError as error:
                error.what = f"line {number}: {error.what}"
                raise error.within(version=self.version) from None

    def commit(self) -> Commit:
        """All actions taken."""
        try:
            adds, removes, cdcs = self.adds.freeze(), self.removes.freeze(), self.cdcs.freeze()
        except CdfdError as error:
            raise error.within(version=self.version) from None
        return Commit(
            version=self.version,
            adds=adds,
            removes=removes,
            cdcs=cdcs,
            metadata=self.single.get("metaData"),
            protocol=self.single.get("protocol"),
            txns=tuple(self.txns.values()),
            domains=tuple(self.domains.values()),
            info=self.single.get("commitInfo"),
            sidecars=tuple(self.sidecars),
            size=self.size,
        )

    def _once(self, actions: dict[str, Any], key: str, action: Any) -> None:
        """An action that there can be one of: one in all, or one for each application or domain."""
        if actions.setdefault(key, action) != action:
            what = {Txn: "txn actions for appId", DomainMetadata: "domainMetadata actions for"}.get(type(action))
            raise LogError(
                f"a second {key} action in one version contradicts the first"
                if what is None
                else f"two {what} {key!r} in one version"
            )


LINE_BYTES = 128 << 20
"""Bytes of a line, at most: it is held in memory. A schema of 50,000 mapped columns is 11 MB, and predicates in `commitInfo` have 21 MB."""
_PIECE = 1 << 20
_ACTION = re.compile(rb'\s*\{\s*"(\w+)"\s*:')

LONG = "If a writer made it, set `max_log_line` to a larger size, which is held in memory; a damaged file may also look like this"

TORN = "Log entries are immutable, so the entry was damaged after it was written: restore it from a copy of the table"
