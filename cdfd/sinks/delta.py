"""The section `sink` of `kind: delta`. This version cannot deliver to it."""

from collections.abc import Mapping
from typing import Literal

from cdfd.config.settings import Settings, SinkSettings, Uri
from cdfd.errors import UnsupportedError
from cdfd.sinks.base import Connector


class DeltaSettings(SinkSettings):
    """Delta tables of change rows, one per topic, in one location. This version cannot deliver to them."""

    kind: Literal["delta"] = "delta"
    path: Uri
    """Place that gets a table per topic."""

    def places(self, topic: str) -> Mapping[str, str]:
        """A table for each topic."""
        return {"path": f"{self.path.rstrip('/')}/{topic}"}

    def connector(self, config: Settings) -> Connector:
        """Not supported yet."""
        raise UnsupportedError("this version has no sink of kind delta", hint="Use `sink.kind: kafka`, or `files`")
