"""Reading a checkpoint's files: one Parquet file, its parts, or a V2 manifest with sidecars.

Only the needed columns are read. Protocol and metadata come first, because they say whether there are partition values and deletion vectors.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import pyarrow as pa
from rpds import HashTrieMap

from cdfd.delta import checkpoint as checkpoints
from cdfd.delta import commit as commits
from cdfd.delta import paths
from cdfd.delta.actions import Sidecar
from cdfd.delta.checkpoint import RowColumns, State
from cdfd.delta.commit import Commit
from cdfd.delta.files import ALL_FIELDS, FILES
from cdfd.delta.header import PartialHeader, prepare_schema
from cdfd.delta.snapshot import Base, Snapshot
from cdfd.errors import CdfdError, CheckpointError, DataError, LogError, NotFoundError, StorageError
from cdfd.log.segment import Checkpoint
from cdfd.scan.parquet.reader import AnyReader, open_parquet
from cdfd.storage.base import Stat, Storage
from cdfd.storage.durable import is_transient

BATCH_ROWS = 65_536
STATE_ROWS = 16_384
"""Rows of a batch in the search for actions that are not files. There are few, and often they come first."""
MEMORY_BYTES = 256 << 20
"""Bytes that the rows of any checkpoint may take in memory."""
MEMORY_RATIO = 64
"""Additional bytes that they may take, for each byte of its files. Paths and statistics compress to a tenth."""
ROW_BYTES = 1024
"""Bytes of the Python objects of a row, without its text."""


@dataclass(slots=True)
class MemoryBudget:
    """The memory budget of a checkpoint's rows, which all stay in memory. It depends on the size of the files."""

    left: int = MEMORY_BYTES

    def allow(self, file: AnyReader) -> None:
        """Add the budget of one more file."""
        self.left += MEMORY_RATIO * file.size

    def reserve(self, size: int) -> None:
        """Reserve so many bytes. LogError if the budget is exceeded."""
        self.left -= size
        if self.left < 0:
            raise LogError(
                f"its rows take more than {MEMORY_BYTES} bytes, and more than {MEMORY_RATIO} times the size of its files"
            )


async def read_snapshot(
    storage: Storage,
    checkpoint: Checkpoint,
    *,
    with_stats: bool,
    with_tombstones: bool,
    with_counts: bool = False,
    all_fields: bool = False,
    line_bytes: int | None = None,
) -> Snapshot:
    """The state in the checkpoint. `with_counts` reads the row counts of files, from their statistics; `all_fields` all fields of files.

    `line_bytes` is the limit of a line of JSON; see `commit.parse`.

    Raises:
        LogError: a file is missing, truncated, corrupt, or no checkpoint.
        UnsupportedError: its protocol requires a feature that cdfd does not implement.
    """
    state = await asyncio.to_thread(read_state, storage, checkpoint, line_bytes=line_bytes)
    begun = snapshot_of(checkpoint, state)
    header = begun.header
    columns = RowColumns(
        partitioned=bool(header.metadata.partition_columns),
        vectors=header.protocol.min_reader_version >= 3,
        stats=with_stats or with_counts,
        counts=with_counts and not with_stats,
        tombstones=with_tombstones,
        all_fields=all_fields,
    )
    base = await asyncio.to_thread(_read_base, storage, checkpoint, state.sidecars, columns, line_bytes)
    return replace(begun, base=base)


def snapshot_of(checkpoint: Checkpoint, state: State) -> Snapshot:
    """The state of a checkpoint without its files.

    Raises:
        LogError: it has no protocol or no metadata.
        UnsupportedError: its protocol requires a feature that cdfd does not implement.
    """
    header = PartialHeader(checkpoint.version).before(state.protocol, state.metadata, checkpoint.path).finish()
    domains = {name: domain for name, domain in state.domains.items() if not domain.removed}
    return Snapshot(header, txns=HashTrieMap(state.txns), domains=HashTrieMap(domains))


def read_state(
    storage: Storage,
    checkpoint: Checkpoint,
    names: Sequence[str] = checkpoints.STATE,
    *,
    line_bytes: int | None = None,
) -> State:
    """Everything but files: protocol, metadata, transactions, domains; or the actions of these `names`. Blocks.

    `line_bytes` is the limit of a line of JSON; see `commit.parse`.

    Raises:
        LogError: a file is missing, truncated, corrupt, or no checkpoint.
    """
    state, budget = State(), MemoryBudget()
    for stat in checkpoint.files:
        with _errors_naming(stat.path):
            if stat.path.endswith(".json"):
                checkpoints.from_commit(_read_json(storage, checkpoint.version, stat, line_bytes), state)
                continue
            with _open(storage, stat) as file:
                budget.allow(file)
                for name in names:
                    _read_action(file, name, state, budget)
    prepare_schema(state.metadata)
    return state


def _read_action(file: AnyReader, name: str, state: State, budget: MemoryBudget) -> None:
    """All rows of an action that is not a file. It stops at the first row of an action that occurs once."""
    if not state.has(name):
        for group in _groups_with(file, name):
            for batch in file.batches([name], [group], rows=STATE_ROWS):
                actions = len(batch) - batch.column(0).null_count
                budget.reserve(actions * ROW_BYTES + (batch.nbytes if actions else 0))
                checkpoints.read_state(batch, state)
                if state.has(name):
                    return


