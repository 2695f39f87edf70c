"""Trevni 0.1, a column file format: bytes to columns and back.

The package's own modules are without I/O, a clock, or knowledge of Delta. The functions for users are those of `cdfd.trevni.files`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdfd.errors import TrevniError

if TYPE_CHECKING:
    from cdfd.trevni.files.reading import TrevniFile, read_metadata, read_schema, read_table
    from cdfd.trevni.files.writing import TrevniWriter, write_table

__all__ = ["TrevniError", "TrevniFile", "TrevniWriter", "read_metadata", "read_schema", "read_table", "write_table"]


def __getattr__(name: str) -> Any:
    # A pure module of this package imports the package first, and must not import what opens files.
    if name in ("TrevniWriter", "write_table"):
        from cdfd.trevni.files import writing

        return getattr(writing, name)
    if name in __all__:
        from cdfd.trevni.files import reading

        return getattr(reading, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
