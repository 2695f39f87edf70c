"""Opens tables from settings: the same in the daemon and in the executors of a cluster."""

import logging

from cdfd.changes.execute import Execution
from cdfd.changes.refined import refined_versions
from cdfd.changes.scans import OnMissingFile, raise_missing
from cdfd.changes.spill import spill_space
from cdfd.config import settings
from cdfd.config.sections import Spill
from cdfd.config.settings import Settings
from cdfd.errors import MissingFileError
from cdfd.tables.table import Table

logger = logging.getLogger("cdfd.feed")

BATCH_ROWS = 20_480
"""Rows of a batch to encode and deliver: encoding takes several times a batch's own memory."""


def open_table(config: Settings, table: settings.Table) -> Table:
    """A table of the configuration. It accesses nothing yet.

    Raises:
        ConfigError, UnsupportedError: see `Table.open`.
    """
    return Table.open(table.uri, config.storage.options(table.uri), table.allowed_roots, table.found_below)


def execution(
    opened: Table, table: settings.Table, workers: int | None = None, *, spill: Spill | None = None
) -> Execution:
    """The execution of a table's plans.

    Args:
        opened: the table.
        table: its configuration.
        workers: cores to use; None for as many as the process may use.
        spill: local disk, for rows that do not fit into memory; None for the default.
    """
    space = spill_space() if spill is None else spill_space(spill.path, spill.max_bytes)
    shape = table.shape
    return Execution(
        opened.files,
        shape.select,
        workers,
        BATCH_ROWS,
        on_missing=_on_missing(table),
        whole=table.columns is None,
        drop_unchanged=table.drop_unchanged,
        shape=shape,
        space=space,
        refined=refined_versions(table.uri, table.name),
    )


def _on_missing(table: settings.Table) -> OnMissingFile:
    return _skip if table.on_missing_file == "skip" else raise_missing


def _skip(error: MissingFileError) -> None:
    logger.warning("%s; left out", error, extra={"table": error.table, "version": error.version})
