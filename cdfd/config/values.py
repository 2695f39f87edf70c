"""Parsers of settings: from the texts of a configuration file to values.

A parser takes the content of the file (text, None, a list, a mapping) or a value of the right type, and raises `ValueError` with the expected
form. The error never has the found value, which may be a secret; the caller decides whether to show it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self
from urllib.parse import unquote

from cdfd.errors import ConfigError
from cdfd.log.bounds import parse_bound
from cdfd.runtime.mounted import MountedText
from cdfd.storage import credentials
from cdfd.storage.queues.address import QueueAddress

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT_BYTES = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "KiB": 1 << 10,
    "MB": 10**6,
    "MiB": 1 << 20,
    "GB": 10**9,
    "GiB": 1 << 30,
    "TB": 10**12,
    "TiB": 1 << 40,
}
_SCHEMES = frozenset({"file", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"})
_CATALOGS = frozenset({"uc", "glue"})
_SERVER = r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:,/@\[\]]+):(?P<port>[0-9]{1,5})"


class Secret:
    """Text that no repr, message or dump contains. The text of a mounted file is the file's, also after a change.

    Two secrets are equal if they have the same text, or the same file.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str | MountedText) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the one call that needs it."""
        return self._text if isinstance(self._text, str) else self._text.read()

    @property
    def file(self) -> str | None:
        """The file that has the text; None if it is not mounted."""
        return None if isinstance(self._text, str) else self._text.path

    @classmethod
    def parse(cls, value: object) -> Self:
        """Text that is not empty, or a mounted file."""
        if isinstance(value, cls):
            return value
        if isinstance(value, MountedText) or (isinstance(value, str) and value):
            return cls(value)
        raise ValueError("expected text that is not empty")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[object, ...]:
        # Another machine, such as one of Spark's executors, does not have the file.
        return type(self), (self.reveal(),)

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"


class UserName(Secret):
    """A user name, which is often mounted together with its password. Unlike a password, it is shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"UserName({self.reveal()!r})"

    def __str__(self) -> str:
        return self.reveal()


def long_secret(secret: Secret) -> Secret:
    """A secret that cannot be guessed by trying."""
    if len(secret.reveal()) < 16:
        raise ValueError("expected at least 16 characters, such as the output of `openssl rand -hex 32`")
    return secret


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger: our own Delta table at `uri`, the `source` table itself, or `none`."""

    kind: Literal["table", "source", "none"]
    uri: str = ""

    @classmethod
    def parse(cls, value: object) -> Ledger:
        """`source`, `none`, or the place of a table."""
        if isinstance(value, Ledger):
            return value
        if value == "source" or value == "none":
            return cls(value)
        try:
            return cls("table", uri(value))
        except ValueError as error:
            raise ValueError(f"{error}, or source, or none") from None

    def __str__(self) -> str:
        return self.uri if self.kind == "table" else self.kind


@dataclass(frozen=True, slots=True)
class Listen:
    """An address to listen at."""

    host: str
    port: int

    @classmethod
    def parse(cls, value: object) -> Listen:
        """`host:port`; port 0 takes a free one."""
        if isinstance(value, Listen):
            return value
        match = re.fullmatch(_SERVER, value) if isinstance(value, str) else None
        if match is None or int(match["port"]) > 65535:
            raise ValueError("expected an address such as 127.0.0.1:9464, or null for no server")
        return cls(match["host"].strip("[]"), int(match["port"]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_now(value: object) -> object:
    """The text of a mounted file, for a setting that does not follow the file's changes. Other values are unchanged."""
    return value.read() if isinstance(value, MountedText) else value


def start(value: object) -> str:
    """`snapshot`, a value of `cdfd tail --from`, or a mapping of `after` to a version or a time; as text."""
    text = f"after {value.get('after')}" if isinstance(value, Mapping) else value
    if text == "snapshot":
        return "snapshot"
    try:
        bound = parse_bound(value if isinstance(value, str | Mapping) else "")
    except ConfigError:
        raise ValueError(
            "expected snapshot, earliest, latest, a version such as 12 or -1, "
            "a time such as 2026-01-01T00:00:00Z or 1 hour ago, or after: and a version or a time"
        ) from None
    return bound if isinstance(bound, str) else str(text)


def seconds(value: object) -> float:
    """`500ms`, `1s`, `5m`, `1h`, `1d` -> seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("expected a duration such as 500ms, 1s or 5m")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def size(value: object) -> int:
    """`256MiB`, `1.5GB`, `4096` -> bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?) ?([KMGT]i?B|B|)", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("expected a size such as 256MiB")
    return int(float(match[1]) * _UNIT_BYTES[match[2]])


