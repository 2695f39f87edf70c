"""The ledgers of a configuration's tables."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.deliver.configured import open_table
from cdfd.runtime.clock import Clock, SystemClock
from cdfd.sinks.ledger.ledger import Ledger, NoLedger
from cdfd.sinks.ledger.source_ledger import SourceLedger
from cdfd.sinks.ledger.table_ledger import TableLedger
from cdfd.storage.location import open_private


@asynccontextmanager
async def ledgers(config: Settings, clock: Clock | None = None) -> AsyncIterator[Callable[[settings.Table], Ledger]]:
    """A function that returns a table's ledger: one ledger for all tables, or with `source` one for each. Closes them at the end.

    It does not access any ledger yet.

    Raises:
        ConfigError, UnsupportedError: the location cannot be opened.
    """
    time = clock or SystemClock()
    place = config.progress.ledger
    async with AsyncExitStack() as stack:

        def keep(ledger: Ledger) -> Ledger:
            stack.push_async_callback(ledger.close)
            return ledger

        if place.kind == "source":
            yield lambda table: keep(SourceLedger(open_table(config, table).log.storage, time))
            return
        shared = keep(
            TableLedger(open_private(place.uri, config.options(place.uri)), time)
            if place.kind == "table"
            else NoLedger()
        )
        yield lambda table: shared
