"""Stores that speak the S3 protocol."""
