"""The arrays of a batch as the bytes of their cells, for all rows at once."""
