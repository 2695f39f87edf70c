"""The settings: what a configuration file may say, and what holds where it says nothing.

Every field here is a row of the table in `docs/configuration.md`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from cdfd.config import places, values
from cdfd.config.problems import Conflicts, Path, quoted
from cdfd.config.values import Ledger, Listen, Secret, Start
from cdfd.ports.registry import ENGINES, SINKS, Registry

AS_TEXT = PlainSerializer(str, return_type=str)

FOLDER = "folder"
"""Key of the validation context: the folder that relative paths are seen from; without it they stay as they are."""


def _in_folder(place: str, info: ValidationInfo) -> str:
    return values.in_folder(place, (info.context or {}).get(FOLDER))


def _ledger_in_folder(ledger: Ledger, info: ValidationInfo) -> Ledger:
    return replace(ledger, uri=_in_folder(ledger.uri, info)) if ledger.kind == "table" else ledger


Text: TypeAlias = Annotated[str, Field(min_length=1)]
LocalPath: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_in_folder)]
Folder: TypeAlias = Annotated[str, PlainValidator(values.folder), AfterValidator(_in_folder)]
Name: TypeAlias = Annotated[str, PlainValidator(values.topic_name)]
Uri: TypeAlias = Annotated[str, PlainValidator(values.uri), AfterValidator(_in_folder)]
WebAddress: TypeAlias = Annotated[str, PlainValidator(values.web_address)]
Seconds: TypeAlias = Annotated[
    float, BeforeValidator(values.seconds), Field(ge=0.01, le=86400.0 * 366, allow_inf_nan=False)
]
Size: TypeAlias = Annotated[int, BeforeValidator(values.size), Field(ge=1)]
Count: TypeAlias = Annotated[int, BeforeValidator(values.whole), Field(ge=1)]
Flag: TypeAlias = Annotated[bool, BeforeValidator(values.flag)]
SecretText: TypeAlias = Annotated[Secret, PlainValidator(Secret.parse), AS_TEXT]


class Section(BaseModel):
    """A mapping of the file. For an entry without a value (`http:` and nothing under it) its default holds."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    nullable: ClassVar[frozenset[str]] = frozenset()
    """Fields for which null is a value of its own, different from the default."""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()} - cls.nullable
        return {key: value for key, value in data.items() if value is not None or key not in optional}


class Table(Section):
    """A table whose changes are published.

    `name` tells the tables of a pipeline apart: in positions, transactional ids, metrics and on the command line.
    """

    uri: Uri
    name: Name = ""
    topic: Name = ""
    key: tuple[Text, ...] = ()
    start: Annotated[Start, PlainValidator(Start.parse), AS_TEXT] = Start("snapshot")
    changes: Literal["auto", "cdf", "files"] = "auto"
    columns: tuple[Text, ...] | None = None
    on_missing_file: Literal["fail", "resnapshot", "skip"] = "fail"
    on_schema_change: Literal["continue", "stop"] = "continue"
    allowed_roots: tuple[Uri, ...] = ()

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
        for place, names in (("key", self.key), ("columns", self.columns or ())):
            if len(set(names)) < len(names):
                conflicts.append(((place,), "the same column twice"))
        if self.columns and not set(self.key) <= set(self.columns):
            conflicts.append((("key",), "names columns that `columns` leaves out"))
        if conflicts:
            raise Conflicts(*conflicts)
        return self


class SinkSettings(Section):
    """Where changes go. Each kind of sink has a subclass with its own keys, in `registry.SINKS`."""

    ledger_by_default: ClassVar[bool] = False
    """Whether there is a ledger where `progress.ledger` says nothing."""

    kind: str

    @property
    def keeps_positions(self) -> bool:
        """Whether the sink keeps the position with the rows. Where not, the ledger's is the one that counts."""
        return True

    def places(self, topic: str) -> Mapping[str, str]:
        """Where the rows of a topic are written, by the key that says so: paths and URIs that must lie outside of tables."""
        return {}

    def connector(self, config: Settings) -> Any:
        """The `cdfd.sinks.base.Connector`. What takes long to import is imported here."""
        raise NotImplementedError


