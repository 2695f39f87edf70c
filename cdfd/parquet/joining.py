"""Joins small files of one schema into one file in memory, so that many are opened and decoded as fast as one.

pyarrow opens a file of a hundred rows more slowly than it decodes it. The joined file has the row groups of all, with one footer. It is
read in batches across the files. Files that cannot be joined are read one by one, which also finds the errors. Statistics are left out:
if they are damaged, a joined file still has all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

native: ModuleType | None
try:
    from cdfd.native import parquet_joining as native
except ImportError:
    native = None


FEW = 4
"""Files in a joined one, at least, that are worth it."""


class Joined(NamedTuple):
    """A joined file.

    Attributes:
        data: its bytes.
        rows: of each file in it.
        size: bytes of all columns once decoded, as the footers say.
    """

    data: bytes
    rows: Sequence[int]
    size: int


def joined(files: Sequence[Any]) -> Joined | None:
    """The files, each as its bytes, as one file.

    None if they differ in their schemas or metadata, or are damaged or unusual. Each column of a joined file has as many values as its
    row group has rows. So rows of one file never count for another one.
    """
    found = None if native is None else native.joined(list(files))
    if found is None:
        return None
    footer, rows, size = found
    return Joined(b"".join([*files, footer, len(footer).to_bytes(4, "little"), b"PAR1"]), rows, size)
