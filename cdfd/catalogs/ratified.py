"""The log of a catalog-managed table: which versions exist, and which file or content each one is. Pure.

Source: Delta's protocol, "Reading Catalog-managed Tables":

    the catalog's answer        the log's folder                                  what is read
    7 -> 7.016a.json            7.json, _staged_commits/7.016a.json               the staged commit of 7: the catalog's copy wins
    8 -> 8.7d17.json            _staged_commits/8.7d17.json, 8.b918.json (lost)   the staged commit that the catalog names
    9 -> inline                                                                   the catalog's content
    latest: 9                   10.json, _staged_commits/10.0f70.json             nothing: 10 is not ratified
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdfd.catalogs.base import CatalogTable, RatifiedCommit
from cdfd.errors import TableChangedError


@dataclass(frozen=True, slots=True)
class RatifiedLog:
    """The versions of a table as of the newest answer of its catalog.

    Attributes:
        table_id: of the table in the catalog.
        latest: the newest ratified version; None: the newest published one.
        commits: the commits that the catalog has, by version.
    """

    table_id: str
    latest: int | None
    commits: Mapping[int, RatifiedCommit]

    @classmethod
    def of(cls, table: CatalogTable) -> RatifiedLog:
        """The log that an answer describes."""
        commits = {commit.version: commit for commit in table.commits}
        return cls(table.table_id, table.latest if table.latest is not None else max(commits, default=None), commits)

    def includes(self, version: int) -> bool:
        """Whether a version is ratified, as far as known."""
        return self.latest is None or version <= self.latest

    def after(self, table: CatalogTable) -> RatifiedLog:
        """The log after another answer. An answer with fewer versions is stale, and changes nothing: versions are never taken back.

        Raises:
            TableChangedError: the answer is about another table, or names another commit for a version.
        """
        new = RatifiedLog.of(table)
        if new.table_id != self.table_id:
            raise TableChangedError(
                f"the catalog has another table of that name now: its id was {self.table_id} and is {new.table_id}",
                hint="It was dropped and created again, or another table was renamed to it. Run `cdfd progress reset` to start over",
            )
        for version, commit in new.commits.items():
            earlier = self.commits.get(version)
            if (
                earlier is not None
                and earlier.file_name != commit.file_name
                and None not in (earlier.file_name, commit.file_name)
            ):
                raise TableChangedError(
                    "the catalog names another commit for a version that it has ratified already",
                    version=version,
                    hint="Its database may have been restored from a backup. Run `cdfd progress reset` to start over",
                )
        if new.latest is None:  # all published versions
            return RatifiedLog(self.table_id, None, self.commits)
        if self.latest is not None and new.latest < self.latest:
            return self
        oldest = min(new.commits, default=0)
        if len(new.commits) == new.latest - oldest + 1 or not new.commits:
            return new
        # The list is truncated: what is known already may fill its holes.
        return RatifiedLog(new.table_id, new.latest, {**self.commits, **new.commits})
