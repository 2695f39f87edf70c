"""Options of `format("cdfd")`. Options that delta-spark also has have the same names."""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Literal, cast, get_args

from cdfd.deliver.path_ranges import SnapshotPlanning
from cdfd.errors import ConfigError
from cdfd.log.bounds import After, Bound, parse_bound
from cdfd.model.plan import Changes
from cdfd.model.refinement import Refine
from cdfd.plan.row_options import AS_STORED, RowOptions, check_key_is_read
from cdfd.plan.shape.chosen import Chosen
from cdfd.plan.shape.shape import AS_IT_IS, check_key_masks

logger = logging.getLogger("cdfd.spark")

MASK = "mask."
"""Prefix of options for masks, such as `mask.email`."""

STORAGE = "storage."
"""Prefix of options for the table's store, such as `storage.endpoint_url`."""

MOST = 2**63 - 1

OnReplace = Literal["stop", "continue"]
"""The policy of a stream at a `CREATE OR REPLACE TABLE`."""

_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a read.

    Attributes:
        path: the table's path or URI.
        start: a version, a time, a duration before now, `earliest`, `latest` or `snapshot`; None: the default.
        end: a version, a time or a duration before now; None: the newest version.
        rows: the options of the rows, but for their columns.
        net: whether to return only the net changes of each key. Batch reads only.
        columns: the columns, in order; None: all. Without a change column among them, all change columns are added.
        skip_missing: whether to skip missing files.
        max_files, max_bytes, max_versions, max_rows: limits of one micro-batch; None: no limit.
        partition_bytes: bytes of files for one task; None: computed from the total.
        allowed_roots: additional locations for absolute paths in the log.
        path_prefixes: places of absolute paths in the log, by prefix.
        max_log_line: see `DeltaLog`.
        snapshot_planning: which processes list the files of a snapshot.
        on_replace: whether a stream continues after a `CREATE OR REPLACE TABLE`. Batches always do.
        packed: whether the rows pass through Spark as bytes; see `cdfd.spark.source.packed`.
        keep_key_names: whether a stream ends before the columns of the key have other names, which are part of a record's key.
        storage: options of the table's store. Never shown, because they may be secrets.
    """

    path: str
    start: Bound | None = None
    end: Bound | None = None
    rows: RowOptions = AS_STORED
    net: bool = False
    columns: tuple[Chosen, ...] | None = None
    skip_missing: bool = False
    max_files: int | None = None
    max_bytes: int | None = None
    max_versions: int | None = None
    max_rows: int | None = None
    partition_bytes: int | None = None
    allowed_roots: tuple[str, ...] = ()
    path_prefixes: tuple[tuple[str, str], ...] = ()
    max_log_line: int | None = None
    on_replace: OnReplace = "stop"
    snapshot_planning: SnapshotPlanning = "auto"
    packed: bool = False
    keep_key_names: bool = False
    storage: Mapping[str, object] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse Spark's options. Their names are not case-sensitive.

        Raises:
            ConfigError: an option is unknown or invalid. The error never has the value of a storage option.
        """
        # Spark converts option names of streaming sources to lower case, so case never matters.
        texts = {name.lower(): text for name, text in options.items()}
        storage = {name.removeprefix(STORAGE): text for name, text in texts.items() if name.startswith(STORAGE)}
        masks = {name.removeprefix(MASK): text for name, text in texts.items() if name.startswith(MASK)}
        named = {
            name if name in _NAMES else name.replace("_", ""): text
            for name, text in texts.items()
            if not name.startswith((STORAGE, MASK))
        }
        if "provider" in named:
            # Only a CREATE TABLE passes this. Spark 4.1 leaves out the options and the location when it reads the table.
            raise ConfigError(
                "Spark passes no options to a table of its catalog",
                hint="Create a view: CREATE TEMPORARY VIEW feed USING cdfd OPTIONS (path 's3://lake/orders')",
            )
        for name in named:
            if name in _OF_DELTA and named[name].strip().lower() == "true":
                raise ConfigError(f"there is no option {_OF_DELTA[name]}", hint=_CHANGES_ARE_READ)
            if name not in _NAMES and name not in _OF_DELTA:
                near = difflib.get_close_matches(name, _NAMES, 1)
                hint = f"Did you mean {_NAMES[near[0]]}? " if near else ""
                hint += f"Known: {', '.join(_OPTIONS)}, {MASK}<column>, and {STORAGE}<name> for the table's store"
                spelled = next(each for each in options if name in (each.lower(), each.lower().replace("_", "")))
                raise ConfigError(f"unknown option {spelled!r:.100}", hint=hint)
        if named.get("table"):
            if named.get("path"):
                raise ConfigError("path and table are both given", hint="Give one of them")
            name = named["table"].strip()
            named["path"] = name if "://" in name else f"uc://{name}"
        if not named.get("path"):
            raise ConfigError(
                "no table is named", hint='Give its path or URI: .format("cdfd").load("s3://lake/orders")'
            )
        if named.get("readchangefeed", "true").strip().lower() != "true":
            raise ConfigError(
                "readChangeFeed is false, but cdfd reads only changes",
                hint='Omit it, or read the table\'s rows with format("delta")',
            )
        parsed = cls(
            named["path"],
            _bound(named, "startingVersion", "startingTimestamp"),
            _bound(named, "endingVersion", "endingTimestamp"),
            _row_options(named, masks),
            flag(named, "netChanges"),
            _columns(named),
            flag(named, "ignoreMissingFiles"),
            _count(named, "maxFilesPerTrigger"),
            _size(named, "maxBytesPerTrigger"),
            _count(named, "maxVersionsPerTrigger", "versions"),
            _count(named, "maxRowsPerTrigger", "rows"),
            _size(named, "maxPartitionBytes"),
            _list(named, "allowedRoots") or (),
            _pairs(named, "pathPrefixes"),
            _size(named, "maxLogLine"),
            cast(OnReplace, _word(named, "onReplace", "stop", get_args(OnReplace))),
            cast(SnapshotPlanning, _word(named, "snapshotPlanning", "auto", get_args(SnapshotPlanning))),
            flag(named, "packed"),
            flag(named, "keepKeyNames"),
            storage,
        )
        rows = parsed.rows
        if parsed.net and (not rows.key or parsed.start == "snapshot"):
            raise ConfigError(
                "netChanges needs a key, and a range of versions", hint="Name its columns: the option `key`"
            )
        if parsed.net and rows.shape.excluded:
            raise ConfigError("netChanges needs all change types", hint="Omit `excludeChangeTypes`")
        check_key_masks(dict(rows.shape.masks), rows.key)
        check_key_is_read(rows.key, None if parsed.columns is None else [column.name for column in parsed.columns])
        return parsed


