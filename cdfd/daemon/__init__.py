"""The daemon: one loop per table, put together from settings."""
