"""Deliveries to Kafka: each a transaction with rows and position."""
