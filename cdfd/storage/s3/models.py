"""What requests look like, from botocore's files: they are large, and reading them is most of the time until a process's first request."""

from __future__ import annotations

import gzip
import os
from typing import Any

import orjson
from botocore.loaders import JSONFileLoader, Loader


class _Files(JSONFileLoader):  # type: ignore[misc]  # botocore has no types
    def load_file(self, file_path: str) -> Any:
        for ending, opened in ((".json", open), (".json.gz", gzip.open)):
            try:
                with opened(file_path + ending, "rb") as file:
                    return orjson.loads(file.read())
            except FileNotFoundError:
                continue
        return None


class CachedLoader(Loader):  # type: ignore[misc]  # as above
    """Botocore's loader, which looks at two thousand files to find out which services there are. One that was used serves all clients."""

    def __init__(self) -> None:
        super().__init__(file_loader=_Files())

    def list_available_services(self, type_name: str) -> list[str]:
        """Services that have a folder. It is only asked for the name of a service that is there, or for errors."""
        return sorted({name for place in self.search_paths if os.path.isdir(place) for name in os.listdir(place)})
