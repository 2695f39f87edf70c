"""Kernels in machine code: `native` for footers, page headers and dictionaries, `pages` for pages; None where they were not built.

They leave damaged and unusual input to their counterparts in Python or to pyarrow, so errors do not depend on the platform.
"""

import sys
from types import ModuleType

import pyarrow as pa

native: ModuleType | None
pages: ModuleType | None
try:
    from cdfd.native import parquet as native
except ImportError:
    native = None
else:
    # The build of an earlier commit lacks some of them, and counts as none.
    native = native if hasattr(native, "pages_at") else None

try:
    from cdfd.native import parquet_pages as pages
except ImportError:
    pages = None
else:
    # It takes numbers as Parquet has them, which is little-endian.
    pages = pages if sys.byteorder == "little" else None


def allocated(size: int) -> pa.Buffer:
    """A buffer to write to: if possible in memory of the kernel, which is used again, so that the system need not clear its pages."""
    return pa.allocate_buffer(size) if pages is None else pa.py_buffer(pages.Block(size, True))
