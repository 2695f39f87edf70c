"""The text of a value, as logs and tracebacks may have it, has no secret."""

import pytest

from cdfd.cli.commands.ctl import Target
from cdfd.storage.credentials import Keys
from cdfd.storage.fsspec_storage import RenewedSystem

SECRET = "5ecr3t"
KEYS = Keys("id", SECRET, SECRET)


class Source:
    """The same keys at all times."""

    async def keys(self) -> Keys:
        return KEYS

    async def config(self) -> dict[str, str]:
        return {"azure.sas-token": SECRET}


@pytest.mark.parametrize(
    "value",
    [
        KEYS,
        Target(None, "http://localhost", SECRET),
        RenewedSystem("abfs://lake@account/orders", {"account_key": SECRET}, Source()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_secret_is_shown(value: object) -> None:
    assert SECRET not in repr(value)
