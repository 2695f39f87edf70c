"""How commands are started in this tier."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.support import fork_server
from tests.support.sampling import ALL


@pytest.fixture(scope="session", autouse=True)
def forked_commands() -> Iterator[None]:
    """Commands are forked from one process, but not in the long form."""
    with nullcontext() if ALL else fork_server.forks():
        yield
