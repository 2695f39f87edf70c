"""The settings: a whole configuration file, and the section of its sink.

Sinks of other packages import the types of their settings from here. `docs/reference-configuration.md` is generated from these models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    PrivateAttr,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from cdfd.config import values
from cdfd.config.discovery import Discovery
from cdfd.config.fields import (
    FOLDER,
    Count,
    Flag,
    Folder,
    LocalPath,
    SecretText,
    Section,
    Text,
    Uri,
    UserText,
    WebAddress,
    either,
    registry_name,
)
from cdfd.config.own_topics import HEARTBEATS, OwnTopics
from cdfd.config.problems import Conflicts, Path, quoted, refuse
from cdfd.config.sections import (
    CatchUp,
    Controls,
    Engine,
    Heartbeat,
    Http,
    Poll,
    Progress,
    Spill,
    Standby,
    Telemetry,
)
from cdfd.config.sinks import (
    SEVERAL,
    SINK_NAME,
    SinkSettings,
    data_of_sink,
    meetings,
    parse_sink,
    problems_of_sink,
    sink_address,
    topics_elsewhere,
    with_defaults_of_sink,
)
from cdfd.config.stores import Catalogs, Storage
from cdfd.config.table import RateLimits, Table, owners
from cdfd.config.table_folders import TableFolders
from cdfd.errors import ConfigError

__all__ = [
    "FOLDER",
    "Count",
    "Flag",
    "Folder",
    "LocalPath",
    "SecretText",
    "Section",
    "Settings",
    "SinkSettings",
    "Table",
    "Text",
    "Uri",
    "UserText",
    "WebAddress",
    "either",
    "registry_name",
]

T = TypeVar("T")


def _entry(entry: Any, info: ValidationInfo) -> Any:
    """An entry of `tables`: one table, or a pattern of folders."""
    if not isinstance(entry, dict):
        if isinstance(entry, Table | Discovery):
            return entry
        raise ValueError("expected a mapping")
    return (Discovery if "discover" in entry else Table).model_validate(entry, context=info.context)


class Settings(Section):
    """The configuration of a daemon."""

    pipeline: Annotated[str, PlainValidator(values.pipeline_name)]
    """Name of the pipeline: a part of transactional ids and of the ledger's appId. Two daemons with one name fence
    each other.
    """

    tables: tuple[Annotated[SerializeAsAny[Table | Discovery], BeforeValidator(_entry)], ...]
    """The tables, and patterns of folders with tables. At least one."""

    sinks: Mapping[str, Annotated[SerializeAsAny[SinkSettings], BeforeValidator(parse_sink)]] = {}
    """Several destinations by name, each as `sink`. Each one has positions and a pace of its own: see
    [several sinks](several-sinks.md).
    """

    sink: Annotated[SerializeAsAny[SinkSettings], BeforeValidator(parse_sink)] = Field(
        default=SEVERAL, validate_default=True
    )
    """Destination of the changes. Its keys depend on `sink.kind`.

    Default: required without `sinks`.
    """

    progress: Progress = Field(default_factory=Progress)
    poll: Poll = Poll()
    limits: RateLimits = RateLimits()
    """Rate limits of all tables together. Tables get their turns in order."""

    catch_up: CatchUp = CatchUp()
    spill: Spill = Spill()
    engine: Engine = Engine()
    storage: Storage = Storage()
    catalogs: Catalogs = Catalogs()
    http: Http = Http()
    heartbeat: Heartbeat = Heartbeat()
    standby: Standby = Standby()
    telemetry: Telemetry = Telemetry()
    controls: Controls = Controls()

    _sink_name: str = PrivateAttr(default="")
    _ledger_name: str = PrivateAttr(default="")
    _by_sink: Mapping[str, Settings] = PrivateAttr(default_factory=dict)
    _topics_elsewhere: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _validate_for_each_sink(
        cls, data: Any, handler: ModelWrapValidatorHandler[Settings], info: ValidationInfo
    ) -> Settings:
        """With `sinks`, the file has to be valid for each sink as if it were the only one."""
        settings = handler(with_defaults_of_sink(data) if isinstance(data, dict) else data)
        conflicts: list[tuple[Path, str]] = []
        if settings.sinks and settings.engine.kind != "embedded":
            conflicts.append((("engine", "kind"), "expected embedded, because other engines deliver into one sink"))
        for index, entry in enumerate(settings.tables):
            if entry.sinks == ():
                conflicts.append((("tables", index, "sinks"), "at least one is required; leave the key out for all"))
            for name in entry.sinks or ():
                if name not in settings.sinks:
                    names = ", ".join(settings.sinks) or "none, because the file has no `sinks`"
                    what = f"there is no sink {quoted(name)}; there are: {names}"
                    conflicts.append((("tables", index, "sinks"), what))
        refuse(conflicts)
        if not settings.sinks or not isinstance(data, dict):
            return settings
        by_sink: dict[str, Settings] = {}
        for name, sink in settings.sinks.items():
            alone, indices = data_of_sink(data, name, settings.sinks)
            try:
                by_sink[name] = cls.model_validate(alone, context=info.context)
            except ValidationError as error:
                conflicts += problems_of_sink(error, name, indices)
            else:
                by_sink[name]._sink_name = name
                by_sink[name]._ledger_name = sink.pipeline or f"{settings.pipeline}@{name}"
        refuse(dict.fromkeys([*conflicts, *meetings(by_sink)]))
        settings._by_sink = by_sink
        for name in by_sink:
            by_sink[name]._topics_elsewhere = topics_elsewhere(name, by_sink)
        return settings

    @field_validator("tables")
    @classmethod
    def _check_tables(cls, entries: tuple[Table | Discovery, ...]) -> tuple[Table | Discovery, ...]:
        conflicts: list[tuple[Path, str]] = [] if entries else [((), "at least one is required")]
        tables = [(index, entry) for index, entry in enumerate(entries) if isinstance(entry, Table)]
        for field in ("name", "topic"):
            first: dict[str, int] = {}
            for index, table in tables:
                value = getattr(table, field)
                if value in first:
                    what = f"the same as that of tables[{first[value]}], {quoted(value)}; give one of them another"
                    conflicts.append(((index, field), what))
                first.setdefault(value, index)
        names = {table.name for _, table in tables}
        conflicts += [
            ((index, "name"), f"a part or backfill of the table {quoted(other)} has such a name; give it another")
            for index, table in tables
            for other in owners(table.name)
            if other in names
        ]
        refuse(conflicts)
        return entries

    @field_validator("progress")
    @classmethod
    def _check_progress(cls, progress: Progress, info: ValidationInfo) -> Progress:
        sink = info.data.get("sink")
        if sink is not None and not sink.keeps_positions and progress.ledger.kind == "none":
            raise Conflicts((("ledger",), "required with delivery at_least_once, which keeps positions nowhere else"))
        if progress.ledger.kind == "table":
            place, entries = progress.ledger.uri, info.data.get("tables", ())
            TableFolders([table.uri for table in _tables_in(entries)]).check_apart(("ledger",), place)
            for index, entry in enumerate(entries):
                # The topics of tables that are yet to be discovered may have any name.
                topic = entry.topic if isinstance(entry, Table) else ""
                for key, target in ({} if sink is None else sink.places(topic)).items():
                    if (around := TableFolders([target]).around(place)) is not None:
                        what = f"{quoted(place)} {around[1]} a folder that `sink.{key}` gives to tables[{index}]; choose another location"
                        raise Conflicts((("ledger",), what))
        return progress

    @field_validator("sinks")
    @classmethod
    def _check_names_of_sinks(cls, sinks: Mapping[str, SinkSettings]) -> Mapping[str, SinkSettings]:
        what = "expected a name of at most 63 letters, digits, hyphens and underscores as the key"
        refuse(((name,), what) for name in sinks if not SINK_NAME.fullmatch(name))
        return sinks

    @field_validator("sink")
    @classmethod
    def _check_sink(cls, sink: SinkSettings, info: ValidationInfo) -> SinkSettings:
        several = info.data.get("sinks")
        if sink == SEVERAL:
            if several == {}:
                raise ValueError("required")
            return sink
        if several:
            raise ValueError("excluded by `sinks`: move this one there too, by a name")
        if sink.pipeline is not None:
            raise Conflicts((("pipeline",), "needs `sinks`; with `sink`, set `pipeline` of the file"))
        entries = info.data.get("tables", ())
        tables = _tables_in(entries)
        folders = TableFolders([table.uri for table in tables])
        for table in tables:
            for key, place in sink.places(table.topic).items():
                folders.check_apart((key,), place)
        for index, table in enumerate(entries):
            refusal = sink.refusal_of_headers(table.headers, keyed=bool(table.key)) if table.headers else None
            if refusal is not None:
                raise Conflicts(((), f"headers of tables[{index}] {refusal}"))
        return sink

    @model_validator(mode="after")
    def _check_tables_of_sink(self) -> Settings:
        tables = [(index, entry) for index, entry in enumerate(self.tables) if isinstance(entry, Table)]
        refuse((("tables", index, key), text) for index, table in tables for key, text in self.sink.refusals(table))
        if not self.sinks:
            refuse(self.own_topics.conflicts(self.tables))
        return self

    @field_validator("heartbeat", "controls")
    @classmethod
    def _check_needs_of_topics(cls, section: T, info: ValidationInfo) -> T:
        sink = info.data.get("sink")
        if sink not in (None, SEVERAL) and not sink.has_topics:
            keys = ("interval", "signals", "notifications")
            refuse(((key,), "needs a Kafka sink") for key in keys if getattr(section, key, None))
        return section

    @property
    def own_topics(self) -> OwnTopics:
        """The topics of the daemon itself."""
        notifications = f"{self.sink.topic_prefix or self.pipeline}.notifications"
        asked_by = dict(self.sink.side_topics(self.pipeline))
        if self.controls.notifications:
            asked_by[notifications] = "controls.notifications"
        return OwnTopics(
            exist=self.sink.has_topics,
            heartbeats=self.heartbeat.topic or f"{HEARTBEATS}.{self.pipeline}",
            has_heartbeats=self.heartbeat.interval is not None,
            notifications=notifications,
            asked_by=asked_by,
            dead_letter_suffix=self.sink.dead_letter_suffix,
            elsewhere=self._topics_elsewhere,
        )

    @property
    def by_sink(self) -> Mapping[str, Settings]:
        """For each sink the settings as if it were the only one, by its name; with `sink`, these settings by an empty name."""
        return self._by_sink or {"": self}

    @property
    def sink_name(self) -> str:
        """The name of the sink in `sinks`; empty with `sink`."""
        return self._sink_name

    @property
    def ledger_name(self) -> str:
        """The name of the pipeline in the ledger. Sinks of one pipeline have entries of their own there."""
        return self._ledger_name or self.pipeline

    def of_sink(self, name: str | None) -> Settings:
        """The settings of one sink.

        Args:
            name: in `sinks`; None: the only one.

        Raises:
            ConfigError: there is no such sink, or there are several and no name is given.
        """
        by_sink = self.by_sink
        if name is None and len(by_sink) == 1:
            return next(iter(by_sink.values()))
        if name is not None and name in by_sink and name:
            return by_sink[name]
        if not self.sinks:
            raise ConfigError(f"there is no sink {quoted(name or '')}", hint="The file has `sink`: leave --sink out")
        names = ", ".join(by_sink)
        what = "the pipeline has several sinks" if name is None else f"there is no sink {quoted(name)}"
        raise ConfigError(what, hint=f"Choose one with --sink: {names}")

    def chosen(self, name: str | None) -> Sequence[Settings]:
        """The settings of one sink, or of all if no name is given. Raises as `of_sink` does."""
        return tuple(self.by_sink.values()) if name is None else (self.of_sink(name),)

    def address(self, table: str) -> str:
        """The name of a table's loop, by which operators address it: the table's, and with `sinks` also the sink's, `orders@mirror`."""
        return sink_address(table, self._sink_name)

    @property
    def listed(self) -> tuple[Table, ...]:
        """The tables that the configuration names one by one."""
        return _tables_in(self.tables)

    @property
    def discoveries(self) -> tuple[Discovery, ...]:
        """The patterns of folders with tables."""
        return tuple(entry for entry in self.tables if isinstance(entry, Discovery))

    def with_tables_of(self, other: Settings, staying: Mapping[str, Settings] = MappingProxyType({})) -> Settings:
        """The same settings with the tables and the sinks of others.

        Args:
            staying: the settings of sinks that get only the tables of the others, by name.
        """
        settings = self.model_copy(update={"tables": other.tables, "sinks": other.sinks})
        kept = {name: each.with_tables_of(other._by_sink[name]) for name, each in staying.items()}
        settings._by_sink, settings._topics_elsewhere = {**other._by_sink, **kept}, other._topics_elsewhere
        return settings

    def with_tables(self, tables: Iterable[Table]) -> Settings:
        """The same settings with these tables, and without patterns of folders."""
        return self.model_copy(update={"tables": tuple(tables)})

    def table(self, name: str) -> Table | None:
        """The table of that name that the configuration lists, or None."""
        return next((table for table in self.listed if table.name == name), None)

    def topics_beside(self, table: Table) -> frozenset[str]:
        """The topics of other tables that the configuration lists."""
        return frozenset(each.topic for each in self.listed if each.name != table.name)

    def options(self, uri: str) -> dict[str, object]:
        """The options for `open_storage` at a location or for a name, with revealed secrets. Never show them."""
        match uri.partition(":")[0].lower():
            case "uc":
                return self.catalogs.uc.options(self.storage.s3)
            case "glue":
                return self.catalogs.glue.options(self.storage.s3)
        return self.storage.options(uri)

    def public(self) -> dict[str, Any]:
        """Everything but secrets, as JSON has it; for `/status`."""
        # With one sink, a document has no key for several.
        without: dict[str, Any] = {"sink": True} if self.sinks else _ONLY_OF_SEVERAL
        return self.model_dump(mode="json", exclude=without)


_ONLY_OF_SEVERAL: dict[str, Any] = {"sinks": True, "tables": {"__all__": {"sinks": True}}, "sink": {"pipeline": True}}


def _tables_in(entries: tuple[Table | Discovery, ...]) -> tuple[Table, ...]:
    return tuple(entry for entry in entries if isinstance(entry, Table))
