"""Machine code for loops that neither numpy nor Arrow has: the distribution `cdfd-native`, which is written in Rust.

Its functions read and write arrays of a caller, and check each offset. Where it is missing, or of another version than cdfd, cdfd does the
same by pyarrow, numpy and plain Python, more slowly. The environment variable `CDFD_NATIVE` with the value `0` makes cdfd do so, too.
"""

import os
from typing import Final

VERSION: Final = "0.2.0"
"""The version of `cdfd-native` that this cdfd works with: its own."""

built: bool
"""Whether the functions are there. Without them, the modules that are imported here cannot be used."""

missing: str
"""Why the functions are not there; empty where they are."""

_PURGE_DELAY = "MIMALLOC_PURGE_DELAY"
"""Milliseconds until its allocator returns memory, which it reads once. By default it is a second, and a program that reads tables again and
again lets the kernel clear most of it each time: with ten, as jemalloc has, `cdfd.changes` takes 0.6 to 0.9 of the time."""

_sets_delay = _PURGE_DELAY not in os.environ
if _sets_delay:
    os.environ[_PURGE_DELAY] = "10000"
try:
    import cdfd_native
    from cdfd_native import json_rows, kafka_records, parquet, trevni
except ImportError as error:
    # Of a module that is there, the loader's words: it may be for another platform, or lack what this version needs.
    missing = "it is not installed" if error.name == "cdfd_native" and error.path is None else str(error)
else:
    missing = "" if cdfd_native.__version__ == VERSION else f"its version is {cdfd_native.__version__}, not {VERSION}"
finally:
    if _sets_delay:  # child processes choose for themselves
        del os.environ[_PURGE_DELAY]
if os.environ.get("CDFD_NATIVE") == "0":
    missing = "CDFD_NATIVE is 0"
built = not missing

__all__ = ["VERSION", "built", "json_rows", "kafka_records", "missing", "parquet", "trevni"]
