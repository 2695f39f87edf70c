"""Whether what cdfd writes would lie among the files of a table, whose writers remove what the log does not name (VACUUM)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from urllib.parse import unquote

from cdfd.config.problems import quoted

_OF_TABLES = frozenset({"_delta_log", "_change_data"})


def among(place: str, tables: Sequence[str]) -> str | None:
    """What is wrong with writing to a place, given the roots of the tables; None where nothing is.

    Writers leave folders alone whose names begin with `_` or a dot, but for the table's own.
    """
    for index, table in enumerate(tables):
        below = _below(place, table)
        if below is not None and (not below.startswith(("_", ".")) or below in _OF_TABLES):
            what = "is in the folder of" if below else "is the folder of"
            return f"{quoted(place)} {what} tables[{index}], whose writers may remove it; choose a place apart"
    return None


def _below(place: str, root: str) -> str | None:
    """The first folder on the way from `root` to a place in it; empty where they are the same, None where it is elsewhere."""
    inner, outer = _spelled_alike(place), _spelled_alike(root)
    if inner == outer:
        return ""
    return inner[len(outer) + 1 :].partition("/")[0] if inner.startswith(f"{outer}/") else None


def _spelled_alike(address: str) -> str:
    matched = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?", address)
    if matched is None or (matched[1].lower() != "file" and not matched[2]):
        return os.path.abspath(address).rstrip("/")
    scheme, rest = matched[1].lower(), address[matched.end() :]
    if scheme == "file":
        path = unquote(rest.removeprefix("localhost") if matched[2] else rest)
        return os.path.abspath(path).rstrip("/")
    return f"{'s3' if scheme == 's3a' else scheme}://{rest.rstrip('/')}"
