"""Stores for the tables of cases: in memory, behind the scheme `fuzz`, or in a folder next to files that no command may show."""

import contextlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdfd.errors import NotFoundError
from cdfd.log import tailer
from cdfd.runtime.registry import STORES
from cdfd.storage.base import Stat, check_range
from tests.support.fuzz.cases import Case, Violation
from tests.support.fuzz.lakes import Files, parquet
from tests.support.memory_storage import MemoryStorage, _Object

URI = "fuzz://lake/t"
BEGINNING_MS = 1_700_000_000_000
BOUND = 64 << 20
"""Bytes of a log. No reader has a reason to read so much at once."""
CANARY = "the canary that nobody may see"
_current: list[MemoryStorage] = []


class Zeros(io.RawIOBase):
    """A large file with nothing in it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.at = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def read(self, count: int = -1) -> bytes:
        length = self.size - self.at if count < 0 else min(count, self.size - self.at)
        if length > BOUND:
            raise Violation("unbounded read", f"{length} bytes")
        self.at += length
        return bytes(length)


class Stored(MemoryStorage):
    """A table in memory, whose objects are of the same times in every run; some may be large and empty."""

    def __init__(self, files: Files, args: Mapping[str, Any]) -> None:
        super().__init__(URI, now_ms=self._time)
        self._count = 0
        self.remote = args.get("remote", False)
        self._sparse: dict[str, int] = args.get("sparse", {})
        times = args.get("times", {})
        for path in sorted(files.keys() | self._sparse.keys()):
            kind = type(self)._object
            self._objects[path] = kind(files.get(path, b""), times.get(path, self._time()))

    @staticmethod
    def _object(data: bytes, modified_ms: int) -> Any:
        return _Object(data, modified_ms)

    def _time(self) -> int:
        self._count += 1
        return BEGINNING_MS + 1000 * self._count

    async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        size = self._sparse.get(path)
        if size is None:
            return await super().read(path, start, length)
        check_range(path, start, length)
        file = Zeros(size)
        file.seek(min(start, size))
        return file.read(-1 if length is None else length)

    def _stat(self, path: str) -> Stat:
        file_stat = super()._stat(path)
        return Stat(path, self._sparse.get(path, file_stat.size), file_stat.modified_ms)

    def open_input_file(self, path: str, size: int | None = None) -> pa.NativeFile:
        large = self._sparse.get(path)
        return super().open_input_file(path) if large is None else pa.PythonFile(Zeros(large), "r")


def _open(uri: str, options: object) -> MemoryStorage:
    if uri != URI or not _current:
        raise NotFoundError("nothing is there", path=uri)
    return _current[-1]


# These tables have no writer: an incomplete entry stays incomplete.
tailer.SETTLE_SECONDS = 0.01
STORES.add("fuzz", _open)


@contextlib.contextmanager
def in_memory(case: Case) -> Iterator[str]:
    """The URI of the case's table."""
    _current[:] = [Stored(case.files, case.args)]
    try:
        yield URI
    finally:
        _current.clear()


@contextlib.contextmanager
def on_disk(case: Case) -> Iterator[str]:
    """The path of the case's table, in a folder that is removed afterwards; nothing may be written while it is read.

    `links` (path -> target), `sparse` (path -> size), `pipes` and `folders` are made besides the files. `{outside}` in a link's target is a
    folder that is not the table's.
    """
    shared = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=shared if os.path.isdir(shared) else None) as folder:
        root, outside = Path(folder, "t"), Path(folder, "outside")
        outside.mkdir()
        Path(outside, "canary.parquet").write_bytes(parquet(pa.table({"id": [-1], "v": [CANARY]})))
        Path(outside, "00000000000000000001.json").write_text(f'{{"commitInfo":{{"x":"{CANARY}"}}}}\n{CANARY}\n')
        root.mkdir()
        for number, (path, data) in enumerate(sorted(case.files.items())):
            _write(root, path, data, BEGINNING_MS + 1000 * (number + 1))
        for path, size in case.args.get("sparse", {}).items():
            if _write(root, path, b""):
                os.truncate(root / path, size)
        for path, target in case.args.get("links", {}).items():
            if _write(root, path, None):
                os.symlink(target.replace("{outside}", str(outside)).replace("{root}", str(root)), root / path)
        for path in case.args.get("pipes", ()):
            if _write(root, path, None):
                os.mkfifo(root / path)
        for path in case.args.get("folders", ()):
            if _write(root, path, None):
                (root / path).mkdir()
        with _watched(folder):
            yield str(root)


def _write(root: Path, path: str, data: bytes | None, time_ms: int = BEGINNING_MS) -> bool:
    """Whether a file could be made; what is there goes. Without data, only room for it is made."""
    try:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if (root / path).is_dir() and not (root / path).is_symlink():
            shutil.rmtree(root / path)
        (root / path).unlink(missing_ok=True)
        if data is not None:
            (root / path).write_bytes(data)
            os.utime(root / path, (time_ms / 1000, time_ms / 1000))
    except (OSError, ValueError):
        return False
    return True


_watching: list[str] = []
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_seen: list[str] = []


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event == "open" and isinstance(args[2], int) and args[2] & _WRITES and str(args[0]) != os.devnull:
        _seen.append(f"{event} {args[0]!r:.300}")
    elif event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"):
        _seen.append(f"{event} {args!r:.300}")


def forget_writes(*, keep: bool = False) -> None:
    """Forget the writes so far, which belong to no case. With `keep`, forget the writes from now on instead."""
    if keep:
        _watching.clear()
    else:
        _seen.clear()


_hooked: list[bool] = []


@contextlib.contextmanager
def _watched(folder: str) -> Iterator[None]:
    """Raise `Violation` if the block writes to a file."""
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked.append(True)
    _watching.append(folder)
    _seen.clear()
    try:
        yield
    finally:
        _watching.clear()
    if _seen:
        raise Violation("something was written", _seen[0])
