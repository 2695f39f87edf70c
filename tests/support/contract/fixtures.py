"""Servers that the contracts of sinks and of stores also hold with."""

from tests.support.kafka.fixtures import admin, broker, create, name, needs_broker, read, topic
from tests.support.queues.fixtures import azurite_account, pubsub_service
from tests.support.s3.fixtures import moto_server, versitygw_server

__all__ = [
    "admin",
    "azurite_account",
    "broker",
    "create",
    "moto_server",
    "name",
    "needs_broker",
    "pubsub_service",
    "read",
    "topic",
    "versitygw_server",
]
