"""Trevni files in memory."""

from cdfd.trevni.source import Source


def memory_source(data: bytes | memoryview) -> Source:
    """The source of a file in memory."""
    view = memoryview(data).cast("B")
    return Source(lambda start, length: view[start : start + length], len(view))
