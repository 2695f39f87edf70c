"""Checks that cdfd does not write into a table's folder, where VACUUM removes files that are not in the log."""

import os
import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Literal
from urllib.parse import unquote

from cdfd.config.problems import Conflicts, Path, quoted

_OF_TABLES = frozenset({"_delta_log", "_change_data"})


class TableFolders:
    """The folders of many tables, to compare many locations with. Blocks: it resolves symbolic links, once for each location.

    VACUUM ignores folders whose names begin with `_` or a dot, except for those of the table itself. A location counts by its name, and by
    the folder that it is once symbolic links are resolved.

    Args:
        tables: the roots of the tables.
    """

    def __init__(self, tables: Sequence[str]) -> None:
        self._indices: tuple[dict[str, int], dict[str, int]] = {}, {}
        for index, table in enumerate(tables):
            for spelling, indices in zip(_SPELLINGS, self._indices, strict=True):
                indices.setdefault(spelling(table), index)

    def around(self, place: str) -> tuple[int, Literal["is", "is in"]] | None:
        """The first table whose root is a location, or that has it in its folder, by its index; None if it is apart from all. Blocks."""
        nearest: list[tuple[int, Literal["is", "is in"]]] = []
        for spelling, indices in zip(_SPELLINGS, self._indices, strict=True):
            location = outer = spelling(place)
            while True:
                below = location[len(outer) + 1 :].partition("/")[0]
                if outer in indices and (not below.startswith(("_", ".")) or below in _OF_TABLES):
                    nearest.append((indices[outer], "is in" if below else "is"))
                if "/" not in outer:
                    break
                outer = outer.rpartition("/")[0]
        return min(nearest, key=itemgetter(0), default=None)

    def check_apart(self, key: Path, place: str) -> None:
        """Check that a location is in no table's folder. Raises `Conflicts` that name the key. Blocks."""
        if (table := self.around(place)) is not None:
            what = f"{quoted(place)} {table[1]} the folder of tables[{table[0]}], whose writers may remove it; choose another location"
            raise Conflicts((key, what))


def real(address: str) -> str:
    """One spelling for all names of a location: `canonical`, with symbolic links resolved if it is local. Blocks."""
    place = canonical(address)
    if "://" in place:
        return place
    try:
        return os.path.realpath(place or "/").rstrip("/")
    except ValueError:
        return place  # no file of this system has such a name


def canonical(address: str) -> str:
    """One spelling for all spellings of a location, as far as names tell: `file:///a//b/` -> `/a/b`."""
    matched = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?", address)
    if matched is None or (matched[1].lower() != "file" and not matched[2]):
        return os.path.abspath(address).rstrip("/")
    scheme, address_path = matched[1].lower(), address[matched.end() :]
    if scheme == "file":
        path = unquote(address_path.removeprefix("localhost") if matched[2] else address_path)
        return os.path.abspath(path).rstrip("/")
    return f"{'s3' if scheme == 's3a' else scheme}://{address_path.rstrip('/')}"


_SPELLINGS = canonical, real
