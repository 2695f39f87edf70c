"""Requests, their refusals, and the notifications that answer them. Pure.

A request is input from others. So its size and its types are checked here, before any other part of the daemon sees it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args
from uuid import uuid4

import orjson

from cdfd.errors import ConfigError
from cdfd.escaping import one_line
from cdfd.plan.shape.parser import parse_filter
from cdfd.runtime.logs import LEVELS

Action = Literal["pause", "resume", "snapshot", "stop-snapshot", "move", "log-level"]
ACTIONS: tuple[Action, ...] = get_args(Action)
Kind = Literal["malformed", "unauthorised", "unknown", "conflict", "duplicate", "too_large", "busy", "unsupported"]

MOST_BYTES = 64 << 10
"""Largest request, in bytes."""
MOST_ID = 100
"""Longest id of a request, in characters."""
_MOST_CHARACTERS = 4096
"""Longest condition: the position has it while the request is carried out."""
_MOST_VERSION = (1 << 63) - 1
_ID = re.compile(r"[!-~]+")
_FIELDS: Mapping[Action, frozenset[str]] = {
    "pause": frozenset(),
    "resume": frozenset(),
    "snapshot": frozenset({"where"}),
    "stop-snapshot": frozenset(),
    "move": frozenset({"version"}),
    "log-level": frozenset({"level"}),
}


class Refused(Exception):
    """A request that is not carried out.

    Attributes:
        reason: for the sender.
    """

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Attributes:
        id: identifies the request. The sender chooses it, or the daemon.
        table: the table's name in the configuration; None with `log-level`.
        where: with `snapshot`, the condition that selects files; empty: all files.
        version: with `move`, the version that counts as the last delivered one; otherwise -1.
        level: with `log-level`, the level.
    """

    action: Action
    id: str
    table: str | None
    where: str = ""
    version: int = -1
    level: str = ""


@dataclass(frozen=True, slots=True)
class Notification:
    """The answer to a request, or news about an action that takes time. Its JSON has the fields of Debezium's notifications.

    Attributes:
        aggregate: `Table`, `Incremental Snapshot` or `Log Level`.
        type: `PAUSED`, `RESUMED`, `MOVED`, `CHANGED`, `STARTED`, `IN_PROGRESS`, `COMPLETED`, `ABORTED`, `ACCEPTED` or `REFUSED`.
        message: for people.
        table: name of the table, if the request names one.
        details: other fields, such as a version.
        refusal: the kind of reason, if the request is refused.
    """

    id: str
    aggregate: str
    type: str
    message: str
    table: str | None = None
    details: Mapping[str, str | int] | None = None
    refusal: Kind | None = None

    def document(self, pipeline: str, at_ms: int) -> dict[str, Any]:
        """The notification as JSON values. Values of `additional_data` are text, as in Debezium's notifications."""
        about: dict[str, str] = {"connector_name": pipeline}
        if self.table is not None:
            about["data_collection"] = self.table
        about["message"] = self.message
        if self.refusal is not None:
            about["reason"] = self.refusal
        about |= {name: str(value) for name, value in (self.details or {}).items()}
        return {
            "id": self.id,
            "aggregate_type": self.aggregate,
            "type": self.type,
            "additional_data": about,
            "timestamp": at_ms,
        }


_AGGREGATES: Mapping[str, str] = {
    "snapshot": "Incremental Snapshot",
    "stop-snapshot": "Incremental Snapshot",
    "log-level": "Log Level",
}
"""The `aggregate_type` of notifications about an action, where it is not `Table`."""


def answer(request: Request, type: str, message: str, **details: str | int) -> Notification:
    """A notification that answers a request."""
    return Notification(request.id, _AGGREGATES.get(request.action, "Table"), type, message, request.table, details)


def refusal(error: Refused, id: str = "", action: str = "", table: str | None = None) -> Notification:
    """The notification about a refused request. Its text is on one line, because it may quote the request."""
    return Notification(
        id, _AGGREGATES.get(action, "Table"), "REFUSED", one_line(error.reason, 500), table, refusal=error.kind
    )


def document_of(data: bytes) -> dict[str, Any]:
    """The JSON object of a request; empty data is an empty object.

    Raises:
        Refused: the data is too large, or is not a JSON object.
    """
    if len(data) > MOST_BYTES:
        raise Refused("too_large", f"the request has {len(data)} bytes; at most {MOST_BYTES} are allowed")
    if not data.strip():
        return {}
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Refused("malformed", f"the request is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise Refused("malformed", "the request is not a JSON object")
    return document


def parse_id(document: Mapping[str, Any]) -> str:
    """The id of a request; a new one if it has none.

    Raises:
        Refused: the id is not text of printable ASCII characters, or is too long.
    """
    id = document.get("id")
    if id is None:
        return uuid4().hex
    if not isinstance(id, str) or len(id) > MOST_ID or not _ID.fullmatch(id):
        raise Refused("malformed", f"`id` must be text of 1 to {MOST_ID} printable ASCII characters without spaces")
    return id


def parse_request(action: str, table: str | None, id: str, document: Mapping[str, Any]) -> Request:
    """A request, with the types of its fields checked.

    Args:
        table: the table's name, which may not exist.
        document: the other fields, and perhaps `id`.

    Raises:
        Refused: the action is unknown, or a field is unknown, missing or invalid.
    """
    known_action = next((name for name in ACTIONS if name == action), None)
    if known_action is None:
        raise Refused(
            "unknown", f"there is no action {one_line(repr(action), 80)}; the actions are {', '.join(ACTIONS)}"
        )
    allowed = _FIELDS[known_action]
    unknown = sorted(set(document) - allowed - {"id"})
    if unknown:
        allowed_names = ", ".join(sorted(allowed | {"id"}))
        raise Refused("malformed", f"unknown field {one_line(repr(unknown[0]), 80)}; `{action}` takes {allowed_names}")
    where, version, level = document.get("where"), document.get("version"), document.get("level")
    if where is not None:
        if not isinstance(where, str) or not 0 < len(where) <= _MOST_CHARACTERS:
            raise Refused("malformed", f"`where` must be text of 1 to {_MOST_CHARACTERS} characters")
        try:
            parse_filter(where)
        except ConfigError as error:
            raise Refused("malformed", str(error)) from None
    if action == "move" and (type(version) is not int or not 0 <= version <= _MOST_VERSION):
        raise Refused("malformed", "`version` must be the number of the last delivered version, from 0 on")
    if action == "log-level" and level not in LEVELS:
        raise Refused("malformed", f"`level` must be one of {', '.join(LEVELS)}")
    return Request(known_action, id, table, where or "", -1 if version is None else version, level or "")
