"""Files, log entries and schemas are decoded by the real readers, each only once: most are read again and again, in this seed and others.

The cached values are results of pure functions of the same bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

from cdfd.delta import commit, header, paths
from cdfd.delta.actions import Metadata
from cdfd.delta.checkpoint import STATE, State
from cdfd.delta.types.schema import TableSchema
from cdfd.log import checkpoint_files
from cdfd.log.segment import Checkpoint
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.scan.image_order import ReorderBuffer
from cdfd.scan.joined import Scanned
from cdfd.scan.read import ScanReader, scan_errors
from cdfd.scan.table_files import TableFiles
from tests.support.simulation.storage import Held

REMEMBERED = 4096
"""Log entries, and names of them."""
_decoded: dict[tuple[object, ...], list[Scanned]] = {}
_states: dict[tuple[object, ...], State] = {}
_read = ScanReader.read
_read_state = checkpoint_files.read_state


def _read_once(
    reader: ScanReader, plan: ChangePlan, scan: FileScan, buffer: ReorderBuffer | None = None
) -> Iterator[Scanned]:
    """The batches of `ScanReader.read`. Opening the file may fail, as without the cache."""
    if buffer is not None:
        yield from _read(reader, plan, scan, buffer)
        return
    files = reader.files
    with scan_errors(plan, scan, files.storage.uri, reader.on_missing):
        with files.open(scan.path, scan.size or None):
            data = files.storage.contents(scan.path)  # type: ignore[attr-defined]
        names = tuple(reader.schema_of(plan, scan).names)
        key = (data, scan.path, scan.change_type, scan.only, scan.without, scan.image_phase, scan.pairs, names)
        if key not in _decoded:
            _decoded[key] = list(_read(replace(reader, files=TableFiles(Held(data), Held)), plan, scan))
        for scanned in _decoded[key]:
            yield scanned._replace(plans=((plan, scanned.rows.num_rows),))


def _state_once(
    storage: Any, checkpoint: Checkpoint, names: Sequence[str] = STATE, *, line_bytes: int | None = None
) -> State:
    """The content of a checkpoint besides files. A checkpoint is one file here. Opening it may fail, as without the cache."""
    (stat,) = checkpoint.files
    with checkpoint_files._errors_naming(stat.path), storage.open_input_file(stat.path, stat.size):
        data = storage.contents(stat.path)
    key = (data, *names)
    if key not in _states:
        _states[key] = _read_state(Held(data), checkpoint, names, line_bytes=line_bytes)
    return _states[key]


def _once(parse: Callable[..., Any]) -> Callable[..., Any]:
    known = lru_cache(REMEMBERED)(parse)

    def parsed(version: int, data: object, **options: bool) -> Any:
        return (known if isinstance(data, bytes) else parse)(version, data, **options)

    return parsed


class _Schemas:
    """`TableSchema`, as far as headers need it."""

    _known: ClassVar[dict[tuple[object, ...], TableSchema]] = {}

    @classmethod
    def of(cls, metadata: Metadata) -> TableSchema:
        key = (metadata.schema_string, metadata.partition_columns, *sorted(metadata.configuration.items()))
        if key not in cls._known:
            cls._known[key] = TableSchema.of(metadata)
        return cls._known[key]


_REMEMBERING: tuple[tuple[Any, str, Any], ...] = (
    (ScanReader, "read", _read_once),
    (checkpoint_files, "read_state", _state_once),
    (commit, "parse", _once(commit.parse)),
    (header, "scan", _once(header.scan)),
    (header, "TableSchema", _Schemas),
    (paths, "parse_name", lru_cache(REMEMBERED)(paths.parse_name)),
)
_REAL = [(module, name, getattr(module, name)) for module, name, _ in _REMEMBERING]


@contextmanager
def decoded_once() -> Iterator[None]:
    """Within it, they are."""
    for module, name, function in _REMEMBERING:
        setattr(module, name, function)
    try:
        yield
    finally:
        for module, name, function in _REAL:
            setattr(module, name, function)
