"""The files of a table's log: listing them, and finding those that give the state at a version.

A tailing reader does not list. Listings happen at startup, and to find the cause of a problem.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence

from cdfd.delta import last_checkpoint, paths, protocol
from cdfd.delta.header import Header
from cdfd.errors import GapError, LogError, NotATableError, NotFoundError, StorageError, Within
from cdfd.escaping import one_line
from cdfd.log.segment import Segment, SegmentBuilder
from cdfd.storage.base import NamedTable, Stat, Storage
from cdfd.storage.local import LocalStorage

logger = logging.getLogger("cdfd.tail")

LogFile = tuple[paths.LogName, Stat]

FIRST_NAMES = 400
"""Files of a remote log that are listed beside `_last_checkpoint`, at most. With their checksums they fit in a page of S3's listing."""


class LogFiles:
    """The files of the log of the table whose root is `storage`."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.damaged: set[Stat] = set()
        """Files of checkpoints that cannot be read. Segments leave them out."""
        self._newest = -1
        """The newest version that a listing showed."""

    @property
    def by_catalog(self) -> bool:
        """Whether the entries are commits that a catalog has ratified."""
        return isinstance(self.storage, NamedTable) and self.storage.ratified

    def check_managed(self, header: Header) -> None:
        """Check that the entries are those of the table; see `protocol.check_managed`. Raises what that does."""
        with self._errors_naming(header.version):
            protocol.check_managed(header.protocol, header.metadata, by_catalog=self.by_catalog)

    def _errors_naming(self, version: int | None = None, path: str | None = None) -> Within:
        """Add the table, version and file to errors that do not name them yet."""
        return Within(self.storage.uri, version, path)

    async def stat(self, version: int) -> Stat:
        """The stat of a version's log file. NotFoundError if there is none."""
        path = log_path(paths.commit_name(version))
        with self._errors_naming(version, path):
            return await self.storage.stat(path)

    async def has_successor(self, version: int) -> bool:
        """Whether the next version exists. Its writer read this entry first, so this entry is complete."""
        try:
            await self.stat(version + 1)
        except NotFoundError:
            return False
        return True

    async def list_names(self, start_after: str = "") -> AsyncGenerator[LogFile, None]:
        """The log's files whose name is greater than `start_after`, ascending. Files that do not belong to a log are left out.

        Close the generator if you stop before its end (`aclosing`).
        """
        after = log_path(start_after) if start_after else ""
        with self._errors_naming():
            async with contextlib.aclosing(self.storage.list(log_path(""), after)) as files:
                async for stat in files:
                    name = paths.parse_name(stat.path.rpartition("/")[2])
                    if name is not None:
                        yield name, stat

    async def segment(self, version: int | None = None, *, state_only: bool = False) -> Segment:
        """The files that give the state at `version` (None: the newest).

        With `state_only`, the newest version may be that of a checkpoint whose commit is lost: its state is available, its changes are not.

        Raises:
            NotATableError: there is no log.
            LogError, GapError: see `SegmentBuilder.finish`; or the newest commit is older than the newest checkpoint.
        """
        async with contextlib.aclosing(self.list_names()) as names:
            hint, first = await self._hint_and_names(names)
            if hint is not None and (version is None or hint <= version):
                builder = await self._fold_from(hint, version, first)
                if builder.checkpoint is not None and (state_only or version is not None or builder.has_newest_commit):
                    with self._errors_naming(version):
                        return builder.finish()
                if builder.checkpoint is None:
                    logger.warning(
                        "_last_checkpoint names a missing or incomplete checkpoint; listing the whole log",
                        extra={"table": self.storage.uri, "version": hint},
                    )
            builder = await self._fold(version, _chain(first, names))
        if builder.latest is None and builder.checkpoint is None:
            raise self._not_a_table("it has no log")
        if version is None and not state_only and not builder.has_newest_commit:
            assert builder.checkpoint is not None
            newest = builder.checkpoint.version
            try:
                await self.stat(newest)  # a listing may miss files that are created meanwhile
            except NotFoundError:
                state_of_log = (
                    "it has no commit" if builder.latest is None else f"its newest commit is version {builder.latest}"
                )
                raise GapError(
                    f"the log has a checkpoint of version {newest}, but {state_of_log}: the changes up to version {newest} cannot be read",
                    table=self.storage.uri,
                    version=newest,
                    hint="Restore the missing log entries. `cdfd.snapshot` can still read the rows of the checkpoint",
                ) from None
        with self._errors_naming(version):
            return builder.finish()

    async def _hint_and_names(self, names: AsyncIterator[LogFile]) -> tuple[int | None, list[LogFile]]:
        """`hint`, and in a remote store the first of `names`, which are listed meanwhile: that saves a round trip if the log is short."""
        if not self.storage.remote:
            return await self.hint(), []
        listing = asyncio.create_task(_first_of(names))
        try:
            return await self.hint(), await listing
        finally:
            listing.cancel()
            await asyncio.gather(listing, return_exceptions=True)

    async def _fold_from(self, hint: int, version: int | None, first: Sequence[LogFile]) -> SegmentBuilder:
        """The files from the checkpoint of `_last_checkpoint` on. If `first`, the first ones of the log, are all, it is not listed."""
        if 0 < len(first) < FIRST_NAMES:
            builder = await self._fold(version, _chain([each for each in first if each[0].version >= hint]))
            if builder.checkpoint is not None:
                return builder
            # The checkpoint may have been written after the listing.
        return await self._fold(version, self.list_names(name_before(hint)))

    async def _fold(self, version: int | None, names: AsyncGenerator[LogFile, None]) -> SegmentBuilder:
        builder = SegmentBuilder(version, self.damaged)
        async with contextlib.aclosing(names):
            async for name, stat in names:
                builder.take(name, stat)
                if name.kind == "commit":
                    self._newest = max(self._newest, name.version)
                if version is not None and name.kind == "commit" and name.version > version:
                    break
        if version is None:
            builder.leave_unfinished()
        return builder

    async def hint(self) -> int | None:
        """The version in `_last_checkpoint`. The file only saves a listing, so an unusable one is ignored with a warning.

        Raises:
            StorageError: a transient error, or a remote store refuses access.
        """
        path = log_path(paths.LAST_CHECKPOINT)
        try:
            with self._errors_naming(None, path):
                return last_checkpoint.parse(await self.storage.read(path, 0, last_checkpoint.MOST_BYTES + 1)).version
        except NotFoundError:
            return None
        except (LogError, StorageError) as error:
            # In a local folder, a device or a link may have that name. In a remote store, the error is about the store and not the file.
            if error.retriable or (self.storage.remote and isinstance(error, StorageError)):
                raise
            logger.warning(
                "_last_checkpoint cannot be used, listing the log instead: %s",
                one_line(error.what),  # without cdfd's log handlers, Python writes messages unescaped
                extra={"table": self.storage.uri},
            )
            return None

    async def newest_checkpoint(self, version: int) -> int:
        """Version of the newest checkpoint: that of `_last_checkpoint` unless it is after `version`, else `listed_checkpoint`."""
        hint = await self.hint()
        return hint if hint is not None and hint <= version else await self.listed_checkpoint(version)

    async def listed_checkpoint(self, version: int) -> int:
        """Version of the newest checkpoint from a listing that begins at `version`. -1 if it has none."""
        names = self.list_names(name_before(version))
        return max([name.version async for name, _ in names if name.is_checkpoint], default=-1)

    async def latest_version(self) -> int:
        """The newest version."""
        return (await self.segment()).version

    async def earliest_version(self) -> int:
        """The oldest version whose log entry still exists. NotATableError if there is none."""
        why = "it has no log"
        async with contextlib.aclosing(self.list_names()) as names:
            async for name, _ in names:
                if name.kind == "commit":
                    return name.version
                why = "its log has no entry"
        raise self._not_a_table(why)

    def _not_a_table(self, why: str) -> NotATableError:
        if isinstance(self.storage, LocalStorage) and not os.path.lexists(self.storage.root):
            return NotATableError("not a Delta table: the path does not exist", table=self.storage.uri)
        hint = f"Expected files such as {log_path(paths.commit_name(0))}"
        return NotATableError(f"not a Delta table: {why}", table=self.storage.uri, hint=hint)


async def _first_of(names: AsyncIterator[LogFile]) -> list[LogFile]:
    """The first `FIRST_NAMES` names; those after them are left in the iterator."""
    files = list[LogFile]()
    async for each in names:
        files.append(each)
        if len(files) == FIRST_NAMES:
            break
    return files


async def _chain(
    first: Iterable[LogFile], names: AsyncIterator[LogFile] | None = None
) -> AsyncGenerator[LogFile, None]:
    for each in first:
        yield each
    if names is not None:
        async for each in names:
            yield each


def log_path(name: str) -> str:
    """Path of a file of the log, relative to the table."""
    return f"{paths.LOG}/{name}"


def name_before(version: int) -> str:
    """A name that sorts before every file of `version` and after every one of the version before."""
    return f"{version:020d}"
