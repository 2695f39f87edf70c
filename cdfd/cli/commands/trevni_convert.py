"""`cdfd trevni convert`: rows from one format to another, batch by batch."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pyarrow as pa

from cdfd.cli.commands.counts import quantity
from cdfd.cli.commands.trevni import line_encoder
from cdfd.errors import ConfigError, DataError, NotFoundError, StorageError
from cdfd.runtime.progress_line import ProgressLine
from cdfd.storage import durable
from cdfd.trevni.files.formats import READERS, WRITERS, Rows, format_of, name_damaged_file
from cdfd.trevni.files.opening import split
from cdfd.trevni.files.reading import TrevniFile
from cdfd.trevni.files.writing import TrevniWriter

logger = logging.getLogger("cdfd.trevni")


def run(
    source: str,
    target: str,
    source_format: str | None = None,
    target_format: str | None = None,
    codec: str = "snappy",
    checksum: str = "crc32",
    columns: tuple[str, ...] | None = None,
    *,
    overwrite: bool = False,
) -> str:
    """Convert a file. The target appears as a whole, or not at all.

    Returns:
        A line that says how many rows there are.

    Raises:
        CdfdError: a file cannot be read or written, or the target cannot have its types.
    """
    source_format, target_format = format_of(source, source_format), format_of(target, target_format)
    if "trevni" not in (source_format, target_format):
        raise ConfigError("neither SOURCE nor TARGET is a Trevni file", hint="Give a name that ends in .trv")
    if not overwrite and (os.path.exists(target) or (target_format == "trevni" and _is_stored(target))):
        raise ConfigError("the target already exists", path=target, hint="Give --overwrite")
    progress = ProgressLine(logger, "converted", source, terminal=sys.stderr.isatty())
    count = 0
    with ExitStack() as stack:
        rows = stack.enter_context(_source(source, source_format, columns))
        write = stack.enter_context(_target(target, target_format, rows.schema, codec, checksum))
        stack.callback(progress.close)
        stack.enter_context(name_damaged_file(source))
        for batch in rows.batches:
            write(batch)
            count += batch.num_rows
            progress.count(None, batch.num_rows)
    return f"{quantity(count, 'row')} written to {target}\n"


def _is_stored(target: str) -> bool:
    storage, name = split(target)
    try:
        asyncio.run(storage.stat(name))
    except NotFoundError:
        return False
    return True


@contextmanager
def _source(path: str, kind: str, columns: tuple[str, ...] | None) -> Iterator[Rows]:
    if kind == "trevni":
        with TrevniFile(path) as file:
            schema = file.schema
            if columns is not None:
                schema = file.read(columns, range(0)).schema
            yield Rows(schema, file.iter_batches(columns=columns), file.num_rows)
        return
    with ExitStack() as stack:
        with name_damaged_file(path):
            rows = stack.enter_context(READERS[kind](path))
        if columns is not None:
            unknown = [name for name in columns if name not in rows.schema.names]
            if unknown:
                names = ", ".join(rows.schema.names)[:200]
                raise ConfigError(f"there is no column {unknown[0]!r:.100}", hint=f"Choose from {names}")
            wanted = [name for name in rows.schema.names if name in columns]
            schema = pa.schema([rows.schema.field(name) for name in wanted])
            rows = Rows(schema, (batch.select(wanted) for batch in rows.batches), rows.count)
        yield rows


@contextmanager
def _target(
    path: str, kind: str, schema: pa.Schema, codec: str, checksum: str
) -> Iterator[Callable[[pa.RecordBatch], object]]:
    try:
        if kind == "trevni":
            with TrevniWriter(path, schema, codec=codec, checksum=checksum) as writer:
                yield writer.write_batch
            return
        # It takes its name when the block ends. Rows may be confidential, so it is for this user only.
        with durable.replacing(path, mode=0o600) as file:
            if kind == "jsonl":
                lines = line_encoder(schema)
                yield lambda batch: file.write(lines(batch).encode())
            else:
                with WRITERS[kind](file, schema) as sink:
                    yield sink.write_batch
    except OSError as error:
        raise StorageError(f"cannot write: {error.strerror or error}", path=path) from error
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"the file cannot have these rows: {error}", path=path) from error
