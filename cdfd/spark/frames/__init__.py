"""DataFrames of change rows whose files Spark's own Parquet reader reads, by the plans of cdfd."""
