"""Measures Trevni against the reference in Java, and against Parquet."""
