"""The section of a sink, and what several sinks of one file mean for each of them.

With `sinks`, each sink has the file as if it were the only one: with its section under `sink`, the tables that go into it, and without the
settings that only another sink can take.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import PlainValidator, ValidationError, ValidationInfo

from cdfd.config import values
from cdfd.config.fields import Section, either
from cdfd.config.problems import Conflicts, Path, conflicts_of, quoted
from cdfd.config.table_folders import canonical
from cdfd.errors import ConfigError
from cdfd.runtime.registry import CONNECTORS, SINKS

if TYPE_CHECKING:
    from cdfd.config.table import Table


def sink_address(name: str, sink: str) -> str:
    """The name of a table or a pattern among those of several sinks: `orders@mirror`. Without a sink, it is its own.

    Args:
        name: of the table or the pattern.
        sink: its name in `sinks`; empty with `sink`.
    """
    return f"{name}@{sink}" if sink else name


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

    pipeline: Annotated[str, PlainValidator(values.pipeline_name)] | None = None
    """With `sinks`: name of the pipeline in this sink and in the ledger. Set it to keep the positions that another pipeline stored there.

    Default: `pipeline`.
    """

    @property
    def brokers(self) -> frozenset[str]:
        """Servers on which two sinks would meet if they had a name in common."""
        return frozenset()

    @property
    def topic_prefix(self) -> str:
        """The prefix of topics about the daemon; empty: the pipeline's name."""
        return ""

    @property
    def form(self) -> str:
        """The form of what is written, by which its cost is measured; empty: one form only."""
        return ""

    @property
    def partitions(self) -> tuple[int, int]:
        """Partitions and replicas of topics that the daemon creates; (0, 0) without topics."""
        return 0, 0

    @property
    def keeps_positions(self) -> bool:
        """Whether the sink keeps the position with the rows. Where not, the ledger's is the one that counts."""
        return True

    @property
    def typed_keys(self) -> frozenset[str]:
        """Types of Delta whose numbers have other keys than those of smaller types, such as `long`."""
        return frozenset()

    def refusal_of_headers(self, names: Iterable[str], *, keyed: bool) -> str | None:
        """Why records of a table cannot have headers of these names from columns; None if they can. `keyed`: whether the table has a key."""
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

    def connector(self, config: Any) -> Any:
        """The `cdfd.sinks.base.Connector` for `Settings`: by default the one in `registry.CONNECTORS`. Import slow modules here.

        Raises:
            ConfigError: the package of the sink has registered none.
        """
        if self.kind not in CONNECTORS:
            what = f"the sink {self.kind!r} has no connector"
            raise ConfigError(what, hint="Its settings must override `connector`: see docs/extending.md")
        return CONNECTORS.load(self.kind)(config, self)


SEVERAL = SinkSettings(kind="several")
"""Stands for `sink` in a file with `sinks`, whose settings are in `Settings.by_sink`."""


def parse_sink(entry: Any, info: ValidationInfo) -> Any:
    """The section of a sink, by its kind. For pydantic."""
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


def with_defaults_of_sink(data: dict[str, Any]) -> dict[str, Any]:
    """The file with defaults that depend on its sink: topics get its prefix; only a sink whose positions can be lost has a ledger."""
    sink = data.get("sink")
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


def _with_topic(table: Any, prefix: str) -> Any:
    if not isinstance(table, dict) or table.get("topic") is not None:
        return table
    if "discover" in table:
        return table | {"topic": f"{prefix}{table.get('name') or '{path}'}"}
    uri = table.get("uri")
    return table | {"topic": prefix + values.last_segment(uri)} if isinstance(uri, str) else table


SINK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def data_of_sink(
    data: Mapping[str, Any], name: str, sinks: Mapping[str, SinkSettings]
) -> tuple[dict[str, Any], Sequence[int]]:
    """The file as it is for one sink, and the index in the file of each of its tables.

    Record headers, heartbeats, signals and notifications are left out if the sink has no topics and another one has.

    Args:
        data: the file, whose sections are valid each for itself.
    """
    alone = {key: value for key, value in data.items() if key != "sinks"}
    entry = data["sinks"][name]
    alone["sink"] = {key: value for key, value in entry.items() if key != "pipeline"}
    if sinks[name].pipeline is not None:
        alone["pipeline"] = sinks[name].pipeline
    entries = [
        (
            index,
            {key: value for key, value in table.items() if key != "sinks"},
            list(sinks) if table.get("sinks") is None else table["sinks"],
        )
        for index, table in enumerate(data["tables"])
    ]
    entries = [(index, table, chosen) for index, table, chosen in entries if name in chosen]
    if not sinks[name].has_topics:
        for _, table, chosen in entries:
            if any(sinks[other].has_topics for other in chosen if other in sinks):
                table.pop("headers", None)
        if any(other.has_topics for other in sinks.values()):
            alone.pop("heartbeat", None)
            controls = alone.get("controls")
            if isinstance(controls, dict):
                alone["controls"] = {key: value for key, value in controls.items() if key not in _NEED_TOPICS}
    alone["tables"] = [table for _, table, _ in entries]
    return alone, [index for index, _, _ in entries]


