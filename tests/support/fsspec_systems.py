"""File systems of fsspec in place of those of Google Cloud Storage and Azure: they put conditionally, and without a moment between."""

import io
import os
import threading
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from cdfd.storage.durable import is_temporary, temporary_name

PROTOCOL = ("gs",)
"""One whose conditional puts cdfd relies on."""


class MemorySystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files in memory. fsspec's own checks whether a file exists, and then writes it; and all that open a file share a position in it."""

    protocol = PROTOCOL
    _lock = threading.RLock()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        with self._lock:
            super().pipe_file(path, value, mode, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        with self._lock:
            return super().ls(path, detail, **options)

    def rm_file(self, path: str) -> None:
        with self._lock:
            super().rm_file(path)

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return io.BytesIO(self.cat_file(path)) if mode == "rb" else super().open(path, mode, **options)


class LocalSystem(LocalFileSystem):  # type: ignore[misc]  # as above
    """Files in a folder, which appear with all their bytes."""

    protocol = PROTOCOL

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        folder = os.path.dirname(path)
        os.makedirs(folder, exist_ok=True)
        temporary = os.path.join(folder, temporary_name())
        with open(temporary, "xb") as file:
            file.write(value)
        if mode == "create":
            try:
                os.link(temporary, path)
            finally:
                os.unlink(temporary)
        else:
            os.replace(temporary, path)

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        entries = super().ls(path, detail=True, **options)
        entries = [entry for entry in entries if not is_temporary(os.path.basename(entry["name"]))]
        return entries if detail else [entry["name"] for entry in entries]
