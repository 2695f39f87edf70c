"""The entries of `tables` that stand for many tables: a pattern of folders, and the settings of the tables that are found.

Everything here is pure: `cdfd.daemon.membership.discovery` looks for the folders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Self
from urllib.parse import quote

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, create_model

from cdfd.config import values
from cdfd.config.fields import Name, Seconds, Section, TableUri, Text
from cdfd.config.problems import conflicts_of, quoted
from cdfd.config.table import Table, TableOptions
from cdfd.errors import ConfigError

_WILDCARDS = re.compile(r"[*?\[]")
_CATALOGS = ("uc://", "glue://")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_PLACEHOLDERS = ("table", "path", "parent")


@dataclass(frozen=True, slots=True)
class FolderPattern:
    """A pattern of folders: `s3://lake/*/orders` -> root `s3://lake`, levels `*` and `orders`.

    Attributes:
        root: the folder before the first wildcard.
        levels: a pattern for each level below the root.
    """

    root: str
    levels: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """The pattern in a path or a URI.

        Raises:
            ValueError: it has no wildcard, or one where none can be.
        """
        scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/+", text)
        if scheme is not None and scheme[0].lower() in _CATALOGS:
            schema, _, level = text.rpartition(".")
            if not _WILDCARDS.search(level) or _WILDCARDS.search(schema) or not schema[scheme.end() :]:
                raise ValueError("expected wildcards in the name of the table only, such as uc://catalog.schema.*")
            return cls(schema, (level,))
        start = scheme.end() if scheme is not None else 0
        steps = text[start:].split("/")
        first = next((index for index, step in enumerate(steps) if _WILDCARDS.search(step)), None)
        if first is None:
            raise ValueError("expected a pattern of folders, such as s3://lake/sales/*; for one table use `uri`")
        if "**" in text:
            raise ValueError("expected one * for each level of folders, not **")
        if first == 0 and scheme is not None and scheme[0].lower() != "file:///":
            raise ValueError("expected a pattern without wildcards in the name of the bucket")
        root = "/".join(steps[:first])
        return cls(text[:start] + root or ("/" if text.startswith("/") else "."), tuple(filter(None, steps[first:])))

    def matches(self, level: int, name: str) -> bool:
        """Whether a folder's name matches the pattern of its level. Names that begin with `_` or a dot match only if the pattern does too."""
        pattern = self.levels[level]
        return fnmatchcase(name, pattern) and (name[0] not in "_." or pattern[0] == name[0])

    def uri(self, steps: Sequence[str]) -> str:
        """The location of a folder below the root, or the name of a table."""
        if self.root.lower().startswith(_CATALOGS):
            return f"{self.root}.{steps[-1]}"
        names = map(quote, steps) if self.root.lower().startswith("file:") else steps
        return "/".join([self.root.rstrip("/"), *names])


def _check_pattern(text: str) -> str:
    FolderPattern.parse(text)
    return text


def parse_template(value: object) -> str:
    """A template of names."""
    if not isinstance(value, str) or not value:
        raise ValueError("expected a name, in which {table}, {path} and {parent} stand for names of folders")
    unknown = [name for name in _PLACEHOLDER.findall(value) if name not in _PLACEHOLDERS]
    if unknown or re.search(r"[{}]", _PLACEHOLDER.sub("", value)):
        raise ValueError("expected no other braces than {table}, {path} and {parent}")
    return value


Template = Annotated[str, PlainValidator(parse_template)]


class OverrideNames(Section):
    """The tables that an override is for, and their names and key."""

    tables: tuple[Text, ...]
    """Patterns of tables, as in `include`."""

    name: Name | None = None
    """As `name` of a table with `uri`."""

    topic: Name | None = None
    """As `topic` of a table with `uri`."""

    key: tuple[Text, ...] | None = None
    """As `key` of a table with `uri`."""


_OPTIONAL: Mapping[str, Any] = {
    name: (field.rebuild_annotation() | None, Field(None, description=f"As `{name}` of a table with `uri`."))
    for name, field in TableOptions.model_fields.items()
}


class Override(create_model("OptionalTableOptions", __base__=Section, **_OPTIONAL), OverrideNames):  # type: ignore[misc]  # made of fields
    """Settings of some of the tables that are found. If several entries match a table, the last one that has a setting counts."""


class TablePattern(Section):
    """The tables below a pattern of folders, and their names."""

    discover: Annotated[TableUri, AfterValidator(_check_pattern)]
    """Pattern of folders, such as `s3://lake/sales/*`. `*`, `?` and `[…]` match within one level. Or the tables of a schema of a catalog:
    `uc://catalog.schema.*`, `glue://database.*`.
    """

    include: tuple[Text, ...] = ("*",)
    """Patterns of tables to publish. A pattern with a slash is compared with the path from the first wildcard on, one without with the
    name of the last folder.
    """

    exclude: tuple[Text, ...] = ()
    """Patterns of tables to leave out, although `include` matches."""

    interval: Seconds = 60.0
    """Longest time between two searches for tables. On local file systems, events announce new folders too."""

    name: Template = "{path}"
    """Template of names. `{table}` is the last folder's name, `{parent}` that of the folder above, and `{path}`
    all folders from the first wildcard on, with dots between.
    """

    topic: Template = ""
    """Template of topics, as in `name`.

    Default: `sink.topics.prefix`, then the name.
    """

    key: tuple[Text, ...] | None = None
    """Key columns of all tables.

    Default: those in the table property `key_property`.
    """

    key_property: Text = "cdfd.key"
    """Table property with the names of the key columns, separated by commas. A table without the property has no key. The daemon reads it
    whenever it opens the table.
    """

    @property
    def pattern(self) -> FolderPattern:
        """The pattern, parsed."""
        return FolderPattern.parse(self.discover)

    def accepts(self, steps: Sequence[str]) -> bool:
        """Whether `include` and `exclude` let a table pass. `steps` are the names of its folders below the pattern's root."""
        return _matches_any(self.include, steps) and not _matches_any(self.exclude, steps)

    def excludes_below(self, steps: Sequence[str]) -> bool:
        """Whether `exclude` leaves out all tables below a folder. `steps` are the names of the folders down to it."""
        left = self.pattern.levels[len(steps) :]
        patterns = [(parts[: len(steps)], parts[len(steps) :]) for each in self.exclude if (parts := each.split("/"))]
        return any(
            len(above) == len(steps)
            and all(map(fnmatchcase, steps, above))
            and len(below) == len(left)
            and all(part in ("*", level) for part, level in zip(below, left, strict=True))
            for above, below in patterns
        )


