"""Kernels in machine code for footers, page headers and dictionaries; None where they were not built.

They leave damaged and unusual input to their counterparts in Python, so errors do not depend on the platform.
"""

from types import ModuleType

native: ModuleType | None
try:
    from cdfd.native import parquet as native
except ImportError:
    native = None
else:
    # The build of an earlier commit lacks some of them, and counts as none.
    native = native if hasattr(native, "pages_at") else None
