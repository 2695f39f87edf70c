"""The position of a changelog in its target, as transaction identifiers. Pure.

    txn  {"appId": "cdfd/shop/orders", "version": 12}            all rows of the source up to this version are in the target
    txn  {"appId": "cdfd/shop/orders/next/<field>", ...}         the fields of the position, as numbers
    txn  {"appId": "cdfd/shop/orders/owner", "version": 4711}    the process that delivers: a random number

Every writer keeps `txn` actions, in commits and in checkpoints, unless a property of the target limits their age (see `check_retention`). The
source's id and the name of the changelog are properties of the target.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from cdfd.delta.actions import Metadata
from cdfd.errors import SinkError, UnsupportedError
from cdfd.model.control import EMPTY, Control
from cdfd.model.position import Position
from cdfd.sinks.delta.log_actions import CHANGELOG_MODE, Mode
from cdfd.sinks.ledger.txn_positions import digest_of, halves_of
from cdfd.sinks.ledger.txn_state import Action, TxnState, txn

CHANGELOG: Final = "cdfd.changelog"
"""Property of a target: the appId of its changelog."""
CONTROL: Final = "cdfd.changelog.control"
"""Property of a target: its `Control`, as JSON."""
SOURCE: Final = "cdfd.changelog.source"
"""Property of a target: `metaData.id` of the source."""
MODE: Final = "cdfd.changelog.mode"
"""Property of a target: its mode. A changelog has none."""
SHAPE: Final = "cdfd.changelog.shape"
"""Property of a mirror: the `Shape.digest` of its rows. Mirrors of earlier releases have none until their next version."""

_RETENTION = "delta.setTransactionRetentionDuration"
_FIELDS = ("version", "part", "snapshot", "ordinal", "digest0", "digest1")
_PLAN = "plan"
"""Field of positions within a version. Positions of earlier releases do not have it. 0: it is of an earlier position."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored state of a changelog.

    Attributes:
        position: the next position; None if nothing was delivered.
        owner: the number of the process that opened it last; None if there is none.
    """

    position: Position | None
    owner: int | None


def properties(app_id: str, table_id: str, mode: Mode, shape: str | None = None) -> Mapping[str, str]:
    """The properties of a new target. `shape`: of all of its rows; None: each row may have another."""
    named = {} if mode.name == CHANGELOG_MODE.name else {MODE: mode.name}
    shaped = {} if shape is None else {SHAPE: shape}
    return {CHANGELOG: app_id, SOURCE: table_id, **named, **shaped, **mode.properties}


def stored_position(state: TxnState, app_id: str, mode: str = CHANGELOG_MODE.name, place: str = "") -> Stored:
    """The stored state of the changelog in a target, or of a backfill of it.

    Args:
        state: of the target.
        app_id: of the changelog.
        mode: of the target.
        place: the beginning of the transaction identifiers of a backfill; empty: the daemon's.

    Raises:
        SinkError: the table is not the target of this changelog.
    """
    stored_id = state.metadata.configuration.get(CHANGELOG)
    if stored_id != app_id:
        what = "has no changelog of cdfd" if stored_id is None else f"has the changelog of {stored_id!r:.200}"
        raise SinkError(f"the Delta table at the target {what}", hint="Choose another `sink.path` or `topic`")
    if (other := state.metadata.configuration.get(MODE, CHANGELOG_MODE.name)) != mode:
        raise SinkError(
            f"the target was created with `sink.mode: {other:.100}`, and not with `{mode}`",
            hint=f"Restore the setting `mode: {other:.100}`, or choose another `sink.path` or `topic`",
        )
    place = place or app_id
    owner = state.txns.get(f"{place}/owner")
    numbers = [state.txns.get(position_txn(place, field)) for field in _FIELDS]
    present = [each.version for each in numbers if each is not None]
    if len(present) < len(_FIELDS):
        return Stored(None, None if owner is None else owner.version)
    version, part, snapshot, ordinal, *halves = present
    table_id = state.metadata.configuration.get(SOURCE, "")
    plan = state.txns.get(position_txn(place, _PLAN))
    position = Position(
        table_id,
        version,
        part,
        "snapshot" if snapshot else "stream",
        ordinal,
        digest_of(halves),
        None if plan is None else plan.version or None,
    )
    return Stored(position, None if owner is None else owner.version)


def check_retention(metadata: Metadata) -> None:
    """Returns if other writers keep the position for ever.

    Raises:
        UnsupportedError: they leave out transaction identifiers that are older than a property of the table says. A delivery writes those of
            its numbers that changed, so even a busy table has old ones.
    """
    if _RETENTION in metadata.configuration:
        raise UnsupportedError(
            f"rows cannot be appended to the table: with {_RETENTION}, its other writers forget the position",
            hint="Unset that property of the target, or deliver into another one",
        )


def stored_range(state: TxnState, role: str) -> Mapping[str, str | int]:
    """The range of a backfill; empty if there is none."""
    text = state.metadata.configuration.get(f"{CHANGELOG}.{role}")
    try:
        document = {} if text is None else orjson.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise SinkError(f"the target's property {CHANGELOG}.{role:.100} is damaged")
    return document


def range_properties(role: str, range: Mapping[str, str | int]) -> Mapping[str, str]:
    """The properties of a target that store the range of a backfill."""
    return {f"{CHANGELOG}.{role}": orjson.dumps(dict(range)).decode()}


def stored_control(state: TxnState) -> Control:
    """The control in a target.

    Raises:
        SinkError: it is no control.
    """
    text = state.metadata.configuration.get(CONTROL)
    try:
        return EMPTY if text is None else Control.parse(orjson.loads(text))
    except ValueError as error:
        raise SinkError(f"the target's property {CONTROL} is damaged: {error!s:.200}") from None


def control_properties(control: Control) -> Mapping[str, str]:
    """The properties of a target that store a control."""
    return {CONTROL: orjson.dumps(control.document()).decode()}


def position_actions(
    state: TxnState, app_id: str, position: Position, now_ms: int, *, again: bool = False
) -> list[Action]:
    """The actions that store a position: the numbers that differ from the stored ones, or `again` all of them."""
    is_snapshot = int(position.phase == "snapshot")
    values = (position.version, position.part, is_snapshot, position.ordinal, *halves_of(position.digest))
    wanted = {position_txn(app_id, field): value for field, value in zip(_FIELDS, values, strict=True)}
    if position.plan is not None or position_txn(app_id, _PLAN) in state.txns:
        wanted[position_txn(app_id, _PLAN)] = position.plan or 0
    if position.phase == "stream" and position.version > 0:
        wanted = {app_id: position.version - 1, **wanted}
    versions = {name: stored.version for name in wanted if (stored := state.txns.get(name)) is not None}
    return [txn(name, value, now_ms) for name, value in wanted.items() if again or versions.get(name) != value]


def owner_action(app_id: str, owner: int, now_ms: int) -> Action:
    """The action by which a process takes the changelog over."""
    return txn(f"{app_id}/owner", owner, now_ms)


def position_txn(app_id: str, field: str) -> str:
    """The transaction identifier of a field of the position. Each delivery writes that of `version`."""
    return f"{app_id}/next/{field}"
