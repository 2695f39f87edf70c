"""Delivery to Kafka topics."""
