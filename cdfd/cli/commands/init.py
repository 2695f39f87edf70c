"""`cdfd init`: writes a commented configuration for tables and a sink. It opens each table, and passes `cdfd check`."""

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote

from cdfd.config import values
from cdfd.config.parser import parse
from cdfd.delta.header import Header
from cdfd.delta.protocol import cdf_enabled, row_tracking_enabled
from cdfd.errors import ConfigError, StorageError, Within
from cdfd.escaping import one_line
from cdfd.log.table import Table
from cdfd.storage.base import root_of
from cdfd.storage.home import check_home

_KEY_PROPERTY = "cdfd.key"
_PLAIN = re.compile(r"[A-Za-z0-9./_][A-Za-z0-9./_:@*+-]*(?<!:)")
_PARSERS: Mapping[str, Callable[[object], object]] = {
    "kafka": values.servers,
    "files": values.folder,
    "delta": values.uri,
}
_WORDS = frozenset({"null", "~", "true", "false", "yes", "no", "on", "off"})


def run(tables: Sequence[str], sink: tuple[str, str], output: Path) -> str:
    """Write the file. Returns the two commands that follow.

    Args:
        tables: paths or URIs.
        sink: the kind of the sink, and its place: `kafka` and brokers, `files` and a folder, `delta` and a folder or a URI.
        output: the file to write.

    Raises:
        CdfdError: a table cannot be read, or its settings would be invalid. Nothing is written.
        ConfigError: the file exists, the place of the sink is none, or a table is named twice.
    """
    kind, place = sink
    if not place:
        raise ConfigError(f"--{kind} is empty", hint="Name a folder; with --kafka, a broker")
    if os.path.lexists(output):
        raise ConfigError("the file already exists", path=str(output), hint="Choose another with -o FILE")
    _check_place(kind, place)
    headers, roots = [], set[str]()
    for uri in tables:
        table = Table.open(uri)
        if (root := root_of(table.log.storage)) in roots:
            raise ConfigError("the same table is named twice", table=uri, hint="Name each table once")
        roots.add(root)
        with Within(table.uri):
            headers.append(asyncio.run(table.log.header()))
    folder = os.path.dirname(os.path.abspath(output))
    text = "".join(f"{line}\n" for line in _lines(tables, headers, sink, output, folder))
    parse(text, {}, str(output), folder)
    try:
        with open(output, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StorageError(f"cannot write: {error.strerror or error}", path=str(output)) from error
    name = quote(str(output))
    return f"Wrote {one_line(name)}. Next:\n\n  cdfd check -c {name}\n  cdfd run -c {name}\n"


def _check_place(kind: str, place: str) -> None:
    # Otherwise the error would name a line of a file that is never written.
    check_home(place)
    try:
        _PARSERS[kind](place)
    except ValueError as error:
        raise ConfigError(f"--{kind}: {error}") from None


def _lines(
    tables: Sequence[str], headers: Sequence[Header], sink: tuple[str, str], output: Path, folder: str
) -> Iterator[str]:
    names = _names(tables)
    # The name of the file, or of the first table if the file has the usual name.
    origin = names[0] if output.stem == "cdfd" else output.stem
    pipeline = re.sub(r"[^a-z0-9._-]+", "-", origin.lower()).strip("-._") or "pipeline"
    yield "# yaml-language-server: $schema=cdfd.schema.json"
    yield "# For completion in an editor, make that file once: cdfd config schema > cdfd.schema.json"
    yield ""
    yield "# A part of the names of positions and transactions. No two pipelines may share it."
    yield f"pipeline: {_scalar(pipeline)}"
    yield ""
    kind, place = sink
    prefix = f"{pipeline}." if kind == "kafka" else ""
    yield "tables:"
    for uri, name, header in zip(tables, names, headers, strict=True):
        yield from _table_lines(_from_folder(uri, folder), name, header, prefix)
    yield ""
    yield from _sink_lines(kind, place if kind == "kafka" else _from_folder(place, folder), prefix)
    yield ""
    yield "# Metrics, health and status. `listen: null` turns the server off."
    yield "http: {listen: 127.0.0.1:9464}"


def _table_lines(uri: str, name: str, header: Header, prefix: str) -> Iterator[str]:
    yield f"  - uri: {_scalar(uri)}"
    if name != values.last_segment(uri):
        yield f"    name: {_scalar(name)}"
        yield f"    topic: {_scalar(prefix + name)}"
    properties = header.metadata.configuration
    if key := [column.strip() for column in properties.get(_KEY_PROPERTY, "").split(",") if column.strip()]:
        yield f"    # The columns that identify a row, as the table property {_KEY_PROPERTY} has them."
        yield f"    key: [{', '.join(map(_scalar, key))}]"
    else:
        yield "    # The columns that identify a row: the key of the records. This is a guess: correct it, and remove the # before it."
        yield f"    # key: [{', '.join(map(_scalar, header.schema.names[:1]))}]"
    if cdf_enabled(header.metadata):
        updates = "The table has a change data feed, which tells updates from rows that were rewritten."
    elif row_tracking_enabled(header.metadata):
        updates = "The table has no change data feed. Its row tracking tells updates from rows that were rewritten."
    else:
        updates = "The table has no change data feed. With a key, cdfd tells updates from rows that were rewritten."
    yield f"    # {updates}"
    yield "    # `snapshot` delivers the live rows, then every change. Or: earliest, latest, a version, a time."
    yield "    start: snapshot"


def _sink_lines(kind: str, place: str, prefix: str) -> Iterator[str]:
    yield "sink:"
    yield f"  kind: {kind}"
    if kind == "kafka":
        servers = [server.strip() for server in place.split(",")]
        yield f"  bootstrap_servers: {_scalar(servers[0]) if len(servers) == 1 else json.dumps(servers)}"
        yield "  # The daemon creates missing topics. A topic is this prefix and the name of the table."
        yield f"  topics: {{prefix: {prefix}}}"
        yield "  # JSON rows. Or: debezium, cloudevents, avro, arrow."
        yield "  format: flat"
        yield "  # security: {protocol: SASL_SSL, mechanism: SCRAM-SHA-512, username: cdfd, password_file: /run/secrets/kafka}"
    elif kind == "files":
        yield "  # Each table has a folder in this one."
        yield f"  path: {_scalar(place)}"
        yield "  # JSON lines. Or: parquet, trevni."
        yield "  format: jsonl"
    else:
        yield "  # Each table has a Delta table in this place."
        yield f"  path: {_scalar(place)}"
        yield "  # `changelog` appends every change row. `mirror` keeps the rows of the table, and needs its key."
        yield "  mode: changelog"


def _names(uris: Sequence[str]) -> list[str]:
    """Names of tables, each its own: the last segment of the URI, and more segments for tables that have the same one."""
    segments = [
        [
            re.sub(r"[^A-Za-z0-9._-]+", "_", part)[:100] or "table"
            for part in re.split(r"/+", uri.partition("://")[2] or uri)
            if part
        ]
        for uri in uris
    ]
    names = [parts[-1] for parts in segments]
    length = 1
    while length < max(map(len, segments)) and max(Counter(names).values()) > 1:
        length += 1
        count = Counter(names)
        names = [
            name if count[name] == 1 else ".".join(parts[-length:]) for name, parts in zip(names, segments, strict=True)
        ]
    return names


def _from_folder(place: str, folder: str) -> str:
    """A relative path as it is from the folder of the file."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", place) or os.path.isabs(place):
        return place.rstrip("/") or place
    return os.path.relpath(place, folder)


def _scalar(text: str) -> str:
    """Text as YAML and the configuration read it: `${` begins a reference there."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text.replace("${", "$${"), ensure_ascii=False)
