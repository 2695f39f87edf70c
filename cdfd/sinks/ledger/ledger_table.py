"""The table of a ledger: a Delta table with reader version 1, writer version 2 and no rows. Pure.

Every Delta reader can open it. Positions are its transaction identifiers (`txn_positions`); which table a position is of stands beside
them in the table's properties, because a `txn` has no place for it and only `txn` and `metaData` survive in checkpoints:

    txn       {"appId": "cdfd/shop/orders", "version": 12, "lastUpdated": ...}, and two for the hash of the entry of version 12
    metaData  {"configuration": {"cdfd.ledger": "1", "cdfd.table.shop/orders": "<metaData.id of orders>"}, ...}
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from cdfd.delta.actions import Metadata
from cdfd.delta.types import schema as schemas
from cdfd.delta.write.writing import PLAIN, metadata_fields, protocol_fields
from cdfd.errors import ConfigError, UnsupportedError
from cdfd.sinks.ledger.ledger import PREFIX
from cdfd.sinks.ledger.txn_positions import position_actions, renewal, stored_position
from cdfd.sinks.ledger.txn_state import Action, TxnState

_FORMAT = "1"
_MARK = "cdfd.ledger"
_TABLE = "cdfd.table."
_COLUMN = pa.schema([("unused", pa.string())])


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A record of one appId. Equal records are distinct objects.

    Attributes:
        version: the last delivered version; `FORGOTTEN`: none.
        table_id: id of the table.
        digest: hash of that version's log entry; None where it is not known.
        renews: whether the recorded position stays, with the present time. The other fields then mean nothing.
    """

    app_id: str
    version: int
    table_id: str | None
    digest: str | None = None
    renews: bool = False


def creation(table_id: str, now_ms: int) -> list[Action]:
    """The actions of version 0, except for `commitInfo`."""
    metadata = Metadata(
        id=table_id,
        schema_string=schemas.serialize(schemas.from_arrow(_COLUMN)),
        partition_columns=(),
        configuration={_MARK: _FORMAT},
        name="cdfd ledger",
        description="How far cdfd has delivered: the transaction identifiers of this table. It has no rows.",
        created_time=now_ms,
    )
    return [("protocol", protocol_fields(PLAIN)), ("metaData", metadata_fields(metadata))]


def check(metadata: Metadata) -> None:
    """Refuse a table that is not a ledger, because a ledger's log is cleaned up.

    Raises:
        ConfigError: the table is not a ledger.
        UnsupportedError: a newer version of cdfd wrote the ledger.
    """
    form = metadata.configuration.get(_MARK)
    if form is None:
        raise ConfigError(
            "the Delta table at the ledger's location is not a ledger",
            hint="Set `progress.ledger` to a separate location, or to `source` to store progress in each table",
        )
    if form != _FORMAT:
        raise UnsupportedError(f"the ledger has format {form!r}, not {_FORMAT!r}", hint="A newer cdfd may read it")


def proposal(state: TxnState, changes: Iterable[Change], now_ms: int) -> list[Action]:
    """The actions that record `changes`. Of several changes of one appId the last one counts. Empty if all are recorded."""
    configuration = dict(state.metadata.configuration)
    renewals = {change.app_id: renewal(state, change.app_id, now_ms) for change in changes if change.renews}
    actions: list[Action] = []
    for change in {change.app_id: change for change in changes if not change.renews}.values():
        key, stored, digest = key_of(change.app_id), stored_position(state, change.app_id), change.digest
        if digest is None and (stored.version, configuration.get(key)) == (change.version, change.table_id):
            digest = stored.digest
        renewed = renewals.pop(change.app_id, [])
        # Readers refuse an entry with two `txn` of one appId. A new record has the present time, too.
        actions += position_actions(state, change.app_id, change.version, digest, now_ms) or renewed
        if change.table_id is None:
            configuration.pop(key, None)
        else:
            configuration[key] = change.table_id
    actions += [action for renewed in renewals.values() for action in renewed]
    if configuration != state.metadata.configuration:
        actions.append(("metaData", metadata_fields(state.metadata) | {"configuration": configuration}))
    return actions


def key_of(app_id: str) -> str:
    """The property of the ledger with the id of an appId's table."""
    return _TABLE + app_id.removeprefix(PREFIX)
