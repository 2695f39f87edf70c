"""Decoding and encoding for cdfd in memory-safe machine code."""

from cdfd_native import parquet as parquet
from cdfd_native import trevni as trevni

__version__: str
