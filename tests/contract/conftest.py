"""Servers that stores of the contract suites are in."""

from tests.s3.fixtures import moto_server, versitygw_server

__all__ = ["moto_server", "versitygw_server"]
