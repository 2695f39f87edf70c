"""`cdfd trevni`: what Trevni files contain."""

from __future__ import annotations

from collections.abc import Iterator

from cdfd.trevni import physical
from cdfd.trevni.rows import Reader
from cdfd.trevni_files.opening import in_threads, opened


def columns(file: str) -> Iterator[str]:
    """The physical columns as one JSON document, in parts.

    Raises:
        CdfdError: the file cannot be read, or is damaged.
    """
    with opened(file) as source, in_threads() as run:
        for part in physical.document(Reader(source), run):
            yield part.decode()
