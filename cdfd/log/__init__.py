"""A table's log: it is listed, read, followed, and becomes planned versions."""
