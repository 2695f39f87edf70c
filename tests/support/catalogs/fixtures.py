"""A Unity Catalog server, and Delta Kernel for Java connected to it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.catalogs.kernel import Kernel, kernel, missing
from tests.support.catalogs.unity_server import UnityServer, unity_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[UnityServer]:
    """A stand-in server whose managed tables are in the test's folder."""
    with unity_server(tmp_path) as running:
        yield running


@pytest.fixture
def java_kernel(server: UnityServer) -> Iterator[Kernel]:
    """A process for that server. Skips without Java; fails so in continuous integration."""
    if (reason := missing()) is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with kernel(server.url) as running:
        yield running
