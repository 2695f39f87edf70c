"""Names in a table's log, and paths of the table's files.

Source: specification, "File Types" (names), "Add File and Remove File" (`path` is a URI reference, RFC 2396); the
names of V2 checkpoints are those of deployed writers.

A path lives through two steps. `decode` makes the log's URI a plain path, once, when an action is parsed; two
spellings of one file come out equal, because reconciliation compares paths. `resolve` says, when the file is to be
read, under which root it lies, and refuses what lies under none: what the log says is not trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal
from urllib.parse import quote, unquote, unquote_to_bytes

import numpy as np
import pyarrow as pa

from cdfd.errors import LogError, PathError
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of, scalar_of

LOG = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"
SIDECARS = "_sidecars"

Kind = Literal["commit", "checkpoint", "part", "v2", "last_checkpoint"]

_MAX_VERSION = 2**63 - 1
_NAME = re.compile(
    r"""(?P<version>[0-9]{20})\.(?:
        (?P<commit>json)
      | checkpoint\.(?P<checkpoint>parquet)
      | checkpoint\.(?P<part>[0-9]{10})\.(?P<parts>[0-9]{10})\.parquet
      | checkpoint\.(?P<v2>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})\.(?:json|parquet)
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class LogName:
    """The parsed name of a file in `_delta_log`.

    Attributes:
        kind: `checkpoint` is a classic single file, `part` one of several, `v2` carries a UUID.
        version: of the table; -1 of `_last_checkpoint`.
        part, parts: number of a part, from 1, and how many there are.
    """

    kind: Kind
    version: int
    part: int | None = None
    parts: int | None = None

    @property
    def is_checkpoint(self) -> bool:
        """Whether this is a checkpoint or a part of one."""
        return self.kind in ("checkpoint", "part", "v2")


def parse_name(name: str) -> LogName | None:
    """Parse the name of a file directly in `_delta_log`.

    None for all that a reader skips: folders (`_sidecars/`, `_staged_commits/`), dot files, temporary files, names of
    no known form and names that contradict themselves (part 3 of 2). Version checksums (`n.crc`) and log compaction
    files (`x.y.compacted.json`) repeat what the log says. A reader that believed them would read other rows where they are
    wrong, so they are skipped, too.
    """
    if name == LAST_CHECKPOINT:
        return LogName("last_checkpoint", -1)
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    version = int(match["version"])
    if version > _MAX_VERSION:
        return None
    if match["parts"] is not None:
        part, parts = int(match["part"]), int(match["parts"])
        return LogName("part", version, part=part, parts=parts) if 1 <= part <= parts else None
    if match["v2"] is not None:
        return LogName("v2", version)
    return LogName("commit" if match["commit"] is not None else "checkpoint", version)


def commit_name(version: int) -> str:
    """`n.json`."""
    return f"{version:020d}.json"


def checkpoint_name(version: int) -> str:
    """`n.checkpoint.parquet`."""
    return f"{version:020d}.checkpoint.parquet"