def _read_base(
    storage: Storage, checkpoint: Checkpoint, sidecars: list[Sidecar], columns: RowColumns, line_bytes: int | None
) -> Base:
    adds, removes, budget = list[pa.RecordBatch](), list[pa.RecordBatch](), MemoryBudget()
    for stat in chain(checkpoint.files, sidecar_stats(sidecars)):
        with _errors_naming(stat.path):
            if stat.path.endswith(".json") and stat in checkpoint.files:
                with_stats = columns.stats and not columns.counts
                manifest = _read_json(storage, checkpoint.version, stat, line_bytes, with_stats=with_stats)
                added, removed = checkpoints.from_commit(manifest, State(), all_fields=columns.all_fields)
                adds.append(added)
                removes.append(removed)
                continue
            with _open(storage, stat) as file:
                budget.allow(file)
                for batch in _batches(file, columns.leaves(file.schema_arrow)):
                    added = checkpoints.file_rows(batch, "add", all_fields=columns.all_fields)
                    adds.append(checkpoints.counted(added) if columns.counts else added)
                    budget.reserve(adds[-1].nbytes)
                    if columns.tombstones:
                        removes.append(checkpoints.file_rows(batch, "remove", all_fields=columns.all_fields))
                        budget.reserve(removes[-1].nbytes)
    schema = ALL_FIELDS if columns.all_fields else FILES
    return Base(pa.Table.from_batches(adds, schema), pa.Table.from_batches(removes, schema))


def sidecar_stats(sidecars: Iterable[Sidecar]) -> Iterator[Stat]:
    """The files of sidecars, as the checkpoint names them.

    Raises:
        LogError: the checkpoint names one twice.
    """
    names = set[str]()
    for sidecar in sidecars:
        path = f"{paths.LOG}/{paths.SIDECARS}/{sidecar.path}"
        if sidecar.path in names:
            # A repeated name takes a few bytes, but reading its file again may take gigabytes.
            raise LogError("the checkpoint names a sidecar twice", path=path)
        names.add(sidecar.path)
        yield Stat(path, sidecar.size_in_bytes, sidecar.modification_time)


def adds(
    storage: Storage, version: int, stat: Stat, columns: RowColumns, line_bytes: int | None = None
) -> Iterator[pa.RecordBatch]:
    """The files that one file of a checkpoint lists, a batch at a time, in the `FILES` schema. Columns that are not read are null.

    `line_bytes` is the limit of a line of JSON; see `commit.parse`.

    Raises:
        LogError: the file is missing, truncated, corrupt, or no checkpoint.
    """
    with _errors_naming(stat.path):
        if stat.path.endswith(".json"):
            manifest = _read_json(storage, version, stat, line_bytes, with_stats=columns.stats)
            yield checkpoints.from_commit(manifest, State())[0]
            return
        with _open(storage, stat) as file:
            for batch in _batches(file, columns.leaves(file.schema_arrow)):
                yield checkpoints.file_rows(batch, "add")


def _read_json(
    storage: Storage, version: int, stat: Stat, line_bytes: int | None, *, with_stats: bool = False
) -> Commit:
    with storage.open_input_file(stat.path, stat.size) as file:
        chunks = iter(partial(file.read, 16 << 20), b"")
        return commits.parse(version, chunks, with_stats=with_stats, line_bytes=line_bytes)


@contextlib.contextmanager
def _open(storage: Storage, stat: Stat) -> Iterator[AnyReader]:
    with storage.open_input_file(stat.path, stat.size) as source, open_parquet(source) as file:
        checkpoints.check_schema(file.schema_arrow)
        yield file


def _groups_with(file: AnyReader, name: str) -> Iterator[int]:
    """Row groups with a row of an action: a checkpoint has few rows that are not files.

    They are found by reading a column that every such row has. Statistics would be faster, but pyarrow crashes if they are damaged (seen in
    26.0).
    """
    key = checkpoints.key(file.schema_arrow, name)
    if key is not None:
        for group in range(file.metadata.num_row_groups):
            batches = file.batches([key], [group], rows=STATE_ROWS)
            if any(batch.column(0).field(0).null_count < len(batch) for batch in batches):
                yield group


def _batches(file: AnyReader, columns: list[str]) -> Iterator[pa.RecordBatch]:
    if columns:
        yield from file.batches(columns, rows=BATCH_ROWS)


@contextlib.contextmanager
def _errors_naming(path: str) -> Iterator[None]:
    """Turn errors of reading a checkpoint's file into errors of cdfd that name the file."""
    hint = "Remove the damaged checkpoint if the older log entries still exist, or write a new one"
    try:
        yield
    except NotFoundError:
        raise CheckpointError("a file of the checkpoint is missing", path=path, hint=hint) from None
    except (DataError, LogError) as error:
        # The Parquet reader does not know that the file belongs to the log.
        raise CheckpointError(
            error.what, version=error.version, path=error.path or path, hint=error.hint or hint
        ) from None
    except CdfdError as error:
        raise error.within(path=path) from None
    # ValueError includes UnicodeDecodeError, for column names that are not text.
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        if is_transient(error):
            raise StorageError(f"the checkpoint cannot be read: {error}", path=path, retriable=True) from error
        raise CheckpointError(f"the checkpoint cannot be read: {error}", path=path, hint=hint) from error
