"""Groups of data files that one scan of Spark reads, from the plans of versions.

A plan is read so only if its rows are rows of Parquet files as they are. Updates that are found by keys or row ids, and values that Spark's
reader does not give as cdfd does, are left to `format("cdfd")`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from cdfd.delta.types.datatypes import Foreign, Primitive, types_in
from cdfd.delta.types.schema import ColumnMappingMode, TableSchema
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.scan.data_files import is_parquet

FEW_FILES: Final = 32
"""Files up to which Spark lists the paths of a scan on its driver, by default. More of them take a job."""

SMALL_FILE: Final = 4 << 20
"""Bytes of a file, about, below which `format("cdfd")` reads many of them faster: it reads them together."""

MOST_FILES: Final = 10_000
"""Files of one DataFrame, at most: Spark's driver asks the store for each of them."""

MOST_SCANS: Final = 8
"""Scans of the same columns without a join, at most. Beyond, they are one scan, and a join by path brings the constants."""

MOST_NAMED: Final = 16
"""Files of a scan, at most, that their sizes or names tell apart. Each row is compared with those of the files, one after the other."""

_PLAIN_NAME: Final = re.compile(r"[\w.=-]+", re.ASCII)
"""Names that are the same in a path and in a URI."""

_UNLIKE: Final = (Primitive("variant"), Primitive("void"))
"""Types whose values Spark's reader does not give as cdfd does: a variant is text in cdfd."""


OWN: Final = "__cdfd_"
"""How the names of columns begin that a plan adds."""


class ReadByCdfd(Exception):
    """Spark's reader cannot read the rows, or is slower. The text says why."""


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows of one file.

    Attributes:
        scan: the file, and which of its rows.
        version: of the table.
        timestamp_ms: when it was committed, in ms since the Unix epoch.
        schema: in which the file is read.
        ordinal: of the file's first selected row; None if ordinals are not requested.
    """

    scan: FileScan
    version: int
    timestamp_ms: int
    schema: TableSchema
    ordinal: int | None = None

    @property
    def selects(self) -> bool:
        """Whether deletion vectors select rows of the file."""
        return (self.scan.only, self.scan.without) != (None, None)

    @property
    def is_cdc(self) -> bool:
        """Whether the file brings change types of its own."""
        return self.scan.change_type is None


def file_rows(plans: Iterable[ChangePlan]) -> Iterator[FileRows]:
    """The files of plans, in order of their rows. A change data file comes once.

    Raises:
        ReadByCdfd: a plan has other rows than those of files.
    """
    for plan in plans:
        if plan.refinement is not None or plan.key:
            raise ReadByCdfd(f"version {plan.version} has updates that are found by a key or by row ids")
        for scan in plan.scans:
            if scan.image_phase != "late":  # the other half of the same file
                yield FileRows(scan, plan.version, plan.timestamp_ms, scan.schema or plan.schema)


def check_files(files: Sequence[FileRows]) -> None:
    """Check that Spark's reader reads files as cdfd does, and in less time.

    Raises:
        ReadByCdfd: it does not.
    """
    paths = {each.scan.path: each.scan.size for each in files}
    if len(paths) > MOST_FILES:
        raise ReadByCdfd(f"{len(paths)} files are too many for Spark's driver")
    if len(paths) > FEW_FILES and sum(paths.values()) < SMALL_FILE * len(paths):
        raise ReadByCdfd(f"{len(paths)} files are small, and are read together")
    for path in paths:
        name = name_of(path)
        if not is_parquet(path):
            raise ReadByCdfd(f"the file {path!r:.200} is not Parquet")
        if name.startswith(("_", ".")) or name.endswith("._COPYING_"):
            raise ReadByCdfd(f"Spark does not read a file of the name {name!r:.200}")


def check_schema(schema: TableSchema, *, field_ids: bool) -> None:
    """Check that Spark's reader gives the values of columns as cdfd does.

    Args:
        schema: of files.
        field_ids: whether the session reads columns by their ids.

    Raises:
        ReadByCdfd: it does not.
    """
    if schema.mapping is ColumnMappingMode.ID and schema.data_fields and not field_ids:
        raise ReadByCdfd("the table finds columns by id, and spark.sql.parquet.fieldId.read.enabled is false")
    names = [schema.physical_name(child).lower() for child in schema.data_fields]
    if len(set(names)) < len(names):
        raise ReadByCdfd("the names of two columns differ only in case")
    for child in schema.struct:
        if child.name.lower().startswith(OWN):
            raise ReadByCdfd(f"the name of column {child.name!r:.200} is kept for columns of the plan")
        for kind in types_in(child.type):
            if isinstance(kind, Foreign) or kind in _UNLIKE:
                raise ReadByCdfd(f"column {child.name!r:.200} is of type {kind}")


def name_of(path: str) -> str:
    """The name of a file, without its folder."""
    return path.rpartition("/")[2]


def are_named(group: Sequence[FileRows]) -> bool:
    """Whether names tell the files apart, which are few. A file may come several times: one version adds it, and another one removes it."""
    paths = {each.scan.path for each in group}
    names = set(map(name_of, paths))
    return len(names) == len(paths) <= MOST_NAMED and all(map(_PLAIN_NAME.fullmatch, names))


def groups_of(files: Sequence[FileRows]) -> list[list[FileRows]]:
    """The groups of files, which have the same schema, `is_cdc` and `selects`.

    The files of a group also have the same constants, or names tell them apart, unless there are many such groups. Files that come several
    times have groups of their own: a filter on the version leaves out other files before Spark reads them.
    """
    times = Counter(each.scan.path for each in files if not each.selects)
    fine = defaultdict[object, defaultdict[object, list[FileRows]]](lambda: defaultdict(list))
    for each in files:
        scan = each.scan
        constants = each.version, scan.change_type, tuple(sorted(scan.partition_values.items()))
        repeats = not each.selects and times[scan.path] > 1
        fine[id(each.schema), each.is_cdc, each.selects, repeats][constants].append(each)
    groups = list[list[FileRows]]()
    for alike in fine.values():
        scans = list[list[FileRows]]()
        for group in alike.values():
            if scans and not group[0].selects and are_named([*scans[-1], *group]):
                scans[-1] += group
            else:
                scans.append(group)
        groups += scans if len(scans) <= MOST_SCANS else [list(chain.from_iterable(scans))]
    return groups
