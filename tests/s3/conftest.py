"""Fixtures of S3 servers."""

from tests.s3.fixtures import bucket, moto_server, server, versitygw_server

__all__ = ["bucket", "moto_server", "server", "versitygw_server"]
