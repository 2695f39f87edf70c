"""Kafka's record batches from Arrow arrays."""
