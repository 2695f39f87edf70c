"""The settings: a whole configuration file, and the section of its sink.

Sinks of other packages import the types of their settings from here. `docs/reference-configuration.md` is generated from these models.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from cdfd.config import table_folders, values
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
from cdfd.config.http import Http, HttpAuthentication, HttpTls
from cdfd.config.own_topics import HEARTBEATS, OwnTopics
from cdfd.config.problems import Conflicts, Path, quoted
from cdfd.config.sections import (
    S3,
    Catalogs,
    CatchUp,
    Controls,
    Engine,
    Heartbeat,
    Poll,
    Progress,
    SparkEngine,
    Spill,
    Storage,
    Telemetry,
)
from cdfd.config.table import RateLimits, Table
from cdfd.errors import ConfigError
from cdfd.runtime.registry import CONNECTORS, SINKS

__all__ = [
    "FOLDER",
    "S3",
    "CatchUp",
    "Controls",
    "Count",
    "Discovery",
    "Engine",
    "Flag",
    "Folder",
    "Heartbeat",
    "Http",
    "HttpAuthentication",
    "HttpTls",
    "LocalPath",
    "Poll",
    "Progress",
    "RateLimits",
    "SecretText",
    "Section",
    "Settings",
    "SinkSettings",
    "SparkEngine",
    "Spill",
    "Storage",
    "Table",
    "Text",
    "Uri",
    "UserText",
    "WebAddress",
    "either",
    "registry_name",
]


class SinkSettings(Section):
    """The destination of the changes.

    Each kind of sink has a subclass with its own keys, in `registry.SINKS`.
    """

    ledger_by_default: ClassVar[bool] = False
    """Whether there is a ledger where `progress.ledger` says nothing."""

    has_topics: ClassVar[bool] = False
    """Whether the sink has topics, for records of the daemon itself."""

    kind: str
    """Kind of the destination."""

    @property
    def topic_prefix(self) -> str:
        """The prefix of topics about the daemon; empty: the pipeline's name."""
        return ""

    @property
    def keeps_positions(self) -> bool:
        """Whether the sink keeps the position with the rows. Where not, the ledger's is the one that counts."""
        return True

    def refusal_of_headers(self, *, keyed: bool) -> str | None:
        """Why records of a table have no headers from columns; None if they have. `keyed`: whether the table has a key."""
        return "need a Kafka sink"

    def refusals(self, table: Table) -> Sequence[tuple[str, str]]:
        """The settings of a table that the sink cannot take, and why."""
        return ()

    def places(self, topic: str) -> Mapping[str, str]:
        """Where the rows of a topic are written, by the key that says so: paths and URIs that must lie outside of tables."""
        return {}

    def side_topics(self, pipeline: str) -> Mapping[str, str]:
        """Topics that all tables share, each with the key that asks for it."""
        return {}

    @property
    def dead_letter_suffix(self) -> str | None:
        """The end of the name of a dead letter topic, after the name of the topic; None: there is none."""
        return None

    def connector(self, config: Settings) -> Any:
        """The `cdfd.sinks.base.Connector`: by default the one in `registry.CONNECTORS`. Import slow modules here.

        Raises:
            ConfigError: the package of the sink has registered none.
        """
        if self.kind not in CONNECTORS:
            what = f"the sink {self.kind!r} has no connector"
            raise ConfigError(what, hint="Its settings must override `connector`: see docs/extending.md")
        return CONNECTORS.load(self.kind)(config, self)


