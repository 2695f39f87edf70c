"""The state that a commit of `txn` actions needs: protocol, metadata and transaction identifiers of a log. Pure.

Source: specification, "Transaction Identifiers", "Action Reconciliation" and, as deployed writers have it, "In-Commit Timestamps".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from rpds import HashTrieMap

from cdfd import __version__
from cdfd.delta.actions import DomainMetadata, Metadata, Protocol, Txn
from cdfd.delta.checkpoint import State
from cdfd.delta.commit import Commit
from cdfd.delta.protocol import IN_COMMIT_TIMESTAMP, in_commit_timestamps_enabled, writer_features
from cdfd.delta.snapshot import with_domains
from cdfd.errors import LogError
from cdfd.sinks.ledger.ledger import PREFIX

Action = tuple[str, Mapping[str, Any]]
"""(name, fields), for `cdfd.delta.commit.serialize`."""

ENGINE = f"cdfd/{__version__}"
OPERATION = "RECORD PROGRESS"
NO_TAGS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TxnState:
    """A log at a version, without its files.

    Attributes:
        version, protocol, metadata: of the table.
        txns: the latest one of each appId in log order, which may not be the highest.
        domains: metadata per domain, removed ones left out.
        in_commit_timestamp: of `version`, if its log entry has one.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    txns: HashTrieMap[str, Txn]
    domains: HashTrieMap[str, DomainMetadata] = field(default_factory=HashTrieMap)
    in_commit_timestamp: int | None = None

    def apply(self, commit: Commit) -> TxnState:
        """The state after the next commit."""
        return replace(
            self,
            version=commit.version,
            protocol=commit.protocol or self.protocol,
            metadata=commit.metadata or self.metadata,
            txns=self.txns.update({txn.app_id: txn for txn in commit.txns}),
            domains=with_domains(self.domains, commit.domains),
            in_commit_timestamp=commit.in_commit_timestamp,
        )


def from_checkpoint(version: int, state: State) -> TxnState:
    """The state in a checkpoint of `version`.

    Raises:
        LogError: it has no protocol or no metadata.
    """
    if state.protocol is None or state.metadata is None:
        raise LogError("the checkpoint has no protocol or no metaData", version=version)
    domains = with_domains(HashTrieMap(), state.domains.values())
    return TxnState(version, state.protocol, state.metadata, HashTrieMap(state.txns), domains)


def first(commit: Commit) -> TxnState:
    """The state after version 0.

    Raises:
        LogError: it has no protocol or no metadata.
    """
    state = State(protocol=commit.protocol, metadata=commit.metadata)
    return from_checkpoint(commit.version, state).apply(commit)


def commit_info(
    operation: str,
    now_ms: int,
    before: TxnState | None = None,
    *,
    blind: bool = True,
    tags: Mapping[str, str] = NO_TAGS,
) -> Action:
    """The `commitInfo` of the version after `before`. It must be the first action.

    If in-commit timestamps are enabled, it has one: the current time, or one millisecond after the previous version if that is later.

    Raises:
        LogError: they are enabled, but the previous version has none.
    """
    fields: dict[str, Any] = {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": {},
        "isBlindAppend": blind,
        "engineInfo": ENGINE,
    }
    if tags:
        fields["tags"] = dict(tags)
    features = {IN_COMMIT_TIMESTAMP, f"{IN_COMMIT_TIMESTAMP}-preview"}
    enabled = before is not None and in_commit_timestamps_enabled(before.metadata)
    if before is not None and enabled and features & writer_features(before.protocol):
        if before.in_commit_timestamp is None:
            raise LogError(
                "in-commit timestamps are enabled, but the newest commit has none, so that the next one is unknown",
                version=before.version,
                hint="Store progress in a separate ledger: set `progress.ledger` to a folder or bucket prefix",
            )
        fields = {"inCommitTimestamp": max(now_ms, before.in_commit_timestamp + 1), **fields}
    return "commitInfo", fields


def txn(app_id: str, version: int, now_ms: int) -> Action:
    """A `txn` action."""
    return "txn", {"appId": app_id, "version": version, "lastUpdated": now_ms}


def is_ours(only_txns: Sequence[str]) -> bool:
    """Whether a version with these `Commit.only_txns` contains only progress of cdfd.

    Such a version must not be recorded, or records would never end. Only its appIds decide, because programs that copy tables may drop
    `commitInfo`. A false positive is harmless.
    """
    return bool(only_txns) and all(app_id.startswith(PREFIX) for app_id in only_txns)