def registered(registry: Registry) -> AfterValidator:
    """Text that is one of a registry's names."""

    def check(name: str) -> str:
        if name not in registry:
            raise ValueError(f"expected {_either(registry.names())}")
        return name

    return AfterValidator(check)


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _sink(given: Any, info: ValidationInfo) -> Any:
    """The section of a sink, by its kind."""
    if not isinstance(given, dict):
        return given
    kind = given.get("kind")
    if kind is None:
        raise Conflicts((("kind",), f"required: {_either(SINKS.names())}"))
    if kind not in SINKS:
        raise Conflicts((("kind",), f"expected one of {', '.join(SINKS.names())}"))
    return SINKS.load(kind).model_validate(given, context=info.context)


class Progress(Section):
    """Where positions are kept besides the sink."""

    ledger: Annotated[Ledger, PlainValidator(Ledger.parse), AfterValidator(_ledger_in_folder), AS_TEXT] = Ledger(
        "table", "/var/lib/cdfd/ledger"
    )
    interval: Seconds = 10.0


class Poll(Section):
    """How often to look for the next commit: at first, and at most after a while without any. Seconds.

    `notifications` is a queue that S3 tells of new objects.
    """

    interval: Seconds = 1.0
    max_interval: Seconds = 5.0
    notifications: Annotated[str, PlainValidator(values.queue)] | None = None

    @model_validator(mode="after")
    def _check_order(self) -> Poll:
        if self.max_interval < self.interval:
            raise Conflicts((("max_interval",), "expected no less than poll.interval"))
        return self


class CatchUp(Section):
    """What one transaction may hold while there is more than one version to deliver; never less than a version."""

    max_rows: Count = 100_000
    max_bytes: Size = 64 << 20
    max_seconds: Seconds = 10.0


class SparkEngine(Section):
    """Work that is handed to Spark: in `auto`, versions and first snapshots of more than `threshold` bytes.

    Where Spark is: `master` or `remote`; neither for what its own configuration says, or this machine. `checkpoint`, `batch_size` and `order`
    are those of the queries of `engine.kind: spark`.
    """

    threshold: Size = 8 << 30
    part_size: Size = 128 << 20
    master: Text | None = None
    remote: SecretText | None = None
    conf: Mapping[str, SecretText] = {}
    checkpoint: Annotated[str, PlainValidator(values.uri)] | None = None  # relative ones are Spark's to resolve
    batch_size: Size = 1 << 30
    order: Literal["key", "none"] = "key"

    @model_validator(mode="after")
    def _check_place(self) -> SparkEngine:
        if self.master is not None and self.remote is not None:
            raise Conflicts((("remote",), "has no use with engine.spark.master; leave one of them out"))
        return self


class Engine(Section):
    """What executes plans."""

    kind: Annotated[str, registered(ENGINES)] = "embedded"
    spark: SparkEngine = SparkEngine()

    @model_validator(mode="after")
    def _check_checkpoint(self) -> Engine:
        if self.kind == "spark" and self.spark.checkpoint is None:
            raise Conflicts((("spark", "checkpoint"), "required with engine.kind spark"))
        return self


class S3(Section):
    """An S3-compatible store. What is not given is taken from the usual `AWS_*` variables, profiles and roles."""

    endpoint_url: WebAddress | None = None
    region: Text | None = None
    access_key_id: SecretText | None = None
    secret_access_key: SecretText | None = None
    session_token: SecretText | None = None
    profile: Text | None = None
    path_style: Flag | None = None
    request_payer: Flag = False
    server_side_encryption: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = None
    kms_key_id: Text | None = None
    connect_timeout: Seconds = 5.0
    read_timeout: Seconds = 15.0
    deadline: Seconds = 60.0

    @model_validator(mode="after")
    def _check_credentials(self) -> S3:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise Conflicts(((), "access_key_id and secret_access_key go together"))
        return self

    def options(self) -> dict[str, object]:
        """What `open_storage` takes, secrets revealed: not to be shown."""
        given = {name: getattr(self, name) for name in type(self).model_fields}
        return {
            name: value.reveal() if isinstance(value, Secret) else value
            for name, value in given.items()
            if value is not None
        }


