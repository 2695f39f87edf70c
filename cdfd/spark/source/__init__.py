"""The data source `cdfd` of Spark: batches and streams of change rows."""
