"""Schemas and their types: Delta's JSON, Arrow's types, column mapping, changes of a schema."""
