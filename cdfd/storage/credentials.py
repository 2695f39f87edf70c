"""Detects credentials in addresses: they would appear with the address in logs, errors, `/status` and labels of metrics."""

import re

# Azure's own form, `abfss://container@account.dfs.core.windows.net/folder`: the part before the @ is not a user.
_CONTAINER = re.compile(r"abfss?://(?:\$[a-z]+|[a-z0-9][a-z0-9-]{1,62})@[A-Za-z0-9.-]+(?:/|$)", re.IGNORECASE)
_USER = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*@")
_SIGNATURE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*[?&](?:sig|X-Amz-Signature)=", re.IGNORECASE)


def in_address(address: str) -> bool:
    """Whether an address has a user name, a password or a signature in it."""
    return bool(_SIGNATURE.match(address) or (_USER.match(address) and not _CONTAINER.match(address)))
