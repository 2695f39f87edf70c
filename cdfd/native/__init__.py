"""Machine code for loops that neither numpy nor Arrow has: the distribution `cdfd-native`, which is written in Rust.

Its functions read and write arrays of a caller, and check each offset. Where it is missing, or of another version than cdfd, cdfd does the
same by pyarrow, numpy and plain Python, more slowly. The environment variable `CDFD_NATIVE` with the value `0` makes cdfd do so, too.
"""

import os
from typing import Final

VERSION: Final = "0.1.0"
"""The version of `cdfd-native` that this cdfd works with: its own."""

built: bool
"""Whether the functions are there. Without them, the modules that this package has cannot be used."""

try:
    import cdfd_native
    from cdfd_native import json_rows, kafka_records, parquet, trevni
except ImportError:
    built = False
else:
    built = os.environ.get("CDFD_NATIVE") != "0" and cdfd_native.__version__ == VERSION

__all__ = ["VERSION", "built", "json_rows", "kafka_records", "parquet", "trevni"]
