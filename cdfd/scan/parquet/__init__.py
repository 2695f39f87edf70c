"""Parquet files, read in batches of bounded memory, whatever the file says."""

TEXT_HINT = "The writer put other bytes into a text column: rewrite the file, or make the column binary"
