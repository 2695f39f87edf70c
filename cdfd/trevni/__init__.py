"""Trevni 0.1, a column file format: bytes to columns and back, without I/O, a clock, or knowledge of Delta."""
