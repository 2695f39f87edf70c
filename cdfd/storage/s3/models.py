"""Loads botocore's API models faster: the files are large, and reading them takes most of the time until a process's first request."""

import gc
import gzip
import os
from contextlib import suppress
from typing import Any

import orjson
from botocore.loaders import JSONFileLoader, Loader


class _Files(JSONFileLoader):  # type: ignore[misc]  # botocore has no types
    def load_file(self, file_path: str) -> Any:
        # A model has so many objects that a full garbage collection would start, which takes longer than parsing it.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            for ending, open_file in ((".json", open), (".json.gz", gzip.open)):
                with suppress(FileNotFoundError), open_file(file_path + ending, "rb") as file:
                    return orjson.loads(file.read())
        finally:
            if was_enabled:
                gc.enable()
        return None


class CachedLoader(Loader):  # type: ignore[misc]  # as above
    """A loader that all clients share. Botocore's own lists two thousand files to find the services."""

    FILE_LOADER_CLASS = _Files

    def list_available_services(self, type_name: str) -> list[str]:
        """Services that have a folder. Botocore only calls this to check the name of an existing service, or for error messages."""
        return sorted({name for place in self.search_paths if os.path.isdir(place) for name in os.listdir(place)})
