"""Delivery to Kafka: the daemon, and what others deliver to the same broker."""
