"""Settings to what reads a table: the same in the daemon, and in executors of a cluster."""

from __future__ import annotations

import logging
from functools import partial

from cdfd.changes.execute import Execution, OnMissingFile, all_columns, named_columns, raise_missing
from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.errors import MissingFileError
from cdfd.tables.table import Table

logger = logging.getLogger("cdfd.feed")

BATCH_ROWS = 16_384
"""Rows to encode and deliver at once: encoding takes several times a batch's own memory."""


def open_table(config: Settings, table: settings.Table) -> Table:
    """A table of the configuration. Touches nothing yet.

    Raises:
        ConfigError, UnsupportedError: as `Table.open` says.
    """
    return Table.open(table.uri, config.storage.options(table.uri), table.allowed_roots)


def execution(opened: Table, table: settings.Table, workers: int | None = None) -> Execution:
    """How the files of a table are read.

    Args:
        opened: the table.
        table: what the configuration says of it.
        workers: cores to keep busy; as many as the process may use where None.
    """
    select = all_columns if table.columns is None else partial(named_columns, table.columns)
    return Execution(
        opened.files, select, workers, BATCH_ROWS, on_missing=_on_missing(table), whole=table.columns is None
    )


def _on_missing(table: settings.Table) -> OnMissingFile:
    return _skip if table.on_missing_file == "skip" else raise_missing


def _skip(error: MissingFileError) -> None:
    logger.warning("%s; left out", error, extra={"table": error.table, "version": error.version})
