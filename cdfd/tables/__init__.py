"""Open tables: the store, the log and the files of a table, from a URI or from settings."""
