"""Row tracking, as a writer needs it: the ids of the rows of new files. Pure.

Source: the table feature `rowTracking` of deployed writers ("Row Tracking", "Writer Requirements for Row Tracking"). The rows of a file have
the ids from `baseRowId` on. A domain keeps the highest id that was ever given:

    rowIdHighWaterMark 99, files of 10 and 5 rows  ->  baseRowId 100 and 110, rowIdHighWaterMark 114
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from cdfd.delta.actions import DomainMetadata, Metadata, Protocol
from cdfd.delta.protocol import row_tracking_enabled, writer_features
from cdfd.errors import LogError

FEATURE = "rowTracking"
DOMAIN = "delta.rowTracking"
_MARK = "rowIdHighWaterMark"
_SUSPENDED = "delta.rowTrackingSuspended"
PRESERVED = {"delta.rowTracking.preserved": "true"}
"""Tags of a commit that keeps the ids of rows that it copies."""

Action = tuple[str, Mapping[str, Any]]


def gives_ids(protocol: Protocol, metadata: Metadata) -> bool:
    """Whether the rows of new files get ids: the table has the feature, even if it is not enabled, and it is not suspended."""
    return FEATURE in writer_features(protocol) and metadata.configuration.get(_SUSPENDED, "").lower() != "true"


def keeps_ids(protocol: Protocol, metadata: Metadata) -> bool:
    """Whether rows that are copied keep their ids: row tracking is enabled."""
    return gives_ids(protocol, metadata) and row_tracking_enabled(metadata)


def high_water_mark(domains: Mapping[str, DomainMetadata]) -> int:
    """The highest id that was given; -1: none.

    Raises:
        LogError: the domain's configuration has no such number.
    """
    domain = domains.get(DOMAIN)
    if domain is None:
        return -1
    try:
        mark = orjson.loads(domain.configuration)[_MARK]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        mark = None
    if isinstance(mark, bool) or not isinstance(mark, int):
        raise LogError(f"the domain {DOMAIN} has no {_MARK}: {domain.configuration!r:.200}")
    return mark


def with_row_ids(files: Sequence[tuple[Mapping[str, Any], int]], mark: int, version: int) -> list[Action]:
    """The `add` actions of new files, with ids after `mark`, and the domain with the next one.

    Args:
        files: the fields of each action, and the number of rows.
        mark: the highest id that was given.
        version: of the commit.
    """
    actions: list[Action] = []
    for fields, rows in files:
        actions.append(("add", {**fields, "baseRowId": mark + 1, "defaultRowCommitVersion": version}))
        mark += rows
    configuration = orjson.dumps({_MARK: mark}).decode()
    return [*actions, ("domainMetadata", {"domain": DOMAIN, "configuration": configuration, "removed": False})]
