"""Credentials of stores: keys that are renewed, and those in addresses, which would appear in logs, errors and labels of metrics."""

import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

# Azure's own form, `abfss://container@account.dfs.core.windows.net/folder`, and before it `wasbs://`: the part before the @ is not a user.
_CONTAINER = re.compile(r"(?:abfs|wasb)s?://(?:\$[a-z]+|[a-z0-9][a-z0-9-]{1,62})@[A-Za-z0-9.-]+(?:/|$)", re.IGNORECASE)
_USER = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*@")
_SIGNATURE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*[?&](?:sig|X-Amz-Signature)=", re.IGNORECASE)


def in_address(address: str) -> bool:
    """Whether an address has a user name, a password or a signature in it."""
    return bool(_SIGNATURE.match(address) or (_USER.match(address) and not _CONTAINER.match(address)))


def is_url(address: str) -> bool:
    """Whether an address is a URL of a server, perhaps with a path, and without a user."""
    if not re.fullmatch(r"https?://[^/@?#\s]+(/[^@?#\s]*)?", address):
        return False
    try:
        return urlsplit(address).port != 0
    except ValueError:  # half an address of IPv6, or no port
        return False


SOURCE = "credential_source"
"""The option of a store with a `KeySource`, which a catalog sets."""


class Keys(NamedTuple):
    """An access key of S3, its secret, and the token of a temporary one."""

    access_key: str
    secret_key: str
    token: str | None

    def __repr__(self) -> str:
        return f"Keys({self.access_key!r})"


class KeySource(Protocol):
    """Keys that are renewed before they end. Its methods run in the event loop of requests; see `cdfd.storage.s3.loop`."""

    async def keys(self) -> Keys:
        """The keys for a request now.

        Raises:
            StorageError: there are none.
        """

    async def config(self) -> Mapping[str, str]:
        """The credential now, of any kind of store, as Unity Catalog's API has it: `azure.sas-token`, `gcs.oauth-token` and so on.

        Raises:
            StorageError: there is none.
        """

    def expire(self, keys: Keys) -> None:
        """Forget these keys, unless there are newer ones: the store refused them."""
