"""Trevni files in every store: opens and writes them, and reads several columns in parallel. The format itself is `cdfd.trevni`."""
