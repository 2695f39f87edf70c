"""The header of a version: protocol and metadata in force, which are needed to read it, without its files.

A reader that resumes needs only this, so it never touches the file rows of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from cdfd.delta import commit as commits
from cdfd.delta.actions import Metadata, Protocol
from cdfd.delta.commit import Commit
from cdfd.delta.protocol import check_readable
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import CdfdError, LogError, UnsupportedError

PROVIDERS = ("parquet", "trevni")
"""Formats of data files that cdfd reads, as `format.provider` names them."""


@dataclass(frozen=True, slots=True)
class Header:
    """Protocol and metadata in force after `version`, and the schema that the metadata declares, parsed once and not per commit."""

    version: int
    protocol: Protocol
    metadata: Metadata
    schema: TableSchema

    def apply(self, commit: Commit) -> Header:
        """The header after a commit. Costs nothing where the commit changes neither.

        Raises:
            UnsupportedError: the commit's protocol or schema requires a feature that cdfd does not implement.
            LogError: its schema is broken.
        """
        if commit.protocol is None and commit.metadata is None:
            return Header(commit.version, self.protocol, self.metadata, self.schema)
        try:
            return _header(commit.version, commit.protocol or self.protocol, commit.metadata or self.metadata)
        except CdfdError as error:
            raise error.within(version=commit.version) from None


def _header(version: int, protocol: Protocol, metadata: Metadata) -> Header:
    check_readable(protocol)
    if metadata.format.provider.lower() not in PROVIDERS:
        raise UnsupportedError(
            f"the data files are in the format {metadata.format.provider!r:.80}",
            hint="cdfd reads Parquet, which all current Delta writers write, and Trevni",
        )
    return Header(version, protocol, metadata, TableSchema.of(metadata))


def prepare_schema(metadata: Metadata | None) -> None:
    """Parse the schema of an action, so that the header has it at once. Call it in the thread that reads the action: it may take long."""
    if metadata is not None:
        with suppress(CdfdError):  # the header raises it
            TableSchema.of(metadata)


@dataclass(frozen=True, slots=True)
class PartialHeader:
    """A header on its way: gathered from the newest log entry backwards, the first of each kind wins. `sources` are the files they are in."""

    version: int
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    sources: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def complete(self) -> bool:
        """Whether nothing older can add to it."""
        return self.protocol is not None and self.metadata is not None

    def before(self, protocol: Protocol | None, metadata: Metadata | None, path: str = "") -> PartialHeader:
        """With what an older log entry or a checkpoint holds, the file at `path`."""
        if protocol is None and metadata is None:
            return self
        merged = replace(self, protocol=self.protocol or protocol, metadata=self.metadata or metadata)
        return merged if merged == self or not path else replace(merged, sources=self.sources | {path})

    def finish(self) -> Header:
        """The header.

        Raises:
            LogError: the log has no protocol or no metadata.
            UnsupportedError: the protocol or the schema requires a feature that cdfd does not implement.
        """
        if self.protocol is None or self.metadata is None:
            what = f"the log has no {'protocol' if self.protocol is None else 'metaData'} action"
            raise LogError(what, version=self.version, hint="Its first versions are damaged")
        try:
            return _header(self.version, self.protocol, self.metadata)
        except CdfdError as error:
            path = next(iter(self.sources)) if len(self.sources) == 1 else None
            raise error.within(version=self.version, path=path) from None


def scan(version: int, data: bytes | Iterable[bytes], *, line_bytes: int | None = None) -> PartialHeader:
    """Protocol and metadata of one log entry, without parsing its other lines; `line_bytes` as for `commit.parse`.

    Raises:
        LogError: as `commit.parse`, for the lines that are parsed.
    """
    if isinstance(data, bytes) and not any(word in data for word in _WORDS):
        return PartialHeader(version)
    wanted = (line if any(word in line for word in _WORDS) else b"" for line in commits.lines(data, line_bytes))
    commit = commits.parse(version, (line + b"\n" for line in wanted), line_bytes=line_bytes)
    prepare_schema(commit.metadata)
    return PartialHeader(version, commit.protocol, commit.metadata)


_WORDS = (b'"metaData"', b'"protocol"', b"\\u")
"""One of them is in every line that matters: JSON can spell a name with escapes. Other lines that have one are parsed, and add nothing."""
