"""Parquet files, read in batches of bounded memory, whatever the file says."""
