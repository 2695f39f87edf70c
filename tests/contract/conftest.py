"""Servers that the contracts of sinks and of stores also hold with."""

from tests.kafka.conftest import admin, broker, create, name, needs_broker, read, topic
from tests.s3.fixtures import moto_server, versitygw_server

__all__ = [
    "admin",
    "broker",
    "create",
    "moto_server",
    "name",
    "needs_broker",
    "read",
    "topic",
    "versitygw_server",
]
