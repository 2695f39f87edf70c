"""Fixtures of S3 servers, and of a broker for daemons that read from them."""

from tests.kafka.conftest import broker, name, needs_broker
from tests.s3.fixtures import bucket, moto_server, proxy, server, versitygw_server

__all__ = ["broker", "bucket", "moto_server", "name", "needs_broker", "proxy", "server", "versitygw_server"]
