"""The hint file `_last_checkpoint`: the version of the newest checkpoint, so that readers need not list the log.

Source: specification, "Last Checkpoint File" and "JSON checksum". A broken hint is no reason to fail: the caller
catches `LogError`, says so, and lists the log.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote

from cdfd.delta import paths
from cdfd.errors import LogError

MOST_BYTES = 1 << 20
"""Bytes of a hint, at most. delta-spark leaves a `checkpointSchema` out that has more than 20,000 characters."""

_MAX_LONG = 2**63 - 1
_MAX_INT = 2**31 - 1


class Number(str):
    """A JSON number as the text that it was written as: `1.0` and `1` have different checksums."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class V2Checkpoint:
    """Main file of a V2 checkpoint: its name in `_delta_log`; where known its size in bytes and time in ms."""

    path: str
    size_in_bytes: int | None = None
    modification_time: int | None = None


@dataclass(frozen=True, slots=True)
class LastCheckpoint:
    """The newest checkpoint, according to its writer.

    Attributes:
        version: of the table.
        size: number of actions in the checkpoint.
        size_in_bytes: of the checkpoint.
        num_of_add_files: number of `add` actions in it.
        v2_checkpoint: its main file where it is a V2 checkpoint.
    """

    version: int
    size: int
    size_in_bytes: int | None = None
    num_of_add_files: int | None = None
    v2_checkpoint: V2Checkpoint | None = None


def parse(data: bytes) -> LastCheckpoint:
    """The hint in a `_last_checkpoint` file.

    Raises:
        LogError: too large, not one JSON object, duplicate keys at any depth, fields of wrong types, negative numbers, a checksum
            that does not match, or the name of a V2 checkpoint that is not one of this version.
    """
    if len(data) > MOST_BYTES:
        raise _error(f"is larger than {MOST_BYTES >> 20} MiB")
    try:
        fields = _load(data)
        if not isinstance(fields, dict):
            raise _error("is not a JSON object")
        stated = fields.get("checksum")
        if stated is not None:
            if not isinstance(stated, str) or isinstance(stated, Number):
                raise _error("has a checksum that is not a string")
            if stated.lower() != (actual := checksum(fields)):
                raise _error(f"states the checksum {stated!r:.80}, but has {actual}")
        version = _require(fields, "version")
        _number(fields, "parts", least=1, most=_MAX_INT)
        return LastCheckpoint(
            version=version,
            size=_require(fields, "size"),
            size_in_bytes=_number(fields, "sizeInBytes"),
            num_of_add_files=_number(fields, "numOfAddFiles"),
            v2_checkpoint=_v2(fields.get("v2Checkpoint"), version),
        )
    except RecursionError:
        raise _error("is nested too deeply") from None


def serialize(hint: LastCheckpoint) -> bytes:
    """The bytes of a `_last_checkpoint` file, with a checksum of its own."""
    fields: dict[str, Any] = {
        "version": hint.version,
        "size": hint.size,
        "sizeInBytes": hint.size_in_bytes,
        "numOfAddFiles": hint.num_of_add_files,
        "v2Checkpoint": None
        if hint.v2_checkpoint is None
        else _present(
            {
                "path": hint.v2_checkpoint.path,
                "sizeInBytes": hint.v2_checkpoint.size_in_bytes,
                "modificationTime": hint.v2_checkpoint.modification_time,
            }
        ),
    }
    fields = _present(fields)
    return json.dumps(fields | {"checksum": checksum(fields)}, separators=(",", ":")).encode()


def checksum(content: Any) -> str:
    """MD5 in hexadecimal of the canonical form of a JSON value, or of a JSON document's bytes.

    Raises:
        LogError: bytes that are not a JSON document, or one with duplicate keys.
    """
    value = _load(content) if isinstance(content, bytes) else content
    return hashlib.md5(canonical(value).encode(), usedforsecurity=False).hexdigest()


def canonical(value: Any) -> str:
    """The canonical form of a JSON value (specification, "JSON checksum"); a `checksum` at the top does not count.

    `{"b": {"y": null, "x": "hi ho"}, "a": [10]}` gives `"a"+0=10,"b"+"x"="hi%20ho","b"+"y"=null`. Numbers are kept as
    written where the value comes from a document; empty objects and arrays have no leaves, hence no form.
    """
    if isinstance(value, dict):
        value = {name: member for name, member in value.items() if name != "checksum"}
    # Everything in a path is ASCII by now: the order of characters is the order of bytes.
    return ",".join(
        f"{path}={leaf}" if path else leaf for path, leaf in sorted(_leaves(value), key=lambda leaf: leaf[0])
    )


def _leaves(root: Any) -> Iterator[tuple[str, str]]:
    # A stack of its own: a document as deep as the parser allows must not exhaust Python's.
    todo = [("", root)]
    while todo:
        path, value = todo.pop()
        prefix = f"{path}+" if path else ""
        if isinstance(value, dict):
            todo.extend((prefix + _quote(name), member) for name, member in value.items())
        elif isinstance(value, list):
            todo.extend((f"{prefix}{index}", member) for index, member in enumerate(value))
        elif isinstance(value, str) and not isinstance(value, Number):
            yield path, _quote(value)
        else:
            yield path, _scalar(value)


def _quote(text: str) -> str:
    try:
        return f'"{quote(text, safe="")}"'
    except UnicodeEncodeError:
        raise _error("has a string that is not Unicode") from None


def _scalar(value: Any) -> str:
    return value if isinstance(value, Number) else json.dumps(value)


def _load(data: bytes) -> Any:
    """JSON with numbers as text and without duplicate keys."""
    try:
        return json.loads(
            data.decode("utf-8"),
            parse_int=Number,
            parse_float=Number,
            parse_constant=_no_constant,
            object_pairs_hook=_unique,
        )
    except (ValueError, RecursionError) as error:
        raise _error(f"is not valid JSON: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise _error(f"has {name}, which is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise _error(f"has the key {name!r:.80} twice in one object")
        fields[name] = value
    return fields


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _require(fields: dict[str, Any], name: str) -> int:
    value = _number(fields, name)
    if value is None:
        raise _error(f"has no {name}")
    return value


def _number(fields: dict[str, Any], name: str, least: int = 0, most: int = _MAX_LONG) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    # 19 digits hold every long; more would only make int() slow.
    if not isinstance(value, Number) or not value.isdecimal() or len(value) > 19 or not least <= int(value) <= most:
        raise _error(f"has {name} {_scalar(value)[:40]}, which is not a whole number from {least} to {most}")
    return int(value)


def _v2(value: Any, version: int) -> V2Checkpoint | None:
    if value is None:
        return None
    path = value.get("path") if isinstance(value, dict) else None
    if not isinstance(path, str) or isinstance(path, Number):
        raise _error("has a v2Checkpoint without a path")
    name = paths.parse_name(path)
    if name is None or not name.is_checkpoint or name.version != version:
        raise _error(f"has a v2Checkpoint {path!r:.200}, which is not a checkpoint of version {version}")
    return V2Checkpoint(path, _number(value, "sizeInBytes"), _number(value, "modificationTime"))


def _error(what: str) -> LogError:
    return LogError(f"_last_checkpoint {what}", path=f"{paths.LOG}/{paths.LAST_CHECKPOINT}")
