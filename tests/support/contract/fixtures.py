"""Servers that the contracts of sinks and of stores also hold with."""

from tests.support.kafka.fixtures import admin, broker, create, name, needs_broker, read, topic
from tests.support.s3.fixtures import moto_server, versitygw_server

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
