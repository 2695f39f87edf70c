"""Answers of an S3 server, as botocore parses them, as values. Pure; everything in them is foreign.

A proxy's page, or another kind of server, can have the status 200, too. Each function raises ValueError, with what the answer lacks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import pyarrow as pa
from botocore.utils import parse_timestamp

from cdfd.storage.s3.native import GetResult, Listed, modified_ms

_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


class Page(NamedTuple):
    """A page of a listing: its objects, the prefixes of its folders, and the token of the next page."""

    objects: Sequence[Listed]
    folders: Sequence[str]
    token: str | None


def time_of(text: str) -> datetime | None:
    """A time; None if it is none: most are not asked for. Botocore's own parser takes most of the time of reading a listing."""
    try:
        moment: datetime = datetime.fromisoformat(text) if text[4:5] == "-" else parsedate_to_datetime(text)
    except (ValueError, IndexError, OverflowError):
        try:
            moment = parse_timestamp(text)
        except (ValueError, RuntimeError, OverflowError):
            return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def head_of(answer: Mapping[str, Any]) -> GetResult:
    """The facts in the headers of an object, without its bytes."""
    size = _size(answer, "ContentLength")
    return GetResult(b"", size, modified_ms(field(answer, "LastModified")), field(answer, "ETag"))


def part_of(answer: Mapping[str, Any], data: bytes | pa.Buffer, start: int, length: int | None) -> GetResult:
    """The bytes of an object that were asked for, as in `Storage.read`, from the answer to a GET whose body is `data`."""
    total = len(data)
    if content_range := answer.get("ContentRange"):
        matched = _RANGE.fullmatch(content_range)
        if matched is None:
            raise ValueError(f"its Content-Range is {content_range!r:.100}")
        total = int(matched[3])
        first = max(0, total + start) if start < 0 else start
        if (int(matched[1]), len(data)) != (first, total - first if length is None else min(length, total - first)):
            raise ValueError(
                f"it has {len(data)} bytes of the range {content_range!r:.100}, which is not the one asked for"
            )
    elif start or length is not None:
        # The server does not support ranges, and sent the whole object.
        data = data[start:] if start < 0 else data[start : None if length is None else start + length]
    return GetResult(data, total, modified_ms(field(answer, "LastModified")), field(answer, "ETag"))


def page_of(answer: Mapping[str, Any], prefix: str) -> Page:
    """A page of a listing of a prefix."""
    if not {"IsTruncated", "Name"} & answer.keys():
        raise ValueError("it is no listing of a bucket")
    objects = [
        Listed(
            _below(field(each, "Key"), prefix),
            _size(each, "Size"),
            modified_ms(field(each, "LastModified")),
            each.get("ETag", ""),
        )
        for each in answer.get("Contents", ())
    ]
    folders = [_below(field(each, "Prefix"), prefix) for each in answer.get("CommonPrefixes", ())]
    return Page(objects, folders, field(answer, "NextContinuationToken") if answer.get("IsTruncated") else None)


def field(answer: Mapping[str, Any], name: str) -> Any:
    """A part of an answer by botocore's name."""
    value = answer.get(name)
    if value is None:
        raise ValueError(f"it has no valid {name}")
    return value


def _size(answer: Mapping[str, Any], name: str) -> int:
    size: int = field(answer, name)
    if not 0 <= size < 1 << 63:
        raise ValueError(f"it has a {name} of {size}")
    return size


def _below(key: str, prefix: str) -> str:
    if not key.startswith(prefix):
        raise ValueError(f"it lists {key!r:.200}, which does not begin with the prefix")
    return key