def _sink(entry: Any, info: ValidationInfo) -> Any:
    """The section of a sink, by its kind."""
    if not isinstance(entry, dict):
        return entry
    kind = entry.get("kind")
    if kind is None:
        raise Conflicts((("kind",), f"required: {either(SINKS.names())}"))
    if kind not in SINKS:
        near = difflib.get_close_matches(str(kind), SINKS.names(), n=1)
        suggestion = f" (did you mean {near[0]}?)" if near else ""
        raise Conflicts((("kind",), f"expected one of {', '.join(SINKS.names())}{suggestion}"))
    return SINKS.load(kind).model_validate(entry, context=info.context)


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

    sink: Annotated[SerializeAsAny[SinkSettings], BeforeValidator(_sink)]
    """Destination of the changes. Its keys depend on `sink.kind`."""

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
    telemetry: Telemetry = Telemetry()
    controls: Controls = Controls()

    @model_validator(mode="before")
    @classmethod
    def _take_defaults_from_sink(cls, data: Any) -> Any:
        """Topics get the sink's prefix; only a sink whose positions can be lost has a ledger by default."""
        sink = data.get("sink") if isinstance(data, dict) else None
        if not isinstance(sink, dict):
            return data
        filled = dict(data)
        topics, tables = sink.get("topics"), data.get("tables")
        prefix = topics.get("prefix") if isinstance(topics, dict) else None
        if isinstance(prefix, str) and isinstance(tables, list):
            filled["tables"] = [_with_topic(table, prefix) for table in tables]
        progress = {} if data.get("progress") is None else data["progress"]
        kind = sink.get("kind")
        has_ledger = kind not in SINKS or SINKS.load(str(kind)).ledger_by_default
        if isinstance(progress, dict) and progress.get("ledger") is None and not has_ledger:
            filled["progress"] = progress | {"ledger": "none"}
        return filled

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
                    conflicts.append(
                        (
                            (index, field),
                            f"the same as that of tables[{first[value]}], {quoted(value)}; give one of them another",
                        )
                    )
                first.setdefault(value, index)
        conflicts += [((index, "name"), what) for index, what in _taken_names(tables)]
        if conflicts:
            raise Conflicts(*conflicts)
        return entries

    @field_validator("progress")
    @classmethod
    def _check_progress(cls, progress: Progress, info: ValidationInfo) -> Progress:
        sink = info.data.get("sink")
        if sink is not None and not sink.keeps_positions and progress.ledger.kind == "none":
            raise Conflicts((("ledger",), "required with delivery at_least_once, which keeps positions nowhere else"))
        if progress.ledger.kind == "table":
            _check_apart(("ledger",), progress.ledger.uri, _listed(info.data.get("tables", ())))
        return progress

    @field_validator("sink")
    @classmethod
    def _check_sink(cls, sink: SinkSettings, info: ValidationInfo) -> SinkSettings:
        tables = _listed(info.data.get("tables", ()))
        for table in tables:
            for key, place in sink.places(table.topic).items():
                _check_apart((key,), place, tables)
        for index, table in enumerate(info.data.get("tables", ())):
            refusal = sink.refusal_of_headers(keyed=bool(table.key)) if table.headers else None
            if refusal is not None:
                raise Conflicts(((), f"headers of tables[{index}] {refusal}"))
        return sink

    @model_validator(mode="after")
    def _check_refusals(self) -> Settings:
        tables = [(index, entry) for index, entry in enumerate(self.tables) if isinstance(entry, Table)]
        conflicts: list[tuple[Path, str]] = [
            (("tables", index, key), text) for index, table in tables for key, text in self.sink.refusals(table)
        ]
        if conflicts:
            raise Conflicts(*conflicts)
        return self

    @field_validator("heartbeat")
    @classmethod
    def _check_heartbeat(cls, heartbeat: Heartbeat, info: ValidationInfo) -> Heartbeat:
        sink = info.data.get("sink")
        if heartbeat.interval is not None and sink is not None and not sink.has_topics:
            raise Conflicts((("interval",), "needs a Kafka sink"))
        return heartbeat

    @field_validator("controls")
    @classmethod
    def _check_controls(cls, controls: Controls, info: ValidationInfo) -> Controls:
        sink = info.data.get("sink")
        if sink is not None and not sink.has_topics:
            wanted = [name for name in ("signals", "notifications") if getattr(controls, name)]
            if wanted:
                raise Conflicts(*(((name,), "needs a Kafka sink") for name in wanted))
        return controls

    @model_validator(mode="after")
    def _check_topics(self) -> Settings:
        if conflicts := list(self.own_topics.conflicts(self.tables)):
            raise Conflicts(*conflicts)
        return self

    @property
    def own_topics(self) -> OwnTopics:
        """The topics of the daemon itself."""
        sink, heartbeat = self.sink, self.heartbeat
        return OwnTopics(
            exist=sink.has_topics,
            heartbeats=heartbeat.topic or f"{HEARTBEATS}.{self.pipeline}",
            has_heartbeats=heartbeat.interval is not None,
            notifications=f"{sink.topic_prefix or self.pipeline}.notifications",
            has_notifications=self.controls.notifications,
            side=sink.side_topics(self.pipeline),
            dead_letter_suffix=sink.dead_letter_suffix,
        )

    @property
    def listed(self) -> tuple[Table, ...]:
        """The tables that the configuration names one by one."""
        return _listed(self.tables)

    @property
    def discoveries(self) -> tuple[Discovery, ...]:
        """The patterns of folders with tables."""
        return tuple(entry for entry in self.tables if isinstance(entry, Discovery))

    def with_tables(self, tables: Iterable[Table]) -> Settings:
        """The same settings with these tables, and without patterns of folders."""
        return self.model_copy(update={"tables": tuple(tables)})

    def table(self, name: str) -> Table | None:
        """The table of that name that the configuration lists, or None."""
        return next((table for table in self.listed if table.name == name), None)

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
        return self.model_dump(mode="json")


def _listed(entries: tuple[Table | Discovery, ...]) -> tuple[Table, ...]:
    return tuple(entry for entry in entries if isinstance(entry, Table))


def _taken_names(tables: Sequence[tuple[int, Table]]) -> Iterator[tuple[int, str]]:
    """Tables with a name that another one's parts and backfills have in Kafka."""
    for index, table in tables:
        for _, other in tables:
            if is_taken(table.name, other.name):
                yield index, f"a part or backfill of the table {quoted(other.name)} has such a name; give it another"


def is_taken(name: str, other: str) -> bool:
    """Whether a part or a backfill of the table `other` may have a table's name in Kafka."""
    return name.startswith((f"{other}.part.", f"{other}.backfill"))


def _check_apart(key: Path, place: str, tables: tuple[Table, ...]) -> None:
    what = table_folders.inside_table(place, [table.uri for table in tables])
    if what is not None:
        raise Conflicts((key, what))


def _with_topic(table: Any, prefix: str) -> Any:
    if isinstance(table, dict) and "discover" in table and table.get("topic") is None:
        return table | {"topic": f"{prefix}{table.get('name') or '{path}'}"}
    if not isinstance(table, dict) or not isinstance(table.get("uri"), str) or table.get("topic") is not None:
        return table
    return table | {"topic": prefix + values.last_segment(table["uri"])}