_OPTIONS = (
    "path",
    "table",
    "readChangeFeed",
    "startingVersion",
    "startingTimestamp",
    "endingVersion",
    "endingTimestamp",
    "maxFilesPerTrigger",
    "maxBytesPerTrigger",
    "maxVersionsPerTrigger",
    "maxRowsPerTrigger",
    "changes",
    "refine",
    "key",
    "dropUnchanged",
    "netChanges",
    "where",
    "columns",
    "excludeChangeTypes",
    "ignoreMissingFiles",
    "maxPartitionBytes",
    "allowedRoots",
    "pathPrefixes",
    "maxLogLine",
    "onReplace",
    "snapshotPlanning",
    "packed",
    "keepKeyNames",
)
_NAMES = {name.lower(): name for name in _OPTIONS}

_CHANGES_ARE_READ = (
    "cdfd reads updates and deletes as changes: leave them out with `excludeChangeTypes`, or omit the option"
)
_OF_DELTA = {name.lower(): name for name in ("ignoreChanges", "ignoreDeletes", "skipChangeCommits")}
"""Options of delta-spark without a meaning for change rows, by their names in lower case. With the value `false`, they are as omitted."""


def _row_options(options: Mapping[str, str], masks: Mapping[str, str]) -> RowOptions:
    """The options of the rows, but for their columns."""
    changes = cast(Changes, _word(options, "changes", "auto", get_args(Changes)))
    refine, key = cast(Refine, _word(options, "refine", "auto", get_args(Refine))), _list(options, "key") or ()
    drop_unchanged, where = flag(options, "dropUnchanged"), options.get("where")
    excluded, shape = _list(options, "excludeChangeTypes") or (), AS_IT_IS
    if where is not None or masks or excluded:
        # It imports the configuration, which takes each Python process of Spark as long as half of everything else.
        from cdfd.config.shapes import shape_of

        shape = shape_of(where, None, masks, excluded)
    if refine == "key" and not key:
        raise ConfigError("refine is 'key', but there is no key", hint="Name its columns: the option `key`")
    return RowOptions(changes, refine, key, shape, drop_unchanged)


