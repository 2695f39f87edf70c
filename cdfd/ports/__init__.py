"""What cdfd has several kinds of, and other packages can add to: see `registry`."""
