"""Decoding and encoding for cdfd in memory-safe machine code."""

from cdfd_native.cdfd_native import __version__, json_rows, kafka_records, parquet, trevni

__all__ = ["__version__", "json_rows", "kafka_records", "parquet", "trevni"]