# --- from URIs to paths ---------------------------------------------------------------------------
#
#   part=a%20b/x.parquet      ->  part=a b/x.parquet        decoded once; `%2525` becomes `%25`, `+` stays
#   file:/t/x, file:///t/x    ->  /t/x                      one spelling
#   s3a://b/x, s3n://b/x      ->  s3://b/x                  one spelling
#   file://host/x             ->  file://host/x             refused by `resolve`
#
#   ./x, d/../x, .//x          ->  x                         one spelling, as of Hadoop's paths in delta-spark
#
# The same expressions serve `decode` (re) and `decode_column` (RE2).
_FILE_URI = r"^(?i:file):(?:(?://localhost)?/|///+)([^/])"
_S3_URI = r"^(?i:s3[an]?)://"
_SCHEME = r"^(?i:file|s3[an]?):"
_WINDING = r"[^:/]//|(?:^|/)\.\.?(?:/|$)"
_ENCODED = re.compile(rf"%|{_SCHEME}|{_WINDING}")
_FILE = re.compile(_FILE_URI)
_S3 = re.compile(_S3_URI)
_WOUND = re.compile(_WINDING)
_BEGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*/?|/*")
_MALFORMED = re.compile(r"%(?![0-9a-fA-F]{2})")

_SAFE = "/:=@!$&'()*+,;~-._"
_PLAIN = r"^[A-Za-z0-9/:=@!$&'()*+,;~._-]*$"
"""Characters that a URI reference has as they are."""

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_PLAIN_FOLDER = re.compile(r"(?=.{0,255}$)([A-Za-z0-9._-]+=[A-Za-z0-9._-]+/)+")

_HEX = np.full(256, 255, dtype=np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16, dtype=np.uint8)
_HEX[np.frombuffer(b"ABCDEF", dtype=np.uint8)] = np.arange(10, 16, dtype=np.uint8)


def decode(uri_path: str) -> str:
    """The plain path of a URI reference in the log: percent-decoded exactly once, in its one canonical spelling.

    Raises:
        LogError: a malformed escape, or escapes that are not UTF-8.
    """
    if not _ENCODED.search(uri_path):
        return uri_path
    text = _S3.sub("s3://", _FILE.sub(r"/\1", uri_path))
    if _MALFORMED.search(text):
        raise LogError(f"the path {uri_path!r} is not a valid URI: a % is not followed by two hexadecimal digits")
    try:
        return _straight(unquote_to_bytes(text).decode("utf-8"))
    except UnicodeError:
        raise LogError(f"the path {uri_path!r} is not UTF-8 once it is decoded") from None


def _straight(path: str) -> str:
    """The path without empty segments, `.` and `..`, except for a `..` that leads out of it. One of a folder stays as it is."""
    if not _WOUND.search(path) or path.endswith(("/", "/.", "/..")) or path in (".", ".."):
        return path
    begin = _BEGIN.match(path)
    assert begin is not None
    segments: list[str] = []
    for segment in path[begin.end() :].split("/"):
        if segment == ".." and segments and segments[-1] != "..":
            segments.pop()
        elif segment not in ("", "."):
            segments.append(segment)
    return begin[0] + "/".join(segments)


def decode_column(column: pa.Array[Any]) -> pa.Array[Any]:
    """`decode` of every path of a string (or large string) array; nulls stay null, the type stays.

    Works on the column's bytes: the paths of a partitioned table are full of escapes, and a checkpoint may have a
    million of them.

    Raises:
        LogError: as `decode`, for the first such path.
    """
    respelled: Any = pc.match_substring_regex(column, _SCHEME)
    encoded: Any = pc.or_(respelled, pc.match_substring(column, "%"))
    if not pc.any(encoded).as_py():
        return _straighten(column)
    decoded: pa.Array[Any] = column.fill_null("")
    if pc.any(respelled).as_py():
        decoded = pc.replace_substring_regex(decoded, _FILE_URI, r"/\1")
        decoded = pc.replace_substring_regex(decoded, _S3_URI, "s3://")
    try:
        decoded = _unquote(decoded)
        decoded.validate(full=True)
    except ValueError:  # ArrowInvalid is one
        for path in column.filter(encoded):
            decode(str(path.as_py()))
        raise LogError("a path in the log is not UTF-8") from None
    if column.null_count:
        decoded = pc.if_else(column.is_valid(), decoded, scalar_of(None, column.type))
    return _straighten(decoded)


def _straighten(column: pa.Array[Any]) -> pa.Array[Any]:
    """`_straight` of every path: those few that need it, one by one."""
    winding: Any = pc.match_substring_regex(column, _WINDING)
    if not pc.any(winding).as_py():
        return column
    straight = array_of(map(_straight, column.filter(winding).to_pylist()), column.type)
    return pc.replace_with_mask(column, winding.fill_null(False), straight)


def encode_column(column: pa.Array[Any]) -> pa.Array[Any]:
    """Plain paths as URI references, as the log has them: the inverse of `decode_column`. Few paths need it, and those one by one."""
    plain: Any = pc.match_substring_regex(column, _PLAIN)
    if pc.all(plain).as_py() is not False:
        return column
    special = pc.invert(plain)
    encoded = array_of(map(quote, column.filter(special).to_pylist(), repeat(_SAFE)), column.type)
    return pc.replace_with_mask(column, special, encoded)


def partition_folder(values: Mapping[str, str | None]) -> str:
    """The folder of a partition as deployed writers name it, with a slash at its end: `day=2026-01-01/kind=a/`.

    Empty without partition columns, where it would be longer than some disks and stores allow, and where it would have escapes, which
    delta-rs does not decode in paths of change data files. The log has the values anyway.
    """
    folder = "".join(f"{name}={value or _NO_VALUE}/" for name, value in values.items())
    return folder if _PLAIN_FOLDER.fullmatch(folder) else ""


def _unquote(column: Any) -> pa.Array[Any]:
    """All strings of an array percent-decoded, whether that gives UTF-8 or not. ValueError for a malformed escape."""
    _, offset_buffer, data_buffer = column.buffers()
    width = np.int64 if pa.types.is_large_string(column.type) else np.int32
    offsets = np.frombuffer(offset_buffer, dtype=width)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8)[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    escapes = np.flatnonzero(data == ord("%"))
    ends = offsets[np.searchsorted(offsets, escapes, side="right")]
    if np.any(escapes + 3 > ends):
        raise ValueError("an escape ends with its string")
    high, low = _HEX[data[escapes + 1]], _HEX[data[escapes + 2]]
    if np.any((high > 15) | (low > 15)):
        raise ValueError("an escape is not hexadecimal")
    decoded = data.copy()
    decoded[escapes] = high << 4 | low
    kept = np.ones(len(data), dtype=np.bool_)
    kept[escapes + 1] = kept[escapes + 2] = False
    # A string begins two bytes earlier for every escape before it.
    shifted = (offsets - 2 * np.searchsorted(escapes, offsets, side="left")).astype(width)
    buffers = [None, pa.py_buffer(shifted.tobytes()), pa.py_buffer(decoded[kept].tobytes())]
    return pa.Array.from_buffers(column.type, len(column), buffers)


# --- from paths to places -------------------------------------------------------------------------

_HINT = "Add the folder or bucket prefix that it lies in to `allowed_roots` if the table may read there"
_PREFIX_HINT = (
    "If the files are in a store that cdfd reads, map their place: `path_prefixes: {dbfs:/mnt/lake: s3://lake}`"
)
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_FILE_SCHEME = re.compile(r"(?i:file):")
_OPAQUE = re.compile(r"[A-Za-z]:(?!//)|[A-Za-z][A-Za-z0-9+.-]*:/(?!/)")
"""A drive (`C:x`), or a scheme without a host (`dbfs:/x`, `hdfs:/x`): absolute, and in no store that is known here."""
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_SCHEMES = {"s3a": "s3", "s3n": "s3"}


@dataclass(frozen=True, slots=True)
class Location:
    """A file that may be read: `path` is relative to `root`, normalised, and never leads out of it.

    `root` is the table's root or one of the allowed roots, spelled as it was given to `resolve`.
    """

    root: str
    path: str


_Place = tuple[str, ...]
"""An absolute place: its store (`/`, or scheme and authority), then the segments below it."""

Prefixes = tuple[tuple[str, str], ...]
"""Prefixes of absolute paths in a log, and the places that they stand for."""


def resolve(root_uri: str, decoded_path: str, allowed_roots: Iterable[str] = (), prefixes: Prefixes = ()) -> Location:
    """The location of a file of the table, if the table may read it.

    Args:
        root_uri: root of the table: a local path, a `file:` URI, or a URI like `s3://bucket/prefix`. Absolute paths
            are recognised as the table's own only where it is absolute.
        decoded_path: as `decode` returns it; relative to the root, or absolute.
        allowed_roots: roots outside the table to which absolute paths may lead, in the form of `root_uri`.
        prefixes: places of paths that begin with a prefix, such as `dbfs:/mnt/lake` -> `s3://lake`. They may be read.

    Raises:
        PathError: the path leads out of every root, or is not a path that every store reads alike (backslashes,
            control characters, drive letters, `file://host/`, `dbfs:/`).
    """
    if _FORBIDDEN.search(decoded_path):
        raise _refusal(decoded_path, "has a backslash or a control character in its path")
    path = decoded_path
    for prefix, target in sorted(prefixes, key=lambda each: -len(each[0])):  # the longest prefix counts
        begin = prefix.rstrip("/")
        if decoded_path == begin or decoded_path.startswith(f"{begin}/"):
            path = _without_file_scheme(target).rstrip("/") + decoded_path[len(begin) :]
            break
    if _OPAQUE.match(path) or _FILE_SCHEME.match(path):
        what = "is neither below the table nor at an absolute path that cdfd understands"
        mapped = f"`path_prefixes` maps it to {path!r:.200}: map it to a path, or a URI such as s3://lake"
        raise _refusal(decoded_path, what, _PREFIX_HINT if path is decoded_path else mapped)
    place = _absolute(path)
    if place is None:
        return Location(root_uri, _below(decoded_path, _normalise(decoded_path.split("/"), decoded_path)))
    for root in (root_uri, *allowed_roots, *(to for _, to in prefixes)):
        base = _absolute(_without_file_scheme(root))
        if base is not None and base == place[: len(base)]:
            return Location(root, _below(decoded_path, place[len(base) :]))
    raise _refusal(decoded_path, "lies outside the table", _HINT)


def locate(root_uri: str, decoded_path: str) -> Location:
    """The location of a file that is compared with others and not read: also one that lies outside of the table.

    The `root` of such a location is that of the whole store, `/` or scheme and bucket. Buckets have aliases (S3 access points), so a key
    counts as one of the table's own bucket whatever bucket the path names.

    Args:
        root_uri, decoded_path: as for `resolve`.

    Raises:
        PathError: the path is in a store of another kind than the table, leads out of its store, or is not a path that every store
            reads alike.
    """
    base, place = _absolute(_without_file_scheme(root_uri)), _absolute(decoded_path)
    if base is None or place is None:
        return resolve(root_uri, decoded_path)
    if base[0].partition("//")[0] != place[0].partition("//")[0]:
        raise _refusal(decoded_path, "lies in a store of another kind than the table's")
    return resolve(root_uri, "/".join((base[0].rstrip("/"), *place[1:])), (base[0],))


def _absolute(path: str) -> _Place | None:
    """The place of an absolute path, None of a relative one."""
    uri = _URI.match(path)
    if uri is not None:
        scheme = uri["scheme"].lower()
        authority, *segments = uri["rest"].split("/")
        return f"{_SCHEMES.get(scheme, scheme)}://{authority}", *_normalise(segments, path)
    if path.startswith("//"):
        raise _refusal(path, "lies on another host")
    return ("/", *_normalise(path.split("/"), path)) if path.startswith("/") else None


def _without_file_scheme(root: str) -> str:
    if not _FILE_SCHEME.match(root):
        return root
    # Lenient, as stores are that were opened with it: the root comes from the user, not from the log.
    return unquote(_FILE.sub(r"/\1", root)) if _FILE.match(root) else re.sub(r"^(?i:file):/+$", "/", root)


def _normalise(segments: list[str], path: str) -> tuple[str, ...]:
    """Segments without empty ones, `.` and `..`, as Hadoop and clients of object stores have them."""
    result: list[str] = []
    for segment in segments:
        if segment == "..":
            if not result:
                raise _refusal(path, "lies outside the table", _HINT)
            result.pop()
        elif segment not in ("", "."):
            result.append(segment)
    return tuple(result)


def _below(path: str, segments: tuple[str, ...]) -> str:
    if not segments or path.endswith(("/", "/.", "/..")):
        raise _refusal(path, "is a folder")
    return "/".join(segments)


def _refusal(path: str, why: str, hint: str | None = None) -> PathError:
    # A path with control characters would speak to the terminal that the error is printed on.
    return PathError(f"the log names a file that {why}", path=path if path.isprintable() else repr(path), hint=hint)
