"""Checks that cdfd does not write into a table's folder, where VACUUM removes files that are not in the log."""

import os
import re
from collections.abc import Iterable, Sequence
from typing import Literal
from urllib.parse import unquote

from cdfd.config.problems import Conflicts, Path, quoted
from cdfd.config.table import Table

_OF_TABLES = frozenset({"_delta_log", "_change_data"})


def inside_table(place: str, tables: Sequence[str]) -> str | None:
    """The problem of writing to a location, given the roots of the tables; None if there is none. Blocks.

    See `within`.
    """
    for index, table in enumerate(tables):
        if (where := within(place, table)) is not None:
            return f"{quoted(place)} {where} the folder of tables[{index}], whose writers may remove it; choose another location"
    return None


def within(place: str, table: str) -> Literal["is", "is in"] | None:
    """Whether a location is the root of a table, or is in its folder; None if it is apart. Blocks.

    VACUUM ignores folders whose names begin with `_` or a dot, except for those of the table itself. A location counts by its name, and by
    the folder that it is once symbolic links are resolved.
    """
    for spelling in (canonical, real):
        inner, outer = spelling(place), spelling(table)
        if inner != outer and not inner.startswith(f"{outer}/"):
            continue
        below = inner[len(outer) + 1 :].partition("/")[0]
        if not below.startswith(("_", ".")) or below in _OF_TABLES:
            return "is in" if below else "is"
    return None


def check_apart(key: Path, place: str, tables: Iterable[Table]) -> None:
    """Check that a location is in no table's folder; see `inside_table`. Raises `Conflicts` that name the key."""
    what = inside_table(place, [table.uri for table in tables])
    if what is not None:
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
