"""An open table: its store, its log and its files. This is where the Python API and the command line choose implementations."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from cdfd.delta.types.schema import TableSchema
from cdfd.errors import ConfigError, TableChangedError
from cdfd.log.log import DeltaLog
from cdfd.log.pace import Pace
from cdfd.log.stream import PlanStream
from cdfd.log.tailer import Tailer
from cdfd.log.watch import Backoff, DirectoryWatch, PollWatch, SharedTip, SharedWatch, Watch
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.plan.row_options import AS_STORED, RowOptions
from cdfd.runtime.clock import Clock, SystemClock
from cdfd.runtime.file_events import FileEvents
from cdfd.scan.table_files import TableFiles
from cdfd.storage.base import NamedTable
from cdfd.storage.home import check_home
from cdfd.storage.local import LocalStorage
from cdfd.storage.location import is_local, open_table

if TYPE_CHECKING:
    from cdfd.log.notifications import Notifications

Uri = str | os.PathLike[str]

POLL_SECONDS = 1.0
MAX_POLL_SECONDS = 5.0

_ANNOUNCING = frozenset({"s3", "gs", "gcs", "az", "abfs", "abfss"})
"""Schemes of stores that announce new objects."""


@dataclass(frozen=True, slots=True)
class Table:
    """A Delta table at a URI.

    Attributes:
        log: its transaction log.
        files: its data files.
    """

    log: DeltaLog
    files: TableFiles

    @classmethod
    def open(
        cls,
        uri: Uri,
        storage_options: Mapping[str, object] | None = None,
        allowed_roots: Sequence[Uri] = (),
        found_below: str | None = None,
        *,
        path_prefixes: Mapping[str, Uri] | None = None,
        max_log_line: int | None = None,
    ) -> Table:
        """The table at a path or URI. It accesses nothing yet.

        Args:
            uri: where it is.
            storage_options: of its store.
            allowed_roots: see `TableFiles`.
            found_below: the folder in which a search found it.
            path_prefixes: see `TableFiles`.
            max_log_line: see `DeltaLog`.

        Raises:
            ConfigError: the URI is malformed, is neither text nor a path, or names a schema.
            UnsupportedError: cdfd has no storage for the URI's scheme.
        """
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise ConfigError(f"storage_options is of type {type(storage_options).__name__}", hint="Give a mapping")
        roots = (allowed_roots,) if isinstance(allowed_roots, str | os.PathLike) else allowed_roots
        if not isinstance(roots, Iterable):
            raise ConfigError(f"allowed_roots is {roots!r:.100}", hint='Give paths or URIs, such as ["/data/lake"]')
        if max_log_line is not None and (not isinstance(max_log_line, int) or max_log_line < 1):
            raise ConfigError(f"max_log_line is {max_log_line!r:.100}", hint="Give a number of bytes, 1 at least")
        # An empty text, as of a variable that is not set, is no place.
        allowed = tuple(_absolute(_text(root, "a root of allowed_roots")) for root in roots if root != "")
        places_of: object = path_prefixes or {}
        if not isinstance(places_of, Mapping) or not all(isinstance(prefix, str) and prefix for prefix in places_of):
            raise ConfigError(
                f"path_prefixes is {path_prefixes!r:.100}",
                hint='Give a mapping such as {"dbfs:/mnt/lake": "s3://lake"}',
            )
        prefixes = tuple(
            (prefix, _absolute(_text(place, f"path_prefixes for {prefix!r:.100}")))
            for prefix, place in places_of.items()
        )
        places = (_text(uri), *allowed, *(place for _, place in prefixes))
        if storage_options and all(map(is_local, places)):
            name = next(iter(storage_options))
            raise ConfigError(
                f"a local table has no storage option {name!r:.100}", hint="Leave the storage options out"
            )
        storage = open_table(_text(uri), storage_options, allowed, found_below)
        if not hasattr(storage, "read"):
            # A catalog opens a schema as well, to list its tables.
            what = f"{storage.uri} names a schema, and no table"
            raise ConfigError(what, hint=f"Write {storage.uri}.TABLE, with the name of a table")
        open_root = cache(
            storage.open_root
            if isinstance(storage, NamedTable)
            else lambda root: open_table(root, storage_options, allowed)
        )
        return cls(DeltaLog(storage, max_log_line), TableFiles(storage, open_root, allowed, prefixes))

    @property
    def uri(self) -> str:
        """Where it is."""
        return self.log.storage.uri

    @property
    def local(self) -> bool:
        """Whether its log is in a local folder, which no catalog names."""
        return isinstance(self.log.storage, LocalStorage)

    def with_own_log(self) -> Table:
        """The same table with a log that has read nothing yet, and has no history to verify."""
        return replace(self, log=DeltaLog(self.log.storage, self.log.line_bytes))

    def stream(self, rows: RowOptions = AS_STORED, target: TableSchema | None = None) -> PlanStream:
        """Its plans, version by version, for rows with these options. `target` is as in `PlanStream`."""
        return PlanStream(self.log, rows, target)

    @contextmanager
    def tailer(
        self,
        clock: Clock | None = None,
        interval: float = POLL_SECONDS,
        max_interval: float = MAX_POLL_SECONDS,
        file_events: FileEvents | None = None,
        notifications: Notifications | None = None,
        *,
        replacements: bool = True,
        head_start: float = 0,
        pace: Pace | None = None,
        tip: SharedTip | None = None,
    ) -> Iterator[Tailer]:
        """A tailer of its log. File-system events wake it for a local table, and `notifications`, if given, for a table in a bucket.

        Args:
            clock: time.
            interval, max_interval: seconds from one poll to the next.
            file_events: shared between tables; None for its own.
            notifications: of the bucket.
            replacements, head_start: see `Tailer`.
            pace: see `Tailer`; for a remote store alone.
            tip: shared with other readers of the log; None if there are none.
        """
        time = clock or SystemClock()
        with closing(FileEvents()) if file_events is None else nullcontext(file_events) as shared:
            watch: Watch
            storage = self.log.storage
            if isinstance(storage, LocalStorage):
                watch = DirectoryWatch(os.path.join(storage.root, "_delta_log"), shared, time)
            elif notifications is not None and storage.uri.partition("://")[0] in _ANNOUNCING:
                watch = notifications.watch(storage.uri, max_interval)
            else:
                watch = PollWatch(time)
            own_pace = pace if storage.remote else None
            if tip is not None:
                watch = SharedWatch(tip, watch)
            if own_pace is not None:
                own_pace.join(*(tip, watch.follows) if isinstance(watch, SharedWatch) else ())
            tailer = Tailer(
                self.log,
                watch,
                time,
                Backoff(interval, max_interval),
                replacements=replacements,
                head_start=head_start,
                pace=own_pace,
            )
            try:
                yield tailer
            finally:
                watch.close()
                if own_pace is not None:
                    own_pace.leave()


def _text(uri: object, named: str = "the location of a table") -> str:
    text = os.fspath(uri) if isinstance(uri, os.PathLike) else uri
    if not isinstance(text, str):
        raise ConfigError(f"{named} is {text!r:.100}", hint="Give a path, or a URI as text")
    return text


def _absolute(place: str) -> str:
    """A URI, or a path that is absolute as those in a log are. `ConfigError` for one that begins with `~`."""
    check_home(place)
    return place if ":" in place else os.path.abspath(place)


async def versions(
    tailer: Tailer,
    stream: PlanStream,
    start: int,
    until: int | None,
    *,
    snapshot: Callable[[], Awaitable[Version]] | None = None,
) -> AsyncGenerator[Version, None]:
    """Plans from `start` on; with `snapshot`, first the live rows at `start`, which it gives, and then the later versions."""
    if snapshot is not None:
        yield await snapshot()
        start += 1
    async with aclosing(stream.versions(tailer, start, until)) as following:
        async for version in following:
            yield version


async def position_after(table: Table, version: int, last: Position | None) -> Position:
    """The position after a version, from which a reader can continue. If the log continues the known position, it keeps that table id.

    Raises:
        CdfdError: see `check_position`.
    """
    table_id = (await table.log.header_before(version + 1)).metadata.id
    if last is not None and last.table_id != table_id:
        with table.tailer() as tailer, suppress(TableChangedError):
            if await tailer.resume(last):
                table_id = last.table_id
    following = Position(table_id, version + 1, digest=await table.log.digest(version))
    with table.tailer() as tailer:
        await tailer.resume(following)
        await table.stream().begin(tailer, following.version)
        async with aclosing(tailer.entries(following.version, await table.log.latest_version())) as entries:
            await anext(entries, None)
    return following
