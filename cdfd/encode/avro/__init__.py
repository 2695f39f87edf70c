"""Rows as Avro, and the registry of its schemas."""
