"""Positions as Kafka records, and the topics that hold them."""
