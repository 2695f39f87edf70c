"""Trevni files in memory."""

from collections.abc import Sequence
from typing import Any

from cdfd.trevni.file_writer import FileWriter
from cdfd.trevni.files.writing import SpillStore
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.source import Source


def memory_source(data: bytes | memoryview) -> Source:
    """The source of a file in memory."""
    view = memoryview(data).cast("B")
    return Source(lambda start, length: view[start : start + length], len(view))


def file_writer(columns: Sequence[ColumnMetadata], **options: Any) -> FileWriter:
    """A writer of physical columns."""
    return FileWriter(columns, SpillStore(), **options)
