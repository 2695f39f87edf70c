"""Options of `format("cdfd-kafka")`: a configuration file, or the keys of one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdfd.config.parser import load, parse
from cdfd.config.settings import Settings, Table
from cdfd.config.shapes import mask_settings
from cdfd.errors import ConfigError, UnsupportedError
from cdfd.plan.shape.chosen import Chosen
from cdfd.sinks.kafka.settings import KafkaSettings
from cdfd.spark.source.options import flag

_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname", "outputmode", "path"})
"""Options that Spark's own `writeStream` and `save` add to a sink's options."""
_OF_TABLE: Final = {"uri": "uri", "table": "name", "topic": "topic", "where": "where"}
_LISTS: Final = frozenset({"key", "columns", "exclude_change_types"})
_MAPPINGS: Final = ("mask", "headers")
_KAFKA: Final = "kafka."
_SPELLED: Final = {"bootstrap.servers": "bootstrap_servers"}
_FREE: Final = "topics.config."
_OF_FILE: Final = frozenset({"config", "folder", "table"})


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write.

    Attributes:
        config: all settings.
        table: the table of the rows.
        sink: Kafka.
        job: name of a batch job, whose rows are written once, even if it runs again, while no other job or query of the table ran in
            between; None: a new name each time.
        snapshot: version of a snapshot, whose rows some formats mark as live rows; None: no snapshot.
        shaped: whether the rows have their shape already.
    """

    config: Settings
    table: Table
    sink: KafkaSettings
    job: str | None = None
    snapshot: int | None = None
    shaped: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str], environ: Mapping[str, str] | None = None) -> SinkOptions:
        """Parse Spark's options. Their names are not case-sensitive.

        `config` and `table` name a file and a table of it; `folder` says where its relative paths begin, if not at its own. Or else
        `pipeline`, `uri`, `table`, `topic`, `key`, `columns`, `where`, `exclude_change_types`, `mask.<column>` and `headers.<name>` are those
        of a table, and anything else is a key of `sink`, nested ones with dots, with `kafka.` before it or not; or of `storage` or
        `catalogs`, such as `storage.s3.region`. Values may refer to the environment, as those of a file. With `shaped`, the rows have
        their shape already: they were read with the same settings.

        Raises:
            ConfigError: an option is invalid. The error never has a secret.
            UnsupportedError: the file has another kind of sink.
        """
        named = {name.lower(): text for name, text in options.items() if name.lower() not in _SPARK_OPTIONS}
        job, snapshot = named.pop("job", None), named.pop("snapshotversion", None)
        if snapshot is not None and not (snapshot.isascii() and snapshot.isdigit() and len(snapshot) < 20):
            raise ConfigError(f"snapshotVersion is {snapshot!r:.100}, which is not a version")
        shaped = flag(named, "shaped")
        named.pop("shaped", None)
        config = _from_file(named, environ) if "config" in named else _from_options(named, environ)
        sink = config.sink
        if not isinstance(sink, KafkaSettings):
            raise UnsupportedError(f"the configuration's sink is of kind {sink.kind}", hint="Use `sink.kind: kafka`")
        name = named["table"] if "table" in named else config.listed[0].name
        table = config.table(name)
        if table is None:
            tables = ", ".join(table.name for table in config.listed)
            raise ConfigError(f"there is no table {name!r:.200} in the configuration", hint=f"There are: {tables}")
        return cls(config, table, sink, job, None if snapshot is None else int(snapshot), shaped)


def _from_file(named: Mapping[str, str], environ: Mapping[str, str] | None) -> Settings:
    for name in named:
        if name not in _OF_FILE:
            raise ConfigError(
                f"option {name!r:.100} with `config`",
                hint="With a file, give only `table`, `job`, `snapshotVersion` and `shaped`",
            )
    config = load(named["config"], environ, named.get("folder"))
    if "table" not in named and len(config.listed) != 1:
        names = ", ".join(table.name for table in config.listed)
        raise ConfigError("option `table` is required: the configuration has several", hint=f"There are: {names}")
    return config


def _from_options(named: Mapping[str, str], environ: Mapping[str, str] | None) -> Settings:
    for name in ("pipeline", "uri"):
        if not named.get(name):
            raise ConfigError(f"option `{name}` is required", hint="Or name a configuration file: `config` and `table`")
    table: dict[str, Any] = {}
    sink: dict[str, Any] = {"kind": "kafka"}
    sections: dict[str, dict[str, Any]] = {"storage": {}, "catalogs": {}}
    for name, text in named.items():
        section, _, entry = name.partition(".")
        if name == "columns":
            table[name] = [Chosen.parse(each).entry for each in text.split(",")]
        elif name in _LISTS:
            table[name] = [each.strip() for each in text.split(",")]
        elif section in _MAPPINGS and entry:
            value = mask_settings(text) if section == "mask" else text
            table.setdefault(section, {})[entry] = value
        elif name in _OF_TABLE:
            table[_OF_TABLE[name]] = text
        elif section in sections and entry:
            _put(sections[section], entry, text)
        elif name != "pipeline":
            key = name.removeprefix(_KAFKA)
            _put(sink, _SPELLED.get(key, key), text)
    document: dict[str, Any] = {
        "pipeline": named["pipeline"],
        "tables": [table],
        "sink": sink,
        "progress": {"ledger": "none"},
    }
    document |= {name: section for name, section in sections.items() if section}
    # The environment is used for references, and for `AWS_*` variables as with a file.
    return parse(json.dumps(document), os.environ if environ is None else environ, "options")


def _put(section: dict[str, Any], name: str, text: str) -> None:
    """Add an entry to a section or a nested one. Names of topic settings may contain dots."""
    path = ["topics", "config", name.removeprefix(_FREE)] if name.startswith(_FREE) else name.split(".")
    for key in path[:-1]:
        section = section.setdefault(key, {}) if isinstance(section, dict) else section
    if not isinstance(section, dict) or path[-1] in section:
        raise ConfigError(f"option {name!r:.100} repeats another one", hint="Give one of them")
    section[path[-1]] = text