def whole(value: object) -> int:
    """A whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
        return int(value)
    raise ValueError("expected a whole number")


def share(value: object) -> float:
    """A number from 0 to 1."""
    if isinstance(value, str) and re.fullmatch(r"[01]|[01]?\.[0-9]{1,9}", value):
        value = float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise ValueError("expected a number from 0 to 1")


def flag(value: object) -> bool:
    """`true` or `false`."""
    if value is True or value in ("true", "True", "TRUE"):
        return True
    if value is False or value in ("false", "False", "FALSE"):
        return False
    raise ValueError("expected true or false")


def uri(value: object) -> str:
    """A path, `file://`, `s3://`, or the URI of another store, without a final slash."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("expected a path, file:///… or s3://bucket/…")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", value)
    if scheme is not None and scheme[1].lower() in _CATALOGS:
        raise ValueError("expected a path, file:///… or s3://bucket/…; cdfd only reads the tables of a catalog")
    if scheme is not None and scheme[1].lower() not in _SCHEMES:
        raise ValueError("expected a path, file:///… or s3://bucket/…")
    _refuse_credentials(value)
    return value.rstrip("/") if value.strip("/") and not value.endswith(":///") else value


def table_uri(value: object) -> str:
    """The name of a table in a catalog, such as `uc://main.sales.orders`, or as `uri`."""
    matched = re.match(r"([A-Za-z]+)://", value) if isinstance(value, str) else None
    if not isinstance(value, str) or matched is None or matched[1].lower() not in _CATALOGS:
        return uri(value)
    name = value[matched.end() :].rstrip("/")
    if not all(name.split(".")) or "/" in name or "." not in name or not name.isprintable():
        raise ValueError("expected a name such as uc://catalog.schema.table or glue://database.table")
    return f"{matched[1].lower()}://{name}"


def folder(value: object) -> str:
    """The path of a local folder."""
    if not isinstance(value, str) or not value or "\0" in value or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", value):
        raise ValueError("expected the path of a folder")
    return value


def web_address(value: object) -> str:
    """`http://` or `https://` with a host."""
    if not isinstance(value, str) or not re.fullmatch(r"https?://[^\s/?#]+[^\s?#]*", value):
        raise ValueError("expected an address such as https://host:port")
    _refuse_credentials(value)
    return value.rstrip("/")


def addresses(value: object) -> tuple[str, ...]:
    """An address, or several as a list or separated by commas."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError("expected an address such as https://host:port, or several")  # noqa: TRY004 # pydantic's
    return tuple(item.strip() if isinstance(item, str) else item for item in items)


def queue(value: object) -> str:
    """The address of a queue; see `QueueAddress.parse`."""
    try:
        QueueAddress.parse(value if isinstance(value, str) else "")
    except ConfigError as error:
        raise ValueError(f"expected a queue. {error.hint}") from None
    return str(value)


def _refuse_credentials(address: str) -> None:
    if credentials.in_address(address):
        raise ValueError("expected an address without user name and password, which have their own keys")


def host_name(value: object) -> str:
    """A host name of the daemon, `*.` and a domain for all names of it, or `*` for all names."""
    name = r"(\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?)"
    if not isinstance(value, str) or not re.fullmatch(name, value) or len(value) > 253:
        raise ValueError("expected a host name such as cdfd.example.com, without a port, or *.example.com")
    return value


def servers(value: object) -> tuple[str, ...]:
    """`host:port`, or several as a list or separated by commas."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not items:
        raise ValueError("expected host:port, or several with commas between them")
    trimmed = tuple(item.strip() if isinstance(item, str) else "" for item in items)
    if not all(re.fullmatch(_SERVER, item) for item in trimmed):
        raise ValueError("expected host:port, or several with commas between them")
    return trimmed


def pipeline_name(value: object) -> str:
    """Lower-case letters, digits, `.`, `_` and `-`."""
    if not isinstance(value, str) or not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", value):
        raise ValueError(
            "expected a name of lower-case letters, digits, '.', '_' and '-' that begins with a letter or digit"
        )
    return value


def topic_name(value: object) -> str:
    """A valid name of a Kafka topic: at most 249 letters, digits, `.`, `_` and `-`, and neither `.` nor `..`."""
    if not isinstance(value, str) or not re.fullmatch(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}", value):
        raise ValueError("expected at most 249 letters, digits, '.', '_' and '-'; set one if the URI's is not valid")
    return value


def topic_prefix(value: object) -> str:
    """The prefix of topic names, possibly empty."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9._-]{0,200}", value):
        raise ValueError("expected at most 200 letters, digits, '.', '_' and '-'")
    return value


def last_segment(address: str) -> str:
    """The last path segment of a URI: the default name of a table."""
    segment = address.rstrip("/").rsplit("/", 1)[-1]
    return unquote(segment) if address.lower().startswith("file:") else segment
