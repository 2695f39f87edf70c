"""The text of a value, as logs and tracebacks may have it, has no secret."""

import pytest

from cdfd.cli.commands.ctl import Target
from cdfd.storage.credentials import Keys

SECRET = "5ecr3t"
KEYS = Keys("id", SECRET, SECRET)


@pytest.mark.parametrize(
    "value",
    [
        KEYS,
        Target(None, "http://localhost", SECRET),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_secret_is_shown(value: object) -> None:
    assert SECRET not in repr(value)
