"""Decoding and encoding for cdfd in memory-safe machine code."""

from cdfd_native import parquet as parquet

__version__: str
