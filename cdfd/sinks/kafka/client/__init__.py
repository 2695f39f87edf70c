"""Clients of Kafka: how they connect, the `Producer` port, its implementations, and errors."""
