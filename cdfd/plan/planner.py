"""One commit -> the file scans that give its row-level changes. Pure: a plan says which rows to read, and not how.

Source: specification, "Change Data Files" and "Add CDC File", and the behaviour of deployed writers. In order:

1. Any `cdc` action: the change data files and nothing else.
2. Else adds are inserts and removes are deletes, each without the rows that its own deletion vector hides.
3. The same path in both: only the difference of the vectors, because the data file itself is the same.

       removed with {0, 1}, added with {1, 2}:  row 2 is a delete, row 0 (a RESTORE) an insert
4. `dataChange=false`: nothing, because rows were only moved.
5. A MERGE whose metrics count no changed row: nothing, because it rewrote rows without changing them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from cdfd.delta.actions import Add, Remove
from cdfd.delta.commit import Commit
from cdfd.delta.files import PackedFiles
from cdfd.delta.header import Header
from cdfd.delta.protocol import cdf_enabled, has_deletion_vectors
from cdfd.delta.snapshot import Snapshot
from cdfd.delta.statistics import record_count
from cdfd.delta.types.schema import TableSchema
from cdfd.delta.types.schema_change import with_returning
from cdfd.errors import LogError, UnsupportedError
from cdfd.model.file_scan import FileScan, ImagePhase
from cdfd.model.plan import ChangePlan, Changes, LiveScans, Origin, insert_scan

F = TypeVar("F", Add, Remove)


def needs_snapshot(commit: Commit, previous: Header, changes: Changes = "auto") -> bool:
    """Whether planning `commit` needs the table's files as of the version before, whose header is `previous`.

    It does if the commit removes a file without its partition values. They are not needed if the commit adds the file again (with another
    deletion vector), because the add has them, nor if the remove changes no data.
    """
    if not previous.metadata.partition_columns:
        return False
    return any(not remove.partition_values for remove in _removes(commit, changes))


def wants_snapshot(commit: Commit, previous: Header, changes: Changes = "auto") -> bool:
    """Whether it matters for the rows of `commit` which deletion vectors the files have that it removes.

    Some deployed writers remove a file with another deletion vector than it has, and mean the file.
    """
    return has_deletion_vectors(previous.protocol) and any(_removes(commit, changes))


def _removes(commit: Commit, changes: Changes) -> Iterator[Remove]:
    """The removes of files whose rows a commit deletes."""
    if commit.removes and (not commit.cdcs or changes == "files") and not _changed_nothing(commit):
        added = {add.path for add in commit.adds if add.data_change}
        yield from (remove for remove in commit.removes if remove.data_change and remove.path not in added)


def plan(
    commit: Commit,
    header: Header,
    timestamp_ms: int,
    *,
    changes: Changes = "auto",
    previous: Header | None = None,
    before: Snapshot | None = None,
    meant: Sequence[Remove] | None = None,
) -> ChangePlan:
    """The plan of the changes of `commit`.

    Args:
        commit: the version's actions.
        header: protocol and metadata in force *after* the commit.
        timestamp_ms: the version's timestamp; see `commit_timestamp`.
        changes: `auto` uses change data files where a commit has some; `cdf` refuses tables that do not record them; `files` ignores them.
        previous: the header before the commit. Rows that a version deletes while it replaces the schema are read in the old schema.
        before: state of the version before; required if `needs_snapshot`.
        meant: the result of `before.meant` for its removes, if it is known.

    Raises:
        UnsupportedError: `cdf` and the table does not record changes, or a schema that cannot be read.
        LogError: partition values of a removed file are unknown, or there are files and no columns.
    """
    if changes == "cdf" and not cdf_enabled(header.metadata):
        raise UnsupportedError(
            "the table does not record a change data feed",
            version=commit.version,
            hint="Set delta.enableChangeDataFeed=true on it, or use `changes: auto` to derive changes from its files",
        )
    scans: Sequence[FileScan] = ()
    origin: Origin = "files"
    if commit.cdcs and changes != "files":
        scans = in_phases(_order(FileScan(cdc.path, None, cdc.partition_values, cdc.size) for cdc in commit.cdcs))
        origin = "cdc"
    elif not _changed_nothing(commit):
        if isinstance(commit.adds, PackedFiles) and not any(remove.data_change for remove in commit.removes):
            added = commit.adds.changing()
            scans = LiveScans(added.by_path()) if added.distinct() else ()
        if meant is None:
            meant = () if before is None else before.meant(commit.removes)
        scans = scans or _order(_from_files(commit, header, previous or header, before, meant))
    _check_columns(header.schema, scans)
    cross_partition: Sequence[FileScan] = ()
    if origin == "cdc" and any(scan.partition_values != scans[0].partition_values for scan in scans):
        cross_partition = tuple(scan for scan in scans if scan.image_phase == "early")
    return ChangePlan(commit.version, timestamp_ms, header.schema, scans, origin if scans else "none", cross_partition)


def in_phases(scans: Sequence[FileScan]) -> Sequence[FileScan]:
    """The scans of change data files. Those of several files are in two phases."""
    if len(scans) < 2:
        return scans
    # The post-image of an update, or the row that replaces a deleted one, may be in an earlier file than the row before the change.
    phases: tuple[ImagePhase, ...] = ("early", "late")
    return tuple(replace(scan, image_phase=phase) for phase in phases for scan in scans)


def plan_snapshot(snapshot: Snapshot, timestamp_ms: int) -> ChangePlan:
    """The live rows of a version as inserts. The `dataChange` flags of its files do not matter."""
    scans = LiveScans(snapshot.live().by_path())
    _check_columns(snapshot.header.schema, scans)
    return ChangePlan(snapshot.version, timestamp_ms, snapshot.header.schema, scans, "snapshot")


def _check_columns(schema: TableSchema, scans: Sequence[FileScan]) -> None:
    if scans and not schema.names:
        raise LogError(
            "the table has data files, but no columns",
            hint="metaData.schemaString is missing: restore the log entry with the schema from a copy of the table",
        )


def plan_listed_snapshot(snapshot: Snapshot, timestamp_ms: int) -> ChangePlan:
    """The same without its scans, for readers that list them elsewhere."""
    return ChangePlan(snapshot.version, timestamp_ms, snapshot.header.schema, (), "snapshot")


def _from_files(
    commit: Commit, header: Header, previous: Header, before: Snapshot | None, meant: Sequence[Remove]
) -> Iterator[FileScan]:
    removed = _by_path(remove for remove in commit.removes if remove.data_change)
    removed |= _by_path(remove for remove in meant if remove.data_change)
    for add in _by_path(add for add in commit.adds if add.data_change).values():
        remove = removed.pop(add.path, None)
        if remove is None:
            yield insert_scan(add)
        elif remove.key != add.key:
            # The same data file with another deletion vector: newly hidden rows were deleted, rows that are no longer hidden were restored.
            new, old = add.deletion_vector, remove.deletion_vector
            file = FileScan(add.path, None, add.partition_values, add.size, num_records=record_count(add.stats))
            if new is not None:
                yield replace(file, change_type="delete", only=new, without=old)
            if old is not None:
                yield replace(file, change_type="insert", only=old, without=new)
    schema = None if previous.schema == header.schema else with_returning(previous.schema, header.schema)
    partitioned = bool(previous.metadata.partition_columns)
    unknown = [remove.key for remove in removed.values() if partitioned and not remove.partition_values]
    live = before.find(unknown) if unknown and before is not None else {}
    for remove in removed.values():
        values = remove.partition_values or {}
        if partitioned and not values:
            if remove.key not in live:
                raise LogError(
                    "a remove without partition values, of a file that is not in the table's state",
                    path=remove.path,
                    hint="The partition of the deleted rows is unknown: start again from a snapshot",
                )
            values = live[remove.key].partition_values
        yield FileScan(remove.path, "delete", values, remove.size or 0, without=remove.deletion_vector, schema=schema)


def _by_path(actions: Iterable[F]) -> dict[str, F]:
    files: dict[str, F] = {}
    for action in actions:
        if files.setdefault(action.path, action) is not action:
            raise LogError("two actions of one kind for one data file in one version", path=action.path)
    return files


def _changed_nothing(commit: Commit) -> bool:
    """Whether this is a MERGE whose metrics count no row inserted, updated or deleted. A missing count is not zero."""
    if commit.info is None or commit.info.operation != "MERGE":
        return False
    metrics = commit.info.operation_metrics
    for names in _MERGE_COUNTS:
        count = next((metrics[name] for name in names if name in metrics), "")
        # The specification allows any text. No count has more digits than a long.
        if not re.fullmatch("[0-9]{1,19}", count) or int(count):
            return False
    return True


_MERGE_COUNTS = (
    ("numTargetRowsInserted", "num_target_rows_inserted"),
    ("numTargetRowsUpdated", "num_target_rows_updated"),
    ("numTargetRowsDeleted", "num_target_rows_deleted"),
)


_ORDER = {None: 0, "delete": 1, "insert": 2}


def _order(scans: Iterable[FileScan]) -> tuple[FileScan, ...]:
    """Deletes, then inserts, each by path; rows of a file stay in the order of the file.

    With an order by path alone, an updated row that moved to another file could be inserted before it is deleted. Consumers that keep the
    last change of each key would lose it.
    """
    return tuple(sorted(scans, key=lambda scan: (_ORDER[scan.change_type], scan.path)))
