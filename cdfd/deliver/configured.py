"""Opens tables from settings: the same in the daemon and in the executors of a cluster."""

import logging

from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.errors import MissingFileError
from cdfd.log.table import Table
from cdfd.scan.execute import Execution
from cdfd.scan.read import raise_missing
from cdfd.scan.updates.last_refined import refined_versions
from cdfd.scan.updates.spill import spill_space

logger = logging.getLogger("cdfd.feed")

BATCH_ROWS = 20_480
"""Rows of a batch to encode and deliver: encoding takes several times a batch's own memory."""


def open_table(config: Settings, table: settings.Table) -> Table:
    """A table of the configuration. It accesses nothing yet.

    Raises:
        ConfigError, UnsupportedError: see `Table.open`.
    """
    # Files of a local clone may be in a store that has options.
    places = (table.uri, *table.allowed_roots, *table.path_prefixes.values())
    options = next(filter(None, map(config.options, places)), None)
    return Table.open(
        table.uri,
        options,
        table.allowed_roots,
        table.found_below,
        path_prefixes=table.path_prefixes,
        max_log_line=table.max_log_line,
    )


def execution(config: Settings, source: Table, table: settings.Table, workers: int | None = None) -> Execution:
    """The execution of a table's plans.

    Args:
        workers: cores to use; None for as many as the process may use.
    """
    rows, has_topics = table.rows, config.sink is not None and config.sink.has_topics
    return Execution(
        source.files,
        rows,
        workers=workers,
        batch_rows=BATCH_ROWS,
        on_missing=_skip if table.on_missing_file == "skip" else raise_missing,
        whole=table.columns is None,
        space=spill_space(config.spill.path, config.spill.max_bytes),
        refined=refined_versions(table.uri, config.address(table.name)),
        keeps_moves=has_topics and not rows.shape.excluded,
        slow_consumer=has_topics,
    )


def _skip(error: MissingFileError) -> None:
    logger.warning("%s; left out", error, extra={"table": error.table, "version": error.version})
