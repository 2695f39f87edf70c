"""A table's state at a version, and how the next commit changes it.

Source: specification, "Action Reconciliation". The live files are a base (a checkpoint's, in Arrow columns) and an overlay: a persistent map
of what later commits added and removed. `apply` touches the overlay only, so it costs the commit, whatever the table's size, and the
snapshot before stays what it was. `compact` folds the overlay into a new base; callers that apply many commits decide when.

    base     = { (a, -), (b, dv1) }
    overlay  = { (b, dv1): remove, (b, dv2): add, (c, -): add }
    live     = { (a, -), (b, dv2), (c, -) }
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from rpds import HashTrieMap

from cdfd.delta.actions import Add, DomainMetadata, FileKey, Metadata, Protocol, Remove, Txn
from cdfd.delta.commit import Commit
from cdfd.delta.files import ALL_FIELDS, FILES, TEXT, PackedFiles, pack
from cdfd.delta.header import Header, PartialHeader
from cdfd.delta.protocol import has_deletion_vectors
from cdfd.delta.retention import deleted_files_ms
from cdfd.errors import LogError
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of, to_numpy

EMPTY = pa.Table.from_batches([], FILES)
"""No files."""

COMPACT_AT = 65_536
"""Entries in the overlay from which `replay` folds it into the base, for the memory that Python objects take."""


FILES_PER_SEARCH = 1000
"""Files that a pass over all of them compares in the time of one search."""


class Base:
    """Live files and tombstones as of a checkpoint, immutable. The index for `find` is built on first use and kept."""

    __slots__ = ("_order", "adds", "tombstones")

    def __init__(self, adds: pa.Table = EMPTY, tombstones: pa.Table = EMPTY) -> None:
        self.adds = adds
        self.tombstones = tombstones
        self._order: tuple[pa.Array, np.ndarray[Any, Any]] | None = None

    def find(self, paths: Collection[str]) -> PackedFiles[Add]:
        """Live files with these paths, in any order; more than one with a path only if their deletion vectors differ.

        Few files of many cost a logarithm each after the first call.
        """
        if len(paths) * FILES_PER_SEARCH < len(self.adds):
            rows = [row for path in paths for row in self._search(path)]
            return PackedFiles(
                Add, pa.concat_tables([self.adds.slice(0, 0), *(self.adds.slice(row, 1) for row in rows)])
            )
        return PackedFiles(Add, self.adds.filter(pc.is_in(self.adds.column("path"), value_set=array_of(paths, TEXT))))

    def _search(self, path: str) -> Iterator[int]:
        if self._order is None:
            # `take` on a chunked array copies; one contiguous array in path order is what bisection wants.
            paths = self.adds.column("path").combine_chunks()
            order = pc.sort_indices(paths)
            self._order = pc.take(paths, order), to_numpy(order)
        paths, order = self._order
        start = bisect_left(range(len(paths)), path, key=lambda row: str(paths[row].as_py()))
        while start < len(paths) and paths[start].as_py() == path:
            yield int(order[start])
            start += 1


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a table at a version.

    Attributes:
        header: version, protocol and metadata.
        txns: latest version per appId (specification, "Transaction Identifiers").
        domains: metadata per domain, removed ones left out.
        base, overlay: see the module.
        added: by path, the adds in the overlay.
        mismatched: versions and paths of removes that name a live file with another deletion vector than it has. Some deployed writers do
            that, and mean the file.
    """

    header: Header
    base: Base = field(default_factory=Base)
    overlay: HashTrieMap[FileKey, Add | Remove] = field(default_factory=HashTrieMap)
    added: HashTrieMap[str, Add] = field(default_factory=HashTrieMap)
    txns: HashTrieMap[str, Txn] = field(default_factory=HashTrieMap)
    domains: HashTrieMap[str, DomainMetadata] = field(default_factory=HashTrieMap)
    mismatched: tuple[tuple[int, str], ...] = ()

    @property
    def version(self) -> int:
        """The version whose state this is."""
        return self.header.version

    @property
    def protocol(self) -> Protocol:
        """The protocol in force."""
        return self.header.protocol

    @property
    def metadata(self) -> Metadata:
        """The metadata in force."""
        return self.header.metadata

    def apply(self, commit: Commit, meant: Sequence[Remove] | None = None) -> Snapshot:
        """The state after `commit`. Costs the commit's actions, not the table's files.

        Args:
            commit: the next version.
            meant: the result of `meant` for its removes, if it is known.

        Raises:
            LogError: the commit is not the next version.
            UnsupportedError: its protocol requires a feature that cdfd does not implement.
        """
        if commit.version != self.version + 1:
            raise LogError(f"version {commit.version} does not follow version {self.version}", version=commit.version)
        return self._with(self.header.apply(commit), commit, self.meant(commit.removes) if meant is None else meant)

    def _with(self, header: Header, commit: Commit, meant: Sequence[Remove]) -> Snapshot:
        base, overlay, added = self.base, self.overlay, self.added
        empty = not overlay and not len(base.adds) and not len(base.tombstones)
        if isinstance(commit.adds, PackedFiles) and not commit.removes and empty:
            # A table's first files, by the million where it was converted: packed as they are, they are the base.
            base = Base(commit.adds.table.select(base.adds.schema.names), base.tombstones)
        elif commit.adds or commit.removes:
            # The adds are last. A key that one commit both removes and adds stays: the writer replaced the entry, not the file.
            actions: Iterable[Add | Remove] = (*commit.removes, *meant, *commit.adds)
            for action in actions:
                overlay = overlay.insert(action.key, action)
                added = added.insert(action.path, action) if isinstance(action, Add) else added.discard(action.path)
        txns = self.txns.update({txn.app_id: txn for txn in commit.txns}) if commit.txns else self.txns
        domains = with_domains(self.domains, commit.domains)
        mismatched = (*self.mismatched, *((commit.version, action.path) for action in meant))
        return replace(
            self,
            header=header,
            base=base,
            overlay=overlay,
            added=added,
            txns=txns,
            domains=domains,
            mismatched=mismatched,
        )

    def meant(self, removes: Sequence[Remove]) -> Sequence[Remove]:
        """For each remove of a live file that names another deletion vector, the remove of the file as it is."""
        if not removes or not has_deletion_vectors(self.protocol):
            return ()
        files = self.base.find({action.path for action in removes})
        vectors = {
            key: vector for key, vector in zip(files.keys(), files.vectors(), strict=True) if key not in self.overlay
        }
        others = [
            action
            for action in removes
            if action.key not in vectors and not isinstance(self.overlay.get(action.key), Add)
        ]
        live = {path: vector for (path, _), vector in vectors.items()}
        for action in others:
            # The overlay may be large, and some writers name other vectors in all of their commits.
            if (added := self.added.get(action.path)) is not None:
                live[added.path] = added.deletion_vector
        return [replace(action, deletion_vector=live[action.path]) for action in others if action.path in live]

    def live(self) -> PackedFiles[Add]:
        """The files that make up the table, in no particular order.

        Raises:
            LogError: a path is there twice, with different deletion vectors (specification, "Action Reconciliation": unique paths).
        """
        files = self._adds()
        paths = files.column("path")
        suspects = paths.filter(pc.is_valid(files.column("deletion_vector")))
        # To look for them takes longer than to count all, unless they are few.
        if 0 < 4 * len(suspects) < len(paths):
            paths = paths.filter(pc.is_in(paths, value_set=suspects))
        if len(suspects) and pc.count_distinct(paths).as_py() < len(paths):
            counts = pc.value_counts(paths)
            repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
            raise LogError(
                "a file is in the table twice, with different deletion vectors, so that its rows would count twice",
                version=self.version,
                path=repeated[0].as_py(),
                hint="A writer added it with a deletion vector, and did not remove it as it was before. "
                "Restore an earlier version of the table",
            )
        return PackedFiles(Add, files)

    def _adds(self) -> pa.Table:
        """The adds by key. A path may be there twice for a time, until a later version removes one of them."""
        added = [action for action in self.overlay.values() if isinstance(action, Add)]
        return _join(_without_mentions(self.base.adds, self.overlay), added)

    def tombstones(self, now_ms: int | None = None) -> PackedFiles[Remove]:
        """Files removed and not yet expired at `now_ms` (all where it is None), as far as they were loaded.

        A tombstone expires `delta.deletedFileRetentionDuration` after its `deletionTimestamp` (specification, "Add File and Remove File");
        one without a timestamp has expired.
        """
        removed = [action for action in self.overlay.values() if isinstance(action, Remove)]
        table = _join(_without_mentions(self.base.tombstones, self.overlay), removed)
        if now_ms is None:
            return PackedFiles(Remove, table)
        oldest = now_ms - deleted_files_ms(self.metadata)
        return PackedFiles(Remove, table.filter(pc.greater(pc.fill_null(table.column("time"), 0), oldest)))

    def find(self, keys: Collection[FileKey]) -> dict[FileKey, Add]:
        """Those of the logical files with these keys that are live. Costs neither the table nor the overlay, if they are few."""
        files = {add.key: add for add in self.base.find({path for path, _ in keys})}
        actions = {key: self.overlay.get(key, files.get(key)) for key in keys}
        return {key: action for key, action in actions.items() if isinstance(action, Add)}

    def compact(self, *, with_tombstones: bool = True) -> Snapshot:
        """The same state with nothing in the overlay, and without its tombstones if they are not wanted. Costs the table."""
        base = Base(self._adds(), self.tombstones().table) if with_tombstones else Base(self._adds())
        return replace(self, base=base, overlay=HashTrieMap(), added=HashTrieMap())


