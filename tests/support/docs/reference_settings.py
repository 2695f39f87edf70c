"""The reference of the configuration: every key, as the settings' models have it.

Descriptions are the docstrings of fields. A paragraph `Default: ...` there describes a default that the model cannot state.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from cdfd.config import discovery, values
from cdfd.config.discovery import Discovery
from cdfd.config.fields import in_folder
from cdfd.config.schema import descriptions, with_unit
from cdfd.config.settings import Section, Settings, SinkSettings
from cdfd.config.table import parse_column, parse_where
from cdfd.config.validation_errors import file_settings
from cdfd.config.values import Ledger, Listen, Secret, UserName
from cdfd.runtime.registry import SINKS

_NAME = "letters, digits, `.`, `_`, `-`"
_URI = "a path, `file://…`, `s3://…`, `gs://…`, `az://…`, `abfs://…`, `abfss://…`"
_PARSED: dict[Any, tuple[str, str]] = {
    values.read_now: ("text", ""),
    values.seconds: ("duration", ""),
    values.size: ("size", ""),
    values.whole: ("number", ""),
    values.share: ("number", "`0` to `1`"),
    values.flag: ("boolean", "`true`, `false`"),
    values.uri: ("path or URI", _URI),
    values.table_uri: ("path or URI", _URI),
    values.folder: ("path", "a local folder"),
    values.web_address: ("URL", "`http://…`, `https://…`"),
    values.queue: ("URI", "`sqs://region/name`, or the URL of a queue"),
    values.host_name: ("host name", "a host name, `*.` and a domain, `*`"),
    values.addresses: ("list of URLs", "`http://…`, `https://…`, as a list or with commas"),
    values.servers: ("list of addresses", "`host:port`, as a list or with commas"),
    values.pipeline_name: ("name", "lower-case letters, digits, `.`, `_`, `-`; at most 100"),
    values.topic_name: ("name", f"{_NAME}; at most 249"),
    values.topic_prefix: ("name", f"{_NAME}; at most 200"),
    Secret.parse: ("secret", ""),
    UserName.parse: ("text", ""),
    values.start: ("text", "`snapshot`, `earliest`, `latest`, a version, a time"),
    Ledger.parse: ("path or URI", f"{_URI}, `source`, `none`"),
    Listen.parse: ("address", "`host:port`, `null`"),
    in_folder: ("path", "a local file"),
    parse_column: ("name", ""),
    parse_where: ("text", "a filter"),
    discovery.parse_template: ("text", f"{_NAME}, `{{table}}`, `{{parent}}`, `{{path}}`"),
}
"""The type and the allowed values that each function accepts."""

_MORE = {
    "tables[].discover": ("Many tables", "many-tables.md"),
    "tables[].uri": ("Stores", "s3.md#other-stores"),
    "tables[].key": ("Keys and updates", "configuration.md#keys-and-updates"),
    "tables[].start": ("Start", "configuration.md#start"),
    "tables[].changes": ("Sources of changes", "changes.md#where-change-rows-come-from"),
    "tables[].refine": ("Refine", "refine.md#modes"),
    "tables[].on_missing_file": ("Missing files", "recovery.md#vacuum-removed-a-data-file"),
    "tables[].allowed_roots": ("External paths", "changes.md#external-paths"),
    "tables[].where": ("Transforms", "shape.md"),
    "sink.format.envelope": ("Formats", "formats.md"),
    "sink.oversized": ("Records that are too large", "kafka-topics.md#records-that-are-too-large"),
    "sink.security.protocol": ("Security", "security.md#kafka"),
    "sink.security.oauth.token_url": ("OAUTHBEARER", "security.md#oauthbearer"),
    "sink.security.aws.region": ("Amazon MSK with IAM", "security.md#amazon-msk-with-iam"),
    "progress.ledger": ("The ledger", "positions.md#the-ledger"),
    "poll.notifications": ("Wake-ups", "polling.md#wake-ups"),
    "engine.kind": ("The engine", "spark-engine.md"),
    "engine.spark.checkpoint": ("The whole feed on Spark", "spark-kafka.md#the-whole-feed-on-spark"),
    "http.listen": ("HTTP endpoints", "status.md"),
    "http.hosts": ("Host names", "status.md#host-names"),
    "telemetry.otel.endpoint": ("Traces", "telemetry.md#traces"),
    "telemetry.openlineage.url": ("Run events", "telemetry.md#run-events"),
    "heartbeat.interval": ("Heartbeats", "kafka-topics.md#heartbeats"),
    "http.tls.certificate": ("The HTTP server", "security.md#the-http-server"),
    "http.authentication.username": ("The HTTP server", "security.md#the-http-server"),
}
"""Pages that say more about a key."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the file. Texts are Markdown."""

    path: str
    type: str
    default: str
    allowed: str
    description: str

    def row(self) -> str:
        more = "See [{}]({}).".format(*_MORE[self.path]) if self.path in _MORE else ""
        cells = (f"`{self.path}`", self.type, self.default, self.allowed, f"{self.description} {more}".strip())
        return f"| {' | '.join(cells)} |"


