"""The section of a table: an entry of `tables` with a `uri`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    model_validator,
)

from cdfd.config import values
from cdfd.config.fields import AS_TEXT, Count, Flag, Name, SecretText, Section, Size, TableUri, Text, Uri
from cdfd.config.problems import Conflicts, Path, refuse
from cdfd.config.values import Secret
from cdfd.errors import ConfigError
from cdfd.plan.shape.chosen import Chosen
from cdfd.plan.shape.parser import parse_filter
from cdfd.plan.shape.predicate import Predicate

# A configuration is read without Arrow, which masks and shapes load: commands that read no table start faster.
if TYPE_CHECKING:
    from cdfd.plan.row_options import RowOptions
    from cdfd.plan.shape.masks import Mask
    from cdfd.plan.shape.shape import Shape


def parse_where(value: object) -> Predicate:
    """A filter of rows. Values of columns are no secrets, so the message shows the place."""
    if isinstance(value, Predicate):
        return value
    if not isinstance(value, str):
        raise ValueError("expected a filter as text")  # noqa: TRY004 # pydantic takes ValueError alone
    try:
        return parse_filter(value)
    except ConfigError as error:
        raise ValueError(error.what) from None


def parse_column(value: object) -> Chosen:
    """A column: its name, or its name and the one to publish it by."""
    if chosen := Chosen.of(value):
        return chosen
    raise ValueError("expected the name of a column, or a mapping such as {name: amount, as: value}")


ColumnChoice = Annotated[
    Chosen,
    PlainValidator(parse_column),
    PlainSerializer(lambda column: column.name if column.alias is None else {"name": column.name, "as": column.alias}),
]
OnMissingFile = Annotated[
    Literal["fail", "snapshot", "skip"],
    BeforeValidator(lambda value: "snapshot" if value == "resnapshot" else value),  # its name in 0.2.0
]
Filter = Annotated[Predicate, PlainValidator(parse_where), AS_TEXT]


def _long_key(secret: Secret) -> Secret:
    from cdfd.plan.shape.masks import SHORTEST_KEY

    if len(secret.reveal().encode()) < SHORTEST_KEY:
        raise ValueError(f"expected at least {SHORTEST_KEY} bytes, such as the output of `openssl rand -hex 32`")
    return secret


class ColumnMask(Section):
    """How the values of a column are hidden."""

    method: Literal["nullify", "constant", "truncate", "hmac_sha256"]
    """`nullify`: null. `constant`: the same value everywhere. `truncate`: the first characters or bytes. `hmac_sha256`: a
    hash by a secret key, as 64 hexadecimal digits; equal values stay equal.
    """

    value: Text | None = None
    """With `constant`: the value."""

    length: Annotated[int, BeforeValidator(values.whole), Field(ge=0)] | None = None
    """With `truncate`: characters of a text, or bytes, to keep."""

    hmac_key: Annotated[SecretText, AfterValidator(_long_key)] | None = None
    """With `hmac_sha256`: the key, at least 16 bytes. The daemon reads its file when it opens the table."""

    @model_validator(mode="after")
    def _check(self) -> ColumnMask:
        for name, method in (("value", "constant"), ("length", "truncate"), ("hmac_key", "hmac_sha256")):
            is_set = getattr(self, name) is not None
            if is_set != (self.method == method):
                raise Conflicts(((name,), f"has no use with {self.method}" if is_set else f"required with {method}"))
        return self

    def mask(self, column: str) -> Mask:
        """The mask. Its key is read from its file."""
        from cdfd.config.shapes import mask_of

        return mask_of(column, self.set_fields())


class RateLimits(Section):
    """Rows and bytes a second. A delivery is a transaction, and is never split: after a large one, the next waits longer."""

    rows_per_second: Count | None = None
    """Change rows a second.

    Default: no limit.
    """

    bytes_per_second: Size | None = None
    """Bytes a second, of the data files that are read.

    Default: no limit.
    """


class TableNames(Section):
    """The place of a table, its names, and the key of its rows."""

    uri: TableUri
    """Root of the table: the folder that has `_delta_log`. Or its name in a catalog: `uc://catalog.schema.table`, `glue://database.table`."""

    name: Name = ""
    """Name in positions, transactional ids, metrics and on the command line. Unique.

    Default: the last segment of `uri`.
    """

    topic: Name = ""
    """Topic, or folder below `sink.path`. Unique.

    Default: `sink.topics.prefix`, then the last segment of `uri`.
    """

    key: tuple[Text, ...] = ()
    """Columns that identify a row: the key of the records. `refine` may pair updates by them."""


class TableOptions(Section):
    """The options of a table, which an entry with `discover` gives to all tables that it finds."""

    start: Annotated[str, PlainValidator(values.start)] = "snapshot"
    """Where delivery begins if there is no position yet. `{after: 41}` begins with the version, or the time, after the one named.
    If `discover` finds a table while the daemon runs, `latest` leaves out the rows from before that.
    """

    changes: Literal["auto", "cdf", "files"] = "auto"
    """Source of changes. `auto`: change data files if there are any, otherwise data files. `cdf`: refuse a table
    without a change data feed. `files`: ignore change data files.
    """

    refine: Literal["off", "rows", "key", "auto"] = "auto"
    """How updates are found in versions without change data files. `rows`: by row tracking. `key`: by `key`, which you
    must then set. `auto`: by row tracking if the table has it, otherwise by `key` if you set one. `off`: an update is a delete and an insert.
    """

    drop_unchanged: Flag = False
    """Whether updates that change nothing are left out."""

    columns: tuple[ColumnChoice, ...] | None = None
    """Columns to publish. They must contain the key. `{name: amount, as: value}` publishes a column by another name.

    Default: all.
    """

    where: Filter | None = None
    """Rows to publish, as an SQL expression such as `region = 'de' AND amount > 10`. An update that enters the filter is
    an insert, and one that leaves it is a delete.
    """

    mask: Mapping[str, ColumnMask] = {}
    """Masks by column: how its values are hidden. Every table must have the columns."""

    exclude_change_types: tuple[Literal["insert", "update_preimage", "update_postimage", "delete"], ...] = ()
    """Change rows to leave out, by their type after `where`."""

    headers: Mapping[str, Text] = {}
    """Record headers by name: the column with the value. Needs a Kafka sink and a format with a record for each row."""

    limits: RateLimits = RateLimits()
    """Rate limits of each table alone, besides those of the pipeline."""

    on_missing_file: OnMissingFile = "fail"
    """Reaction if VACUUM has removed a file that the daemon still has to read. `snapshot` was called `resnapshot`, which still works."""

    on_schema_change: Literal["continue", "stop"] = "continue"
    """Reaction if a column is renamed, dropped or changes its type."""

    allowed_roots: tuple[Uri, ...] = ()
    """Places outside the table to which absolute file paths in the log (clones) and symbolic links may lead. Folders that
    `discover` matches may be symbolic links to there, too.
    """

    path_prefixes: Mapping[str, Uri] = {}
    """Places of absolute file paths in the log, by prefix: `{dbfs:/mnt/lake: s3://lake}`. They need not be in `allowed_roots`."""

    max_log_line: Size = 128 << 20
    """Limit of a line of a log entry or of a checkpoint in JSON, which is held in memory. Actions that cdfd ignores may be longer."""


class Table(TableOptions, TableNames):
    """A table whose changes the daemon publishes.

    `name` tells the tables of a pipeline apart: in positions, transactional ids, metrics and on the command line.
    """

    sinks: tuple[Text, ...] | None = None
    """Names of the sinks of the table, in a file with `sinks`.

    Default: all.
    """

    _found_below: str | None = PrivateAttr(default=None)

    @property
    def found_below(self) -> str | None:
        """The folder in which a search found the table; None: the configuration names the table itself.

        Users that create folders there are not trusted: see `cdfd.storage.location.open_table`.
        """
        return self._found_below

    def below(self, folder: str | None) -> Table:
        """The same settings of a table that a search found in a folder."""
        table = self.model_copy()
        table._found_below = folder
        return table

    @model_validator(mode="before")
    @classmethod
    def _take_names_from_uri(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("uri"), str):
            return data
        segment = values.last_segment(data["uri"])
        return data | {key: segment for key in ("name", "topic") if data.get(key) is None}

    @model_validator(mode="after")
    def _check_columns(self) -> Table:
        conflicts: list[tuple[Path, str]] = []
        if self.columns == ():
            conflicts.append((("columns",), "at least one is required; leave the key out for all"))
        # Case does not count, as elsewhere in Delta.
        key, names = (
            [name.lower() for name in listed] for listed in (self.key, (each.name for each in self.columns or ()))
        )
        for place, listed in (("key", key), ("columns", names)):
            if len(set(listed)) < len(listed):
                conflicts.append(((place,), "the same column twice"))
        if self.columns and not set(key) <= set(names):
            conflicts.append((("key",), "names columns that `columns` leaves out"))
        conflicts += self._shape_conflicts()
        if self.refine == "key" and not self.key:
            conflicts.append((("refine",), "key needs a key: name the columns that identify a row"))
        refuse(conflicts)
        return self

    def _shape_conflicts(self) -> Iterator[tuple[Path, str]]:
        """The settings of the shape that contradict each other."""
        if self.columns is None and not (self.mask or self.exclude_change_types or self.headers):
            return
        from cdfd.plan.shape.shape import check_key_masks

        try:
            _ = self.shape
        except ConfigError as error:
            yield (("columns",) if self.columns else ("exclude_change_types",)), error.what
            return
        for name, mask in self.mask.items():
            try:
                check_key_masks({name: mask.mask(name)}, self.key)
            except ConfigError as error:
                yield ("mask", name), error.what
        published = {name.lower() for name in self.shape.names or ()}
        for header, column in self.headers.items():
            if header.startswith("__") or not header:
                yield ("headers", header), "expected a name that does not begin with __"
            if self.columns and column.lower() not in published:
                yield ("headers", header), "names a column that `columns` leaves out"

    @property
    def shape(self) -> Shape:
        """The shape of its rows. Keys of masks are read from their files."""
        from cdfd.plan.shape.shape import Shape

        return Shape(
            self.columns,
            self.where,
            tuple((name, mask.mask(name)) for name, mask in self.mask.items()),
            self.exclude_change_types,
        )

    @property
    def rows(self) -> RowOptions:
        """The options of its rows. Keys of masks are read from their files."""
        from cdfd.plan.row_options import RowOptions

        return RowOptions(self.changes, self.refine, self.key, self.shape, self.drop_unchanged)

    @property
    def published_headers(self) -> Mapping[str, str]:
        """The columns of record headers by their published names."""
        return dict(zip(self.headers, self.shape.published_key(tuple(self.headers.values())), strict=True))


def owners(name: str) -> list[str]:
    """The names of tables of which a part or a backfill may have this name in Kafka."""
    return [name[: match.start()] for match in _OF_PARTS.finditer(name)]


_OF_PARTS = re.compile(r"(?=\.part\.|\.backfill)")
