"""A position as transaction identifiers of a log: the version, and the hash of that version's log entry. Pure.

A `txn` stores one number of 64 bits, but the hash (`cdfd.log.entry`) has 128. So the hash takes two more identifiers, whose appIds begin
with that of the position. Every writer keeps `txn` actions, in commits and in checkpoints:

    txn  {"appId": "cdfd/shop/orders", "version": 12, "lastUpdated": 1767225600000}
    txn  {"appId": "cdfd/shop/orders/digest/0", "version": 7066117563474843981, "lastUpdated": 1767225600000}
    txn  {"appId": "cdfd/shop/orders/digest/1", "version": -3407380316912226207, "lastUpdated": 1767225600000}

The three are written together, with the same `lastUpdated`. Earlier versions of cdfd write only the first one, beside the hash of another
version. If the three times differ, the hash is unknown.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from cdfd.sinks.ledger.ledger import PREFIX
from cdfd.sinks.ledger.txn_state import Action, TxnState, txn

FORGOTTEN = -1
"""The version of a deleted position, because a `txn` cannot be removed."""

_HALVES = struct.Struct(">qq")
_DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)
_APP_ID = re.compile(rf"{PREFIX}[^/]+/[^/]+/digest/[01]")
_UNKNOWN = (0, 0)


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """The position of an appId in a log's transaction identifiers.

    Attributes:
        version: the last delivered version; `FORGOTTEN`: none.
        digest: hash of that version's log entry, 32 hexadecimal digits; None if unknown.
        last_updated: time of the record, in ms since the Unix epoch.
    """

    version: int = FORGOTTEN
    digest: str | None = None
    last_updated: int | None = None


def halves_of(digest: str | None) -> tuple[int, int]:
    """A hash as two numbers. Two zeros stand for an unknown one, and for a hash of another kind, which is not compared."""
    if digest is None or _DIGEST.fullmatch(digest) is None:
        return _UNKNOWN
    first, second = _HALVES.unpack(bytes.fromhex(digest))
    return first, second


def digest_of(halves: Sequence[int]) -> str | None:
    """The hash that two numbers stand for; None if it is unknown."""
    return None if tuple(halves) == _UNKNOWN else _HALVES.pack(*halves).hex()


def stored_position(state: TxnState, app_id: str) -> StoredPosition:
    """The position of an appId."""
    recorded = state.txns.get(app_id)
    if recorded is None or recorded.version < 0:
        return StoredPosition(last_updated=None if recorded is None else recorded.last_updated)
    halves = [state.txns.get(name) for name in _app_ids(app_id)]
    # Without a time, it is unknown whether they belong together.
    together = recorded.last_updated is not None and all(
        half is not None and half.last_updated == recorded.last_updated for half in halves
    )
    digest = digest_of([half.version for half in halves if half is not None]) if together else None
    return StoredPosition(recorded.version, digest, recorded.last_updated)


def position_actions(state: TxnState, app_id: str, version: int, digest: str | None, now_ms: int) -> list[Action]:
    """The actions that record a position; empty if it is recorded. A hash in another form than in `StoredPosition` is ignored."""
    stored = stored_position(state, app_id)
    if digest is not None and _DIGEST.fullmatch(digest) is None:
        digest = None
    if (stored.version, stored.digest) == (version, digest):
        return []
    actions = [txn(app_id, version, now_ms)]
    names = _app_ids(app_id)
    # The hash of another version is overwritten, with an unknown one if need be.
    if digest is not None or any(name in state.txns for name in names):
        return actions + [txn(name, half, now_ms) for name, half in zip(names, halves_of(digest), strict=True)]
    return actions


def renewal(state: TxnState, app_id: str, now_ms: int) -> list[Action]:
    """The actions that record the same position with another time; empty if there is none."""
    stored = stored_position(state, app_id)
    if stored.version == FORGOTTEN:
        return []
    names = (app_id, *(_app_ids(app_id) if stored.digest is not None else ()))
    return [txn(name, state.txns[name].version, now_ms) for name in names]


def is_part(app_id: str) -> bool:
    """Whether an appId stores half of a hash, and is not a position."""
    return _APP_ID.fullmatch(app_id) is not None


def _app_ids(app_id: str) -> tuple[str, str]:
    return f"{app_id}/digest/0", f"{app_id}/digest/1"
