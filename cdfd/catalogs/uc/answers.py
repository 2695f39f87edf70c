"""Answers of Unity Catalog as values of the port. Pure; everything in them is foreign.

Source: `api/delta.yaml` (names with `-`) and `api/all.yaml` (names with `_`) of unitycatalog/unitycatalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cdfd.catalogs.base import CatalogTable, Credential, RatifiedCommit
from cdfd.delta.protocol import CATALOG_MANAGED

_KEYS = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token", "azure.sas-token", "gcs.oauth-token")
_MAX_TEXT = 4096
_MAX_COMMITS = 1_000_000


def table_of(answer: Any) -> CatalogTable:
    """The table of an answer of `loadTable`.

    Raises:
        ValueError: it is not one.
    """
    metadata = _mapping(answer, "metadata")
    latest = _whole(answer.get("latest-table-version"), "latest-table-version")
    commits = _commits(answer.get("commits"), "-")
    managed = latest is not None or bool(commits) or _is_managed(metadata.get("properties"))
    return CatalogTable(_text(metadata, "table-uuid"), _location(metadata, "location"), managed, latest, commits)


def older_table_of(answer: Any) -> tuple[CatalogTable, str]:
    """The table of an answer of the older `getTable`, without commits; and its format."""
    if not isinstance(answer, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 # of the JSON, whose reader raises the same
    location = _location(answer, "storage_location")
    table = CatalogTable(_text(answer, "table_id"), location, _is_managed(answer.get("properties")))
    return table, str(answer.get("data_source_format"))[:100]


def older_commits_of(answer: Any) -> tuple[tuple[RatifiedCommit, ...], int]:
    """The commits of an answer of the older `getCommits`, ascending, and the newest version."""
    commits = _commits(_mapping({"answer": answer}, "answer").get("commits"), "_")
    latest = _whole(answer.get("latest_table_version"), "latest_table_version")
    if latest is None:
        raise ValueError("it has no latest_table_version")
    return commits, latest


def credentials_of(answer: Any) -> Sequence[Credential]:
    """The credentials of an answer of `getTableCredentials`."""
    credentials = _mapping({"answer": answer}, "answer").get("storage-credentials")
    if not isinstance(credentials, list) or len(credentials) > 1000:
        raise ValueError("it has no list of storage-credentials")
    return [_credential(each) for each in credentials]


def older_credentials_of(answer: Any, location: str) -> Sequence[Credential]:
    """The credential of an answer of the older API, which is for a table at a location."""
    answer = _mapping({"answer": answer}, "answer")
    aws = answer.get("aws_temp_credentials") or {}
    config = {
        "s3.access-key-id": aws.get("access_key_id"),
        "s3.secret-access-key": aws.get("secret_access_key"),
        "s3.session-token": aws.get("session_token"),
        "azure.sas-token": (answer.get("azure_user_delegation_sas") or {}).get("sas_token"),
        "gcs.oauth-token": (answer.get("gcp_oauth_token") or {}).get("oauth_token"),
    }
    url = answer.get("url")
    return [
        _credential(
            {
                "prefix": url if isinstance(url, str) and url else location,
                "config": config,
                "expiration-time-ms": answer.get("expiration_time"),
            }
        )
    ]


def page_of(answer: Any) -> tuple[list[str], str | None]:
    """The names of the Delta tables of a page of `listTables`, and the token of the next page."""
    answer = _mapping({"answer": answer}, "answer")
    tables = answer.get("tables") or []
    if not isinstance(tables, list):
        raise ValueError("its tables are not a list")  # noqa: TRY004 # as above
    names = []
    for each in tables:
        if isinstance(each, dict) and str(each.get("data_source_format")).upper() == "DELTA":
            names.append(_text(each, "name"))
    token = answer.get("next_page_token")
    return names, token if isinstance(token, str) and token else None


def _credential(credential: Any) -> Credential:
    config = _mapping(credential, "config")
    keys = {key: value for key in _KEYS if (value := config.get(key)) is not None}
    if not all(isinstance(value, str) and value.isascii() and value.isprintable() for value in keys.values()):
        raise ValueError("a credential is not text")
    return Credential(
        _location(credential, "prefix"), keys, _whole(credential.get("expiration-time-ms"), "expiration-time-ms")
    )


def _commits(commits: Any, dash: str) -> tuple[RatifiedCommit, ...]:
    if commits is None:
        return ()
    if not isinstance(commits, list) or len(commits) > _MAX_COMMITS:
        raise ValueError("its commits are not a list")
    ratified = []
    for commit in commits:
        if not isinstance(commit, dict):
            raise ValueError("a commit is not an object")  # noqa: TRY004 # as above
        version = _whole(commit.get("version"), "version")
        size = _whole(commit.get(f"file{dash}size"), f"file{dash}size")
        modified = _whole(commit.get(f"file{dash}modification{dash}timestamp"), "timestamp")
        if version is None:
            raise ValueError("a commit has no version")
        ratified.append(RatifiedCommit(version, _text(commit, f"file{dash}name"), None, size or 0, modified or 0))
    return tuple(sorted(ratified, key=lambda commit: commit.version))


def _is_managed(properties: Any) -> bool:
    texts = properties if isinstance(properties, dict) else {}
    return any(texts.get(f"delta.feature.{feature}") is not None for feature in CATALOG_MANAGED)


def _mapping(answer: Any, name: str) -> Mapping[str, Any]:
    value = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(value, dict):
        raise ValueError(f"it has no {name}")  # noqa: TRY004 # as above
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value or len(value) > _MAX_TEXT or not value.isprintable():
        raise ValueError(f"it has no {name} that is text")
    return value


def _location(fields: Mapping[str, Any], name: str) -> str:
    location = _text(fields, name).rstrip("/")
    if ".." in location.split("/") or not location:
        raise ValueError(f"its {name} leads out of a folder")
    return location


def _whole(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 2**63 - 1:
        raise ValueError(f"its {name} is not a whole number")
    return value