class Discovery(TableOptions, TablePattern):
    """A pattern of folders. The daemon publishes every table that it finds there, also those that appear later."""

    overrides: tuple[Override, ...] = ()

    sinks: tuple[Text, ...] | None = None
    """Names of the sinks of the tables, in a file with `sinks`.

    Default: all.
    """

    def __hash__(self) -> int:
        # Masks and headers are mappings, which have no hash. Equal patterns have equal texts.
        return hash((self.discover, self.name, self.topic))

    def table_at(self, steps: Sequence[str]) -> TableEntry:
        """The settings of a table that was found.

        Args:
            steps: the names of its folders below the pattern's root.

        Raises:
            ConfigError: its names or its settings are invalid.
        """
        uri = self.pattern.uri(steps)
        overrides: dict[str, Any] = {}
        for override in self.overrides:
            if _matches_any(override.tables, steps):
                overrides |= {name: getattr(override, name) for name in override.model_fields_set}
        overridden = {name: value for name, value in overrides.items() if name != "tables" and value is not None}
        name = overridden.pop("name", None) or self._fill(self.name, steps)
        topic = overridden.pop("topic", None) or (self._fill(self.topic, steps) if self.topic else name)
        common = {field: getattr(self, field) for field in Table.model_fields if field not in _OWN}
        from_property = self.key is None and "key" not in overridden
        fields = (
            {"uri": uri, "name": name, "topic": topic, "key": () if from_property else self.key} | common | overridden
        )
        needs_key = from_property and fields["refine"] == "key"
        try:
            # The key is known once the table's properties are read, and `refine: key` fits then.
            table = Table.model_validate(fields | ({"refine": "auto"} if needs_key else {}))
        except ValidationError as error:
            [first, *_] = error.errors(include_url=False)
            field = first["loc"][0] if first["loc"] else ""
            shown = {"name": f"the name would be {quoted(name)}: ", "topic": f"the topic would be {quoted(topic)}: "}
            raise ConfigError(shown.get(str(field), "") + _message(error), table=uri, hint=_OVERRIDE) from None
        return TableEntry(table.below(self.pattern.root), self.key_property if from_property else None, needs_key)

    def _fill(self, template: str, steps: Sequence[str]) -> str:
        root = values.last_segment(self.pattern.root)
        parent = steps[-2] if len(steps) > 1 else root
        filling: Mapping[str, str] = {"table": steps[-1], "path": ".".join(steps), "parent": parent}
        return _PLACEHOLDER.sub(lambda match: filling[match[1]], template)


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table that was found, or that the configuration lists.

    Attributes:
        key_property: the table property with its key; None: the key is in the settings.
        needs_key: whether `refine` is `key`, which needs the property.
    """

    table: Table
    key_property: str | None = None
    needs_key: bool = False

    def with_key(self, properties: Mapping[str, str]) -> Table:
        """The settings with the key of the table's properties.

        Raises:
            ConfigError: the property does not fit the settings.
        """
        key_text = None if self.key_property is None else properties.get(self.key_property)
        if key_text is None and not self.needs_key:
            return self.table
        key = [column for name in (key_text or "").split(",") if (column := name.strip())]
        fields = {name: getattr(self.table, name) for name in type(self.table).model_fields} | {"key": key}
        try:
            return Table.model_validate(fields | ({"refine": "key"} if self.needs_key else {})).below(
                self.table.found_below
            )
        except ValidationError as error:
            shown = "not set" if key_text is None else quoted(key_text)
            what = f"the table property {self.key_property} is {shown}: {_message(error)}"
            raise ConfigError(what, table=self.table.uri, hint="Change the property, or give the key") from None


_OWN = frozenset({"uri", "name", "topic", "key"})
"""Settings of a table that a pattern does not give to all of its tables."""

_OVERRIDE = "Set another name and topic in `overrides` of the entry, or leave the table out with `exclude`"


def _matches_any(patterns: Sequence[str], steps: Sequence[str]) -> bool:
    for pattern in patterns:
        levels = pattern.split("/")
        compared = steps[-1:] if len(levels) == 1 else steps
        if len(levels) == len(compared) and all(map(fnmatchcase, compared, levels)):
            return True
    return False


def _message(error: ValidationError) -> str:
    return "; ".join(what for _, what in conflicts_of(error.errors(include_url=False)[0]))
