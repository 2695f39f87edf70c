"""The section `sink` of `kind: files`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator

from cdfd.config.settings import Flag, Folder, SinkSettings, registry_name
from cdfd.runtime.registry import FILE_FORMATS


class FilesSettings(SinkSettings):
    """Files in a folder per topic."""

    kind: Literal["files"] = "files"
    path: Folder
    """Folder that gets a folder per topic. It must be outside of any table's folder."""

    format: Annotated[
        str, BeforeValidator(lambda value: "jsonl" if value == "flat" else value), registry_name(FILE_FORMATS)
    ] = "jsonl"
    """Form of the files. `jsonl` has a `flat` record on each line. You can also write `flat`."""

    fsync: Flag = True
    """Whether a delivery must be on the disk before it counts."""

    mode: Literal["0600", "0640", "0644", "0660", "0664"] = "0600"
    """Permissions of the files. See [File permissions](files.md#file-permissions)."""

    @property
    def form(self) -> str:
        """The format of the files."""
        return self.format

    def places(self, topic: str) -> Mapping[str, str]:
        """A folder for each topic."""
        return {"path": f"{self.path.rstrip('/')}/{topic}"}
