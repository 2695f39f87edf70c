"""Joins small files of one schema into one file in memory, so that many are opened and decoded as fast as one.

pyarrow opens a file of a hundred rows more slowly than it decodes it. The joined file has the row groups of all, with one footer. It is
read in batches across the files. Files that cannot be joined are read one by one, which also finds the errors. Statistics are left out:
if they are damaged, a joined file still has all rows. Large dictionaries of strings are measured (`cdfd.parquet.dictionary_pages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from cdfd.parquet.bounds import BATCH_BYTES
from cdfd.parquet.dictionary_pages import unpacked

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
        bounded: whether all columns together decode to no more bytes than a batch may have, whatever the footers say.
    """

    data: bytes
    rows: Sequence[int]
    size: int
    bounded: bool


def joined(files: Sequence[Any], *, measured: bool = True) -> Sequence[Joined]:
    """The files, each as its bytes, as one file, or as a few where that bounds the memory of each.

    None at all if they differ in their schemas or metadata, or are damaged or unusual. Each column of a joined file has as many values as its
    row group has rows. So rows of one file never count for another one.

    Args:
        files: the files.
        measured: whether large dictionaries are measured, if the memory is not bounded otherwise.
    """
    pieces: list[Any] = list(files)
    found = None if native is None else native.joined(pieces[:], [])
    if found is None:
        return ()
    if measured and native is not None and sum(found[2]) > BATCH_BYTES and found[4]:
        moved, more = unpacked(files, found[4])
        if moved and (better := native.joined(pieces[:], moved)) is not None:
            found = better
            pieces += more
    footer, rows, bounds, size, _ = found
    if len(files) > FEW and sum(bounds) > BATCH_BYTES and max(bounds) * FEW <= BATCH_BYTES:
        fitting = int(BATCH_BYTES / max(bounds))
        parts = [joined(files[at : at + fitting], measured=measured) for at in range(0, len(files), fitting)]
        return [part for found in parts for part in found]
    data = b"".join([*pieces, footer, len(footer).to_bytes(4, "little"), b"PAR1"])
    return [Joined(data, rows, size, sum(bounds) <= BATCH_BYTES)]
