"""Decoding and encoding for cdfd in memory-safe machine code."""

__version__: str
