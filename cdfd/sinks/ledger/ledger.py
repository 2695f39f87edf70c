"""The ledger port: stores the last delivered version of each table, in addition to the sink.

The position of an exactly-once sink is authoritative. The ledger lags behind it, and has the position to resume from if the sink loses its
own. For a sink without positions, the ledger's position is authoritative.
"""

from dataclasses import dataclass
from typing import Protocol

PREFIX = "cdfd/"
"""Prefix of all appIds of cdfd."""


def app_id(pipeline: str, table: str) -> str:
    """The `txn` appId of a pipeline's table, by their names in the configuration."""
    return f"{PREFIX}{pipeline}/{table}"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The entry of one table in a ledger.

    Attributes:
        app_id: `cdfd/<pipeline>/<table>`.
        version: the last delivered version.
        table_id: `metaData.id` of the table; None if the ledger does not have it.
        last_updated: time of the record, in ms since the Unix epoch.
        digest: hash of the version's log entry (see `cdfd.log.entry`), which tells the table from a copy of it that went another way;
            None where the ledger does not know.
    """

    app_id: str
    version: int
    table_id: str | None
    last_updated: int | None
    digest: str | None = None


class Ledger(Protocol):
    """Stores positions by appId. The last record counts, even if its version is lower. Methods may be called concurrently.

    All methods raise `StorageError` if the store fails, and `LogError` if the ledger's log is damaged.

    Attributes:
        uri: the name of the ledger in messages.
    """

    uri: str

    async def position(self, app_id: str) -> LedgerEntry | None:
        """The last record of any writer; None if there is none, or after `forget`. Writes nothing."""

    async def record(self, app_id: str, version: int, table_id: str, digest: str | None = None) -> None:
        """Record that `version` of the table `table_id` and all versions before it are delivered.

        `digest` is the hash of that version's log entry. Where it is None, what is known of the same version of the same table stays.

        If it raises, the outcome may be unknown: read `position`. A retriable `StorageError` means too many concurrent writers.
        """

    async def renew(self, app_id: str) -> None:
        """Record the present time with the table's position. Does nothing without a position, and in tables of users."""

    async def forget(self, app_id: str) -> None:
        """Record that the table has no position."""

    async def close(self) -> None:
        """Wait for the current record, and refuse further ones."""


class NoLedger:
    """The `Ledger` port without a ledger."""

    uri = "none"

    async def position(self, app_id: str) -> LedgerEntry | None:
        """Always None."""
        return None

    async def record(self, app_id: str, version: int, table_id: str, digest: str | None = None) -> None:
        """Does nothing."""

    async def renew(self, app_id: str) -> None:
        """Does nothing."""

    async def forget(self, app_id: str) -> None:
        """Does nothing."""

    async def close(self) -> None:
        """Does nothing."""
