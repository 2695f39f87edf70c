"""Opens files for reading: paths, URIs of every store, and file objects."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeAlias

import pyarrow as pa

from cdfd.errors import CdfdError, ConfigError, StorageError
from cdfd.storage.base import Storage
from cdfd.storage.location import is_local, open_storage
from cdfd.trevni.rows import Run, run_all
from cdfd.trevni.source import STEP_BYTES, Source

Where: TypeAlias = "str | os.PathLike[str] | BinaryIO | pa.NativeFile"
"""A path, a URI, or an open file with random access."""

NEAR_STEP_BYTES = 512 << 10
"""Bytes of blocks to read at once from memory or a local file: few enough to stay in the processor's cache."""

StorageOptions: TypeAlias = Mapping[str, object]


def split(where: str | os.PathLike[str], options: StorageOptions | None = None) -> tuple[Storage, str]:
    """The store of a file's folder, and the file's name in it.

    Raises:
        ConfigError: the location names no file.
        UnsupportedError: cdfd has no storage for the URI's scheme.
    """
    uri = os.fspath(where)
    if not isinstance(uri, str):
        raise ConfigError("the location of a file is bytes", hint="Give text or a path")
    folder, slash, name = uri.rpartition("/")
    if not name:
        raise ConfigError("the location names a folder instead of a file", path=uri)
    if is_local(uri) and not slash:
        folder = "."
    return open_storage(folder + slash if folder in ("", "file:", "file://") else folder, options), name


@contextmanager
def open_source(where: Where, options: StorageOptions | None = None) -> Iterator[Source]:
    """A file for reading. A file object stays open.

    Raises:
        StorageError: the file cannot be opened, or is no regular file.
        ConfigError, UnsupportedError: as `split`.
        TrevniError: from the block, which then names the file.
    """
    if not isinstance(where, str | os.PathLike):
        yield source_of(where)
        return
    storage, name = split(where, options)
    try:
        with storage.open_input_file(name) as file:
            yield source_of(file)
    except CdfdError as error:
        if error.path == name:
            error.path = None
        raise error.within(path=os.fspath(where)) from None


def source_of(file: Any) -> Source:
    """The source of an open file. It is read by one thread at a time.

    Raises:
        StorageError: the file has no random access.
    """
    if not hasattr(file, "seek") or not hasattr(file, "read"):
        kind = type(file).__name__
        raise ConfigError(f"the file is of type {kind}", hint="Give a path, a URI or a file that is open for reading")
    lock = threading.Lock()
    if isinstance(file, pa.NativeFile):

        def read_at(start: int, length: int) -> bytes:
            with lock:
                part: bytes = file.read_at(length, start)
                return part

        near = isinstance(file, pa.OSFile | pa.MemoryMappedFile | pa.BufferReader)
        return Source(read_at, file.size(), NEAR_STEP_BYTES if near else STEP_BYTES)

    def read(start: int, length: int) -> bytes:
        with lock:
            file.seek(start)
            data: bytes = file.read(length)
            return data

    try:
        size = file.seek(0, os.SEEK_END)
    except (OSError, ValueError) as error:
        raise StorageError(f"the file has no random access: {error}") from error
    return Source(read, size)


@contextmanager
def in_threads() -> Iterator[Run]:
    """Decodes columns in parallel, in threads that end with the block."""
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="cdfd-trevni") as pool:

        def run(calls: Sequence[Any]) -> None:
            if len(calls) < 2:
                run_all(calls)
                return
            for future in [pool.submit(call) for call in calls]:
                future.result()

        yield run
