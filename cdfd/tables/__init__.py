"""A table opened: its store, its log and its files, from a URI or from settings."""
