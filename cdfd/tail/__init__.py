"""The log of a table, followed."""
