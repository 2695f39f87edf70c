"""The section `sink` of `kind: delta`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from cdfd.config import values
from cdfd.config.fields import Flag, Size
from cdfd.config.problems import Conflicts
from cdfd.config.settings import SinkSettings, Table, Text, Uri

_WHOLE_STARTS = ("snapshot", "earliest")


class DeltaSettings(SinkSettings):
    """A Delta table of change rows, or of the source's rows, for each topic, in one folder or bucket prefix."""

    kind: Literal["delta"] = "delta"
    path: Uri
    """Place that gets a table per topic: a folder, or a URI such as `s3://bucket/copies`. It must be outside of any source table."""

    mode: Literal["changelog", "mirror"] = "changelog"
    """`changelog` appends every change row. `mirror` keeps the rows of the source, and needs the `key` of each table."""

    change_feed: Flag = False
    """With `mirror`: whether the target has a change data feed, so that others can follow it."""

    partition_by: tuple[Text, ...] = ()
    """Columns by which a target is partitioned when it is created. Change columns can be among them."""

    on_missing_column: Literal["keep", "follow", "stop"] = "keep"
    """If the source drops or renames a column: `keep` leaves it in the target, with nulls; `follow` drops or renames it there too, by column
    mapping; `stop` stops the table. With `mirror`, `keep` loads the target again from a snapshot."""

    compression: Literal["snappy", "zstd", "none"] = "snappy"
    """Compression of data files, unless the target has the property `delta.parquet.compression.codec`."""

    file_size: Size = 64 << 20
    """A data file ends at about this size. The daemon holds three times as much in memory at most."""

    checkpoint_interval: Annotated[int, BeforeValidator(values.whole), Field(ge=0)] = 100
    """Versions of a target between two checkpoints, which other readers need to open it quickly. 0: none is written."""

    log_cleanup: Annotated[bool, BeforeValidator(values.flag)] = True
    """Whether log entries of a target are removed after a checkpoint, once they are older than its `delta.logRetentionDuration`."""

    compaction: Annotated[bool, BeforeValidator(values.flag)] = True
    """Whether the daemon compacts small files after a checkpoint, in a version that changes no data. It leaves out deleted rows."""

    @model_validator(mode="after")
    def _check_mode(self) -> DeltaSettings:
        if self.change_feed and self.mode != "mirror":
            raise Conflicts((("change_feed",), f"has no use with mode {self.mode}; expected mirror"))
        return self

    @property
    def form(self) -> str:
        """The mode."""
        return self.mode

    def refusals(self, table: Table) -> Sequence[tuple[str, str]]:
        """The settings because of which a mirror of a table would not have all of its rows."""
        if self.mode != "mirror":
            return ()
        refused = (
            ("key", not table.key, "required: name the columns that identify a row"),
            ("start", table.start not in _WHOLE_STARTS, f"expected one of {', '.join(_WHOLE_STARTS)}"),
            ("exclude_change_types", bool(table.exclude_change_types), "leave it out"),
            ("on_missing_file", table.on_missing_file == "skip", "expected one of fail, snapshot"),
        )
        return [
            (name, f"{text}, because a mirror has all rows of its source") for name, refusal, text in refused if refusal
        ]

    def places(self, topic: str) -> Mapping[str, str]:
        """A table for each topic."""
        return {"path": f"{self.path.rstrip('/')}/{topic}"}
