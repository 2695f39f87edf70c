"""Progress of each pipeline and table, stored as Delta transaction identifiers (`txn`) in addition to the sink's position."""
