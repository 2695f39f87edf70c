"""Log segments: the files that give the state at a version, which are the newest complete checkpoint not after it and the later commits.

Source: specification, "Checkpoints", "Last Checkpoint File". A pure fold over a listing in ascending order. An entry takes a few bytes of
memory, so a log of a hundred thousand entries fits.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from cdfd.delta.paths import LogName
from cdfd.errors import GapError, LogError
from cdfd.storage.base import Stat


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: the version whose state it is, and its files."""

    version: int
    files: tuple[Stat, ...]

    @property
    def path(self) -> str:
        """Path of its file; empty if it has several."""
        return self.files[0].path if len(self.files) == 1 else ""


@dataclass(frozen=True, slots=True)
class Segment:
    """The files to read for the state at `version`.

    Attributes:
        checkpoint: None if the log is read from version 0.
        commits: consecutive log entries up to `version`, from the one after the checkpoint, or from 0.
    """

    version: int
    checkpoint: Checkpoint | None
    commits: tuple[Stat, ...]

    @property
    def first_version(self) -> int:
        """Version of the first of `commits`."""
        return self.version - len(self.commits) + 1


@dataclass(slots=True)
class SegmentBuilder:
    """Folds a listing, in ascending order of name, into a segment.

    Attributes:
        wanted: the version to give the state of, or None for the newest.
        damaged: files of checkpoints that cannot be read, which are left out.
    """

    wanted: int | None
    damaged: Collection[Stat] = ()
    checkpoint: Checkpoint | None = None
    earliest: int | None = None
    latest: int | None = None
    _left_out: int = -1
    _commits: list[tuple[int, Stat]] = field(default_factory=list)
    _parts: dict[tuple[int, int], dict[int, Stat]] = field(default_factory=dict)

    def take(self, name: LogName, stat: Stat) -> None:
        """Add one file of the log."""
        is_wanted = self.wanted is None or name.version <= self.wanted
        match name.kind:
            case "commit":
                self.earliest = name.version if self.earliest is None else self.earliest
                self.latest = name.version
                if is_wanted:
                    self._commits.append((name.version, stat))
            case "checkpoint" | "v2" if is_wanted:
                self._complete(Checkpoint(name.version, (stat,)))
            case "part" if is_wanted:
                assert name.part is not None
                assert name.parts is not None
                parts = self._parts.setdefault((name.version, name.parts), {})
                parts[name.part] = stat
                if len(parts) == name.parts:
                    self._complete(Checkpoint(name.version, tuple(parts[part] for part in sorted(parts))))

    def leave_unfinished(self) -> None:
        """Leave out empty entries at the end: their writers may have just created them."""
        while self._commits and not self._commits[-1][1].size:
            self._commits.pop()
            self.latest = self._commits[-1][0] if self._commits else None

    @property
    def has_newest_commit(self) -> bool:
        """Whether no listed checkpoint is newer than all commits. Clean-up never removes the newest commit, so otherwise it was lost."""
        return self.checkpoint is None or (self.latest is not None and self.latest >= self.checkpoint.version)

    def _complete(self, checkpoint: Checkpoint) -> None:
        if self.damaged and not set(checkpoint.files).isdisjoint(self.damaged):
            self._left_out = max(self._left_out, checkpoint.version)
        elif self.checkpoint is None or checkpoint.version >= self.checkpoint.version:
            self.checkpoint = checkpoint
            # The listing is ascending: nothing at or before a complete checkpoint is needed any more, but parts of later ones are.
            self._commits = [entry for entry in self._commits if entry[0] > checkpoint.version]

    def finish(self) -> Segment:
        """The segment.

        Raises:
            GapError: versions are missing in the middle, or the log begins after version 0 without a checkpoint.
            LogError: the wanted version does not exist.
        """
        commits = [entry for entry in self._commits if self.checkpoint is None or entry[0] > self.checkpoint.version]
        after = -1 if self.checkpoint is None else self.checkpoint.version
        newest = commits[-1][0] if commits else after
        if (target := self.wanted) is not None and newest < max(target, 0):
            if self.latest is None or target > self.latest or target < 0:
                known = newest if self.latest is None else max(self.latest, newest)
                raise LogError(
                    f"version {target} is not in the log; the newest is {known}",
                    version=target,
                    hint=f"Give a version up to {known}, or -1 for the newest",
                )
            if self.earliest is not None and self.earliest < target:
                raise GapError(
                    f"version {target} is missing: the log continues to {self.latest} without it",
                    version=target,
                    hint="A log must be contiguous: restore the missing entries from a copy of the table",
                )
            raise GapError(
                f"version {target} is no longer in the log; the oldest that can be read is {self.earliest}",
                version=target,
                hint="Log clean-up removed it; start at a newer version, or from a snapshot",
            )
        if newest < self._left_out:
            raise GapError(f"the checkpoint of version {self._left_out} is damaged", version=self._left_out)
        if self.checkpoint is None and commits and commits[0][0] != 0:
            raise GapError(
                f"the log begins at version {commits[0][0]} and has no complete checkpoint up to version {newest}",
                version=newest,
                hint="Older log entries were removed or never copied; a checkpoint is needed to begin later",
            )
        for version, _ in commits:
            if version != after + 1:
                gap = (
                    f"version {after + 1} is" if version == after + 2 else f"versions {after + 1} to {version - 1} are"
                )
                raise GapError(
                    f"{gap} missing: the log goes from {after} to {version}",
                    version=after + 1,
                    hint="A log must be contiguous: restore the missing entries from a copy of the table",
                )
            after = version
        return Segment(newest, self.checkpoint, tuple(stat for _, stat in commits))
