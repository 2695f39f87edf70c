"""Decoding and encoding for cdfd in memory-safe machine code."""

from cdfd_native import json_rows as json_rows
from cdfd_native import kafka_records as kafka_records
from cdfd_native import parquet as parquet
from cdfd_native import trevni as trevni

__version__: str
