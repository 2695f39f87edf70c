"""Keys of a source as aiobotocore's credentials: both clients ask for them before each request."""

from __future__ import annotations

from typing import Any

from aiobotocore.credentials import AioCredentials

from cdfd.storage.credentials import Keys, KeySource


class SourcedCredentials(AioCredentials):  # type: ignore[misc]  # aiobotocore has no types
    """Credentials that are those of a source at any time."""

    def __init__(self, source: KeySource) -> None:
        super().__init__("", "", None, "catalog")
        self._source = source
        self._last: Keys | None = None
        self._frozen: Any = None

    async def get_frozen_credentials(self) -> Any:
        """The keys for a request now, as botocore has them.

        Raises:
            StorageError: the source has none.
        """
        keys = await self._source.keys()
        if keys != self._last:
            fixed = AioCredentials(keys.access_key, keys.secret_key, keys.token, "catalog")
            self._last, self._frozen = keys, await fixed.get_frozen_credentials()
        return self._frozen
