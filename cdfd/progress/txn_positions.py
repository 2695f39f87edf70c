"""A position as transaction identifiers of a log: the version, and the hash of that version's log entry. Pure.

A `txn` holds one number of 64 bits, and the hash (`cdfd.tail.history`) has 128. So it takes two more, whose appIds begin with that of the
position. `txn` actions are what every writer keeps, in commits and in checkpoints:

    txn  {"appId": "cdfd/shop/orders", "version": 12, "lastUpdated": 1767225600000}
    txn  {"appId": "cdfd/shop/orders/digest/0", "version": 7066117563474843981, "lastUpdated": 1767225600000}
    txn  {"appId": "cdfd/shop/orders/digest/1", "version": -3407380316912226207, "lastUpdated": 1767225600000}

Earlier versions of cdfd write the first alone. The hash of another version then stays beside it, which `lastUpdated` tells: the three are
written together. Where they were not, the hash is not known.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from cdfd.progress.ledger import PREFIX
from cdfd.progress.txn_state import Action, TxnState, txn

FORGOTTEN = -1
"""The version of a position that counts no more: there is no way to remove a `txn`."""

_HALVES = struct.Struct(">qq")
_DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)
_APP_ID = re.compile(rf"{PREFIX}[^/]+/[^/]+/digest/[01]")
_UNKNOWN = (0, 0)


@dataclass(frozen=True, slots=True)
class Held:
    """What a log's transaction identifiers say of an appId.

    Attributes:
        version: the last one delivered; `FORGOTTEN` where none is known.
        digest: hash of that version's log entry, 32 hexadecimal digits; None where it is not known.
        last_updated: when it was recorded, in ms since the Unix epoch.
    """

    version: int = FORGOTTEN
    digest: str | None = None
    last_updated: int | None = None


def held(state: TxnState, app_id: str) -> Held:
    """What a log knows of an appId."""
    found = state.txns.get(app_id)
    if found is None or found.version < 0:
        return Held(last_updated=None if found is None else found.last_updated)
    halves = [state.txns.get(name) for name in _app_ids(app_id)]
    # Without a time nothing says whether they belong together.
    together = found.last_updated is not None and all(
        half is not None and half.last_updated == found.last_updated for half in halves
    )
    numbers = tuple(half.version for half in halves if half is not None) if together else _UNKNOWN
    digest = None if numbers == _UNKNOWN else _HALVES.pack(*numbers).hex()
    return Held(found.version, digest, found.last_updated)


def recording(state: TxnState, app_id: str, version: int, digest: str | None, now_ms: int) -> list[Action]:
    """The actions that make a position known; none where it is. A hash of another form than `Held` has it is not known."""
    known = held(state, app_id)
    if digest is not None and _DIGEST.fullmatch(digest) is None:
        digest = None
    if (known.version, known.digest) == (version, digest):
        return []
    actions = [txn(app_id, version, now_ms)]
    names = _app_ids(app_id)
    if digest is not None:
        halves = _HALVES.unpack(bytes.fromhex(digest))
    elif any(name in state.txns for name in names):
        # They must not be taken for those of this version.
        halves = _UNKNOWN
    else:
        return actions
    return actions + [txn(name, half, now_ms) for name, half in zip(names, halves, strict=True)]


def is_part(app_id: str) -> bool:
    """Whether an appId holds half of a hash, and so is no position of its own."""
    return _APP_ID.fullmatch(app_id) is not None


def _app_ids(app_id: str) -> tuple[str, str]:
    return f"{app_id}/digest/0", f"{app_id}/digest/1"