def option_text(value: object) -> str:
    """The value of an option as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def written(rows: RowOptions) -> dict[str, str]:
    """The options of rows as `SourceOptions.parse` takes them, with the keys of masks. Never show them."""
    from cdfd.config.shapes import mask_as_json

    shape = rows.shape
    columns, where = shape.columns, shape.where
    options = {
        "changes": rows.changes,
        "refine": rows.refine,
        "key": json.dumps(rows.key) if rows.key else "",
        "columns": json.dumps([each.entry for each in columns]) if columns else "",
        "where": "" if where is None else where.text,
        "excludeChangeTypes": ",".join(shape.excluded),
        "dropUnchanged": str(rows.drop_unchanged).lower(),
    }
    options |= {f"{MASK}{name}": mask_as_json(mask) for name, mask in shape.masks}
    return {name: text for name, text in options.items() if text}


def _bound(options: Mapping[str, str], version: str, timestamp: str) -> Bound | None:
    at, since = options.get(version.lower()), options.get(timestamp.lower())
    if at is not None and since is not None:
        raise ConfigError(f"{version} and {timestamp} are both given", hint="Give one of them")
    if at is None:
        return None if since is None else _moment(timestamp, since)
    word, begins = at.strip().lower(), version.startswith("start")
    words = ("latest", "earliest", "snapshot") if begins else ("latest",)
    if word in words:
        return word
    number = word.removeprefix("after ").strip() if begins else word
    if re.fullmatch(r"-?[0-9]{1,12}", number):
        return int(number) if number == word else After(int(number))
    hint = f"It is a version, -1 for the newest, or one of: {', '.join(words)}"
    raise ConfigError(f"{version} is {at!r:.100}", hint=hint)


def _moment(name: str, text: str) -> datetime | timedelta | After:
    """A time as in delta-spark (`2026-01-01`, `2026-01-01 12:30:00`, with a zone or in UTC) or as in `cdfd tail`."""
    try:
        bound = parse_bound(text)
    except ConfigError:
        bound = ""
    if isinstance(bound, After) and not isinstance(bound.bound, int) and name.startswith("start"):
        return bound
    is_number = text.strip().isdigit()  # of milliseconds, which Python may read as a date
    if isinstance(bound, datetime) and not is_number and datetime.fromisoformat(text.strip()).tzinfo is None:
        _warn_of_zone(name)
    if isinstance(bound, datetime | timedelta):
        return bound
    raise ConfigError(
        f"{name} is {text!r:.100}, which is not a time", hint="Such as 2026-01-01T12:30:00Z, or `1 hour ago`"
    )


@cache
def _warn_of_zone(name: str) -> None:
    """Once in each process. Spark does not tell a Python source the session's zone."""
    logger.warning("%s has no zone and is in UTC, not in the session's zone; add one, such as Z or +02:00", name)


def _word(options: Mapping[str, str], name: str, default: str, words: Sequence[str]) -> str:
    word = options.get(name.lower(), default).strip().lower()
    if word not in words:
        raise ConfigError(f"{name} is {word!r:.100}", hint=f"One of: {', '.join(words)}")
    return word


def _list(options: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    text = options.get(name.lower())
    if text is None:
        return None
    names = _document(text, list)
    if names is None:
        names = [each.strip() for each in text.split(",")]
    if not names or not all(isinstance(each, str) and each for each in names):
        raise ConfigError(f"{name} is {text!r:.200}", hint="Names with commas between them, or a JSON array of names")
    return tuple(names)


def _columns(options: Mapping[str, str]) -> tuple[Chosen, ...] | None:
    text = options.get("columns", "")
    entries = _document(text, list)
    if not entries:
        return None if (names := _list(options, "columns")) is None else tuple(map(Chosen.parse, names))
    columns = tuple(column for entry in entries if (column := Chosen.of(entry)) is not None)
    if len(columns) < len(entries):
        raise ConfigError(f"columns is {text!r:.200}", hint='Names, or {"name": "a", "as": "c"}')
    return columns


def _pairs(options: Mapping[str, str], name: str) -> tuple[tuple[str, str], ...]:
    document = _document(options.get(name.lower(), ""), dict)
    pairs = (
        [(key, value) for text in _list(options, name) or () for key, _, value in [text.partition("=")]]
        if document is None
        else list(document.items())
    )
    if not all(key and isinstance(value, str) and value for key, value in pairs):
        raise ConfigError(
            f"{name} is {options[name.lower()]!r:.200}",
            hint="Such as dbfs:/mnt/lake=s3://lake, with commas between, or a JSON object",
        )
    return tuple(pairs)


def _document(text: str, kind: type[list[Any] | dict[str, Any]]) -> Any:
    """A list or object of JSON, in which names may have commas; None: the text is none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, kind) else None


def flag(options: Mapping[str, str], name: str) -> bool:
    """Whether an option is `true`. `ConfigError` if it is something else than `true` or `false`."""
    text = options.get(name.lower(), "false").strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name} is {text!r:.100}", hint="true or false")
    return text == "true"


def _count(options: Mapping[str, str], name: str, what: str = "files") -> int | None:
    return _whole(options, name, {"": 1}, f"A number of {what}, from 1 on")


def _size(options: Mapping[str, str], name: str) -> int | None:
    return _whole(options, name, _SIZES, "A number of bytes, such as 67108864 or 64m")


def _whole(options: Mapping[str, str], name: str, units: Mapping[str, int], hint: str) -> int | None:
    text: Any = options.get(name.lower())
    if text is None:
        return None
    word = text.strip().lower()
    digits = word.rstrip("bkmgt")
    unit = word[len(digits) :]
    unit = unit[:-1] if len(unit) == 2 and unit.endswith("b") else unit
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and unit in units and int(digits)):
        raise ConfigError(f"{name} is {text!r:.100}", hint=hint)
    return min(int(digits) * units[unit], MOST)