def page() -> str:
    """The page. Raises `AssertionError` if a key has no description, or a link has no key."""
    lines = list(_section(Settings, "", 1, _TITLE, set()))
    unknown = [path for path in _MORE if not any(line.startswith(f"| `{path}` ") for line in lines)]
    assert not unknown, f"links of keys that do not exist: {unknown}"
    return "\n".join(lines)


_TITLE = """# Configuration reference

Every key of the configuration file, its type, its default and its allowed values. [Configuration](configuration.md) explains how you write
values, relative paths and environment variables.

A key of the type *file* also accepts a mounted file: append `_file` to its name, and give the path of the file. `tables[]` stands for each
entry of the list `tables`. A default of *none* means that the key is not set.

## Top level
"""


def _section(section: type[Section], prefix: str, depth: int, heading: str, shown: set[Any]) -> Iterator[str]:
    """The keys of a section, then the sections in it, each under a heading.

    `shown` has the keys and sections of tables that are on the page already. A sentence names those that come again.
    """
    yield heading
    fields = {name: field for name, field in section.model_fields.items() if prefix != "sink." or name != "kind"}
    within = {name: sections for name, field in fields.items() if (sections := _sections_in(field.annotation))}
    within.pop("sinks", None)  # each of them has the keys of `sink`
    keys = [
        key(section, name, prefix)
        for name in fields
        if name not in within or fields[name].is_required() or name == "sink"
    ]
    own = [each for each in keys if each not in shown and not each.description.startswith("As `")]
    again = [each.path.removeprefix(prefix) for each in keys if each not in own]
    again += [name for name, several in within.items() if shown.issuperset(several)]
    if own:
        yield "| key | type | default | allowed values | description |"
        yield "|---|---|---|---|---|"
        yield from (key.row() for key in own)
        yield ""
    if again:
        yield f"As in an entry with `uri`: {', '.join(f'`{name}`' for name in again)}.\n"
    if prefix.startswith("tables[]."):
        shown.update(keys, *within.values())
    for name, several in within.items():
        if name in again:
            continue
        many = get_origin(fields[name].annotation) is tuple
        mapped = ".<column>" if "Mapping[" in str(fields[name].annotation) else ""
        path = f"{prefix}{name}{'[]' if many else mapped}"
        for inner in several:
            if inner is SinkSettings:
                yield from _sinks()
            else:
                title = f"`{path}`" + (" with `discover`" if inner is Discovery else "")
                yield from _section(inner, f"{path}.", depth + 1, _heading(inner, title, depth + 1), shown)