class Storage(Section):
    """Access to where tables are."""

    s3: S3 = S3()

    def options(self, uri: str) -> dict[str, object]:
        """What `open_storage` takes for a place, secrets revealed. Other stores than S3 have their own ways to be told."""
        return self.s3.options() if uri.lower().startswith(("s3:", "s3a:")) else {}


class Http(Section):
    """Metrics, health and status over HTTP. `listen: null` turns it off. `hosts` are names that are answered to besides the machine's own."""

    nullable: ClassVar[frozenset[str]] = frozenset({"listen"})

    listen: Annotated[Listen, PlainValidator(Listen.parse), AS_TEXT] | None = Listen("127.0.0.1", 9464)
    hosts: tuple[Annotated[str, PlainValidator(values.host_name)], ...] = ()


class Settings(Section):
    """Everything a daemon is told. Frozen."""

    pipeline: Annotated[str, PlainValidator(values.pipeline_name)]
    tables: tuple[Table, ...]
    sink: Annotated[SerializeAsAny[SinkSettings], BeforeValidator(_sink)]
    progress: Progress = Progress()
    poll: Poll = Poll()
    catch_up: CatchUp = CatchUp()
    engine: Engine = Engine()
    storage: Storage = Storage()
    http: Http = Http()

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
    def _check_tables(cls, tables: tuple[Table, ...]) -> tuple[Table, ...]:
        conflicts: list[tuple[Path, str]] = [] if tables else [((), "at least one is required")]
        for field in ("name", "topic"):
            first: dict[str, int] = {}
            for index, table in enumerate(tables):
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
        return tables

    @field_validator("progress")
    @classmethod
    def _check_progress(cls, progress: Progress, info: ValidationInfo) -> Progress:
        sink = info.data.get("sink")
        if sink is not None and not sink.keeps_positions and progress.ledger.kind == "none":
            raise Conflicts((("ledger",), "required with delivery at_least_once, which keeps positions nowhere else"))
        if progress.ledger.kind == "table":
            _check_apart(("ledger",), progress.ledger.uri, info.data.get("tables", ()))
        return progress

    @field_validator("sink")
    @classmethod
    def _check_sink(cls, sink: SinkSettings, info: ValidationInfo) -> SinkSettings:
        tables: tuple[Table, ...] = info.data.get("tables", ())
        for table in tables:
            for key, place in sink.places(table.topic).items():
                _check_apart((key,), place, tables)
        return sink

    def table(self, name: str) -> Table | None:
        """The table of that name, or None."""
        return next((table for table in self.tables if table.name == name), None)

    def public(self) -> dict[str, Any]:
        """Everything but secrets, as JSON has it; for `/status`."""
        return self.model_dump(mode="json")


def _taken_names(tables: tuple[Table, ...]) -> Iterator[tuple[int, str]]:
    """Tables by whose name another one's parts and backfills are known to Kafka."""
    for index, table in enumerate(tables):
        for other in tables:
            if table.name.startswith((f"{other.name}.part.", f"{other.name}.backfill")):
                yield index, f"a part or backfill of the table {quoted(other.name)} has such a name; give it another"


def _check_apart(key: Path, place: str, tables: tuple[Table, ...]) -> None:
    what = places.among(place, [table.uri for table in tables])
    if what is not None:
        raise Conflicts((key, what))


def _with_topic(table: Any, prefix: str) -> Any:
    if not isinstance(table, dict) or not isinstance(table.get("uri"), str) or table.get("topic") is not None:
        return table
    return table | {"topic": prefix + values.last_segment(table["uri"])}
