"""Tailing a table's log."""