_NEED_TOPICS = ("signals", "notifications")


def problems_of_sink(error: ValidationError, name: str, indices: Sequence[int]) -> Iterator[tuple[Path, str]]:
    """The problems of the file as it is for one sink, each with its path in the whole file."""
    for detail in error.errors(include_url=False, include_input=False):
        for below, text in conflicts_of(detail):
            path = (*detail["loc"], *below)
            if path == ("tables",) and not indices:
                yield ("sinks", name), "no table goes into it"
            elif path[:1] == ("sink",):
                yield ("sinks", name, *path[1:]), _in_file(text, indices)
            elif path[:1] == ("tables",) and len(path) > 1 and isinstance(path[1], int):
                yield ("tables", indices[path[1]], *path[2:]), f"for the sink {name}: {_in_file(text, indices)}"
            else:
                yield path, f"for the sink {name}: {_in_file(text, indices)}"


def _in_file(text: str, indices: Sequence[int]) -> str:
    """A text in which the tables of one sink have their indices in the file."""
    return re.sub(r"tables\[(\d+)\]", lambda match: f"tables[{indices[int(match[1])]}]", text)


def meetings(by_sink: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """The names that two sinks of one pipeline would both use in one place. `by_sink` has the `Settings` of each."""
    for (name, one), (later, other) in combinations(by_sink.items(), 2):
        if one.ledger_name == other.ledger_name:
            yield ("sinks", later, "pipeline"), f"the same as that of sinks.{name}; give another"
        if one.sink.brokers & other.sink.brokers:
            if one.pipeline == other.pipeline:
                text = f"required, because sinks.{name} has the same brokers and the same name there"
                yield ("sinks", later, "pipeline"), text
            both = sorted({table.topic for table in one.tables} & {table.topic for table in other.tables})
            if both:
                text = f"the topic {quoted(both[0])} is also one of sinks.{name}; give another prefix"
                yield ("sinks", later, "topics", "prefix"), text
            elif one.pipeline != other.pipeline:
                for topic in sorted({*one.own_topics.own}.intersection(other.own_topics.own)):
                    yield _meeting_of_own(topic, name, one.own_topics.own[topic], later)
            for whose, topics, tables in (name, one.own_topics, other.tables), (later, other.own_topics, one.tables):
                for topic in sorted({table.topic for table in tables}.intersection(topics.own)):
                    text = (
                        f"a table has the topic {quoted(topic)}, which is that of {topics.own[topic]} for sinks.{whose}"
                    )
                    yield ("sinks", later), f"{text}; give the table another"
        for place in sorted(_places(one) & _places(other)):
            yield ("sinks", later), f"writes to the same place as sinks.{name}: {quoted(place)}"


def _meeting_of_own(topic: str, name: str, key: str, later: str) -> tuple[Path, str]:
    if key == "heartbeat.topic":
        text = f"sinks.{name} and sinks.{later} on the same brokers would both write it; leave it out"
        return ("heartbeat", "topic"), text
    text = f"the topic {quoted(topic)} is also that of {key} for sinks.{name}; give another prefix"
    return ("sinks", later, "topics", "prefix"), text


Claim = tuple[str, str]
"""A topic on a server, or a place on none: what one table alone may write to."""


def claims(config: Any, table: Table) -> Mapping[Claim, str]:
    """The topics and places that a table has for itself in the sink of `Settings`, and how messages call them."""
    topics = {(broker, table.topic): f"the topic {quoted(table.topic)}" for broker in config.sink.brokers}
    places = config.sink.places(table.topic).values()
    return topics | {("", canonical(place)): f"the place {quoted(place)}" for place in places}


def _places(config: Any) -> frozenset[str]:
    """The places that a sink writes to, each by one spelling."""
    return frozenset(place for table in config.tables for server, place in claims(config, table) if not server)


def topics_elsewhere(name: str, by_sink: Mapping[str, Any]) -> Mapping[str, str]:
    """The topics of listed tables, and the daemon's own, of other sinks with a broker of this one; and the sink of each topic.

    Args:
        by_sink: as in `meetings`.
    """
    brokers = by_sink[name].sink.brokers
    others = [(other, config) for other, config in by_sink.items() if other != name and brokers & config.sink.brokers]
    return {
        topic: other
        for other, config in others
        for topic in (*config.own_topics.own, *(table.topic for table in config.listed))
    }
