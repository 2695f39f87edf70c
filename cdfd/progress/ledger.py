"""The ledger port: the last whole version of each table that was delivered, kept apart from the sink.

A sink that delivers exactly once holds the position that counts. The ledger lags behind it, says where to go on when the sink's record is
lost, and is the position itself for sinks that keep none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

PREFIX = "cdfd/"
"""What every appId of ours begins with."""


def app_id(pipeline: str, table: str) -> str:
    """The `txn` appId of a pipeline's table, by their names in the configuration."""
    return f"{PREFIX}{pipeline}/{table}"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What a ledger knows of one table.

    Attributes:
        app_id: `cdfd/<pipeline>/<table>`.
        version: the last version that was delivered whole.
        table_id: `metaData.id` of the table it is a version of; None where the ledger does not know.
        last_updated: when it was recorded, in ms since the Unix epoch.
        digest: hash of the version's log entry (see `cdfd.tail.history`), which tells the table from a copy of it that went another way;
            None where the ledger does not know.
    """

    app_id: str
    version: int
    table_id: str | None
    last_updated: int | None
    digest: str | None = None


class Ledger(Protocol):
    """Positions by appId. What is recorded last counts, be it lower than before. Methods may be called concurrently.

    All raise `StorageError` where the store fails, and `LogError` where the log that holds the ledger is damaged.
    """

    @property
    def uri(self) -> str:
        """What it is called in messages."""

    async def position(self, app_id: str) -> LedgerEntry | None:
        """What was recorded last, whoever did; None where nothing was, or it was forgotten. Writes nothing."""

    async def record(self, app_id: str, version: int, table_id: str, digest: str | None = None) -> None:
        """Make it durable that `version` of the table `table_id` and all before it are delivered.

        `digest` is the hash of that version's log entry. Where it is None, what is known of the same version of the same table stays.

        When it raises, the outcome may be unknown: `position` tells. `StorageError` with `retriable` where others write too much.
        """

    async def forget(self, app_id: str) -> None:
        """Make it durable that nothing is known."""

    async def close(self) -> None:
        """Return once what is being recorded is; nothing more is recorded."""


class NoLedger:
    """The `Ledger` port for those who want none."""

    @property
    def uri(self) -> str:
        """What it is called in messages."""
        return "none"

    async def position(self, app_id: str) -> LedgerEntry | None:
        """Nothing is known."""
        return None

    async def record(self, app_id: str, version: int, table_id: str, digest: str | None = None) -> None:
        """Does nothing."""

    async def forget(self, app_id: str) -> None:
        """Does nothing."""

    async def close(self) -> None:
        """Does nothing."""