def with_domains(
    domains: HashTrieMap[str, DomainMetadata], changes: Iterable[DomainMetadata]
) -> HashTrieMap[str, DomainMetadata]:
    """The domains after the changes of a commit."""
    for change in changes:
        if not change.removed:
            domains = domains.insert(change.domain, change)
        elif change.domain in domains:
            domains = domains.remove(change.domain)
    return domains


def _without_mentions(table: pa.Table, overlay: Mapping[FileKey, Add | Remove]) -> pa.Table:
    """Rows whose logical file the overlay says nothing of."""
    if not len(table) or not overlay:
        return table
    mentioned = array_of({path for path, _ in overlay}, TEXT)
    suspects = pc.is_in(table.column("path"), value_set=mentioned)
    drop = np.zeros(len(table), dtype=bool)
    rows = np.flatnonzero(to_numpy(suspects.combine_chunks()))
    # `take` would copy all chunks into one array first.
    for row, key in zip(rows, PackedFiles(Add, table.filter(suspects)).keys(), strict=True):
        drop[row] = key in overlay
    return table.filter(array_of(~drop)) if drop.any() else table


def _join(table: pa.Table, actions: list[Add] | list[Remove]) -> pa.Table:
    if not actions:
        return table
    packed = pa.Table.from_batches([pack(actions, table.schema)])
    return pa.concat_tables([table, packed]) if len(table) else packed


def replay(start: Snapshot, commits: Iterable[Commit]) -> Snapshot:
    """The state after consecutive commits, the overlay folded into the base as it grows: linear in actions and files together."""
    state = start
    for commit in commits:
        state = state.apply(commit)
        if len(state.overlay) >= max(COMPACT_AT, len(state.base.adds) // 4):
            state = state.compact()
    return state


def first(commit: Commit, *, all_fields: bool = False) -> Snapshot:
    """The state after version 0. `all_fields`: files have all fields that a checkpoint has.

    Raises:
        LogError: the commit is not version 0, or lacks metadata or protocol.
        UnsupportedError: its protocol requires a feature that cdfd does not implement.
    """
    if commit.version != 0:
        raise LogError(f"the log begins at version {commit.version} and has no checkpoint", version=commit.version)
    header = PartialHeader(commit.version, commit.protocol, commit.metadata).finish()
    empty = pa.Table.from_batches([], ALL_FIELDS) if all_fields else EMPTY
    return Snapshot(header, Base(empty, empty))._with(header, commit, ())