def _sinks() -> Iterator[str]:
    """The kinds of sinks that are part of cdfd: tests and other packages may register more."""
    kinds = {kind: SINKS.load(kind) for kind in SINKS.names()}
    kinds = {kind: settings for kind, settings in kinds.items() if settings.__module__.startswith("cdfd.")}
    description = descriptions(SinkSettings)["kind"][0]
    yield _heading(SinkSettings, "`sink`", 2)
    yield "| key | type | default | allowed values | description |"
    yield "|---|---|---|---|---|"
    yield Key("sink.kind", "text", "required", _choices(kinds), description).row()
    yield ""
    for kind, settings in kinds.items():
        yield from _section(settings, "sink.", 3, _heading(settings, f"`sink` of kind `{kind}`", 3), set())


def _heading(section: type[Section], title: str, depth: int) -> str:
    return f"{'#' * depth} {title}\n\n{(inspect.getdoc(section) or '').partition(chr(10) * 2)[0]}\n"


def key(section: type[Section], name: str, prefix: str) -> Key:
    field = section.model_fields[name]
    described = descriptions(section)
    assert name in described, f"{section.__name__}.{name} has no docstring"
    description, said = described[name]
    type_name, allowed = _type(field.annotation, field.metadata)
    default = said or ("required" if field.is_required() else _default(field.default, type_name))
    mounted = ", *file*" if name in file_settings() else ""
    return Key(f"{prefix}{name}", f"{type_name}{mounted}", default, allowed, description)


def _type(annotation: Any, metadata: Sequence[Any] = ()) -> tuple[str, str]:
    """The type of a field, and the values that it allows."""
    arguments = get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "mapping", ""
    if get_origin(annotation) is Annotated and _sections_in(annotation):
        return "mapping", ""
    if get_origin(annotation) is Annotated:
        # pydantic does the same with the field itself, but not within `| None`.
        flat = (each for one in arguments[1:] for each in (one.metadata if isinstance(one, FieldInfo) else (one,)))
        return _type(arguments[0], tuple(flat))
    if get_origin(annotation) is Literal:
        return "text", _choices(arguments)
    functions = [one.func for one in metadata if hasattr(one, "func")]
    for function in functions:
        if isinstance(function, partial):
            return "text", _choices(function.args[0].names())
    if functions:
        type_name, allowed = _PARSED[functions[0]]
        return type_name, allowed or _bounds(metadata, type_name)
    if get_origin(annotation) is tuple:
        inner, allowed = _type(arguments[0])
        return f"list of {_plural(inner)}", allowed
    if isinstance(get_origin(annotation), type) and issubclass(get_origin(annotation), Mapping):
        return f"mapping of {_plural(_type(arguments[1])[0])}", ""
    if type(None) in arguments:
        [inner] = (argument for argument in arguments if argument is not type(None))
        return _type(inner)
    return {str: "text"}[annotation], ""


def _plural(kind: str) -> str:
    return kind if kind == "text" else " or ".join(f"{one}s" for one in kind.split(" or "))


def _choices(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _bounds(metadata: Sequence[Any], kind: str) -> str:
    low = [one.ge for one in metadata if hasattr(one, "ge")]
    high = [one.le for one in metadata if hasattr(one, "le")]
    least = _default(max(low), kind) if low else ""
    return f"{least} to {_default(min(high), kind)}" if high else f"at least {least}" if low else ""


_UNITS = {"duration": values.seconds, "size": values.size}


def _default(value: Any, kind: str) -> str:
    if value is None or value == "":
        return "none"
    if kind in _UNITS:
        return f"`{with_unit(value, _UNITS[kind])}`"
    shown: Callable[[Any], str] = {
        bool: lambda flag: str(flag).lower(),
        tuple: lambda items: f"[{', '.join(map(str, items))}]",
    }.get(type(value), str)
    return f"`{shown(value)}`"


def _sections_in(annotation: Any) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [section for argument in get_args(annotation) for section in _sections_in(argument)]
