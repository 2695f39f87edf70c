"""Servers for a run of tests, and buckets of its own for each test."""

import os
import uuid
from collections.abc import Iterator

import boto3
import pytest

from tests.support.axes import under_test
from tests.support.s3.proxy import Proxy, proxied
from tests.support.s3.server import KEY_ID, SECRET, Server, missing, moto, versitygw


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """moto's server, for this process's tests."""
    with moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def versitygw_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Versity's gateway, for this process's tests. Skips without Go; fails so in continuous integration."""
    if (reason := missing()) is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with versitygw(tmp_path_factory.mktemp("versitygw")) as server:
        yield server


def new_bucket(server: Server) -> str:
    """The name of an empty bucket, made now."""
    name = f"lake-{uuid.uuid4().hex[:12]}"
    client = boto3.client(
        "s3",
        endpoint_url=server.url,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    try:
        client.create_bucket(Bucket=name)
    finally:
        client.close()
    return name


@pytest.fixture
def bucket(moto_server: Server) -> str:
    """A bucket in moto."""
    return new_bucket(moto_server)


@pytest.fixture
def proxy(moto_server: Server) -> Iterator[Proxy]:
    """A network in front of moto that can be made to fail."""
    with proxied(moto_server.url) as running:
        yield running


@pytest.fixture(params=under_test("s3", ["moto_server", "versitygw_server"]))
def server(request: pytest.FixtureRequest) -> Server:
    """Each server in turn."""
    chosen: Server = request.getfixturevalue(request.param)
    return chosen
