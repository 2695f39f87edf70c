"""How far each pipeline has come with each table, kept as Delta transaction identifiers (`txn`) beside the sink."""
