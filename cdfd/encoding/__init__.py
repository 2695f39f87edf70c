"""A record batch -> keys and values of records: JSON, Debezium. Vectorised: Arrow kernels, never a loop over rows."""
