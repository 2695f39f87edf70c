"""The section `sink` of `kind: files`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator

from cdfd.config.settings import Flag, Folder, Settings, SinkSettings

if TYPE_CHECKING:
    from cdfd.sinks.files.connector import FilesConnector


class FilesSettings(SinkSettings):
    """Files in a folder per topic."""

    kind: Literal["files"] = "files"
    path: Folder
    format: Annotated[
        Literal["jsonl", "parquet"], BeforeValidator(lambda value: "jsonl" if value == "flat" else value)
    ] = "jsonl"
    fsync: Flag = True
    mode: Literal["0600", "0640", "0644", "0660", "0664"] = "0600"

    def places(self, topic: str) -> Mapping[str, str]:
        """A folder for each topic."""
        return {"path": f"{self.path.rstrip('/')}/{topic}"}

    def connector(self, config: Settings) -> FilesConnector:
        """The connector of folders."""
        from cdfd.sinks.files.connector import FilesConnector

        return FilesConnector(self)
