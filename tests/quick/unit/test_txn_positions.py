"""Positions in the transaction identifiers of a log."""

from dataclasses import replace

import pytest
from rpds import HashTrieMap

from cdfd.delta.actions import DomainMetadata, Metadata, Protocol, Txn
from cdfd.delta.checkpoint import State
from cdfd.errors import LogError, SinkError
from cdfd.model.control import EMPTY
from cdfd.model.position import Position
from cdfd.sinks.delta.positions import (
    CHANGELOG,
    CONTROL,
    SOURCE,
    Stored,
    owner_action,
    position_actions,
    stored_control,
    stored_range,
)
from cdfd.sinks.delta.positions import stored_position as target_position
from cdfd.sinks.ledger.ledger import app_id
from cdfd.sinks.ledger.txn_positions import StoredPosition, digest_of, halves_of, stored_position
from cdfd.sinks.ledger.txn_positions import position_actions as ledger_actions
from cdfd.sinks.ledger.txn_state import TxnState, commit_info, from_checkpoint

APP = app_id("shop", "orders")
HALVES = (0x0011223344556677, 0x8899AABBCCDDEEFF - (1 << 64))
DIGEST = "00112233445566778899aabbccddeeff"
ENABLED = Metadata("i", "{}", (), {"delta.enableInCommitTimestamps": "true"})
PLAIN = Protocol(1, 2)


def state(*txns: Txn, protocol: Protocol = PLAIN) -> TxnState:
    return TxnState(5, protocol, ENABLED, HashTrieMap({txn.app_id: txn for txn in txns}), in_commit_timestamp=100)


def halves(*times: int | None) -> list[Txn]:
    return [Txn(f"{APP}/digest/{place}", HALVES[place], time) for place, time in enumerate(times)]


@pytest.mark.parametrize(
    ("time", "times", "digest"),
    [
        (7, (7, 7), DIGEST),
        (7, (7, 6), None),
        (7, (6, 7), None),
        (7, (7,), None),
        (7, (), None),
        (None, (None, None), None),
    ],
)
def test_digest_counts_if_it_was_recorded_with_the_position(
    time: int | None, times: tuple[int | None, ...], digest: str | None
) -> None:
    actual = stored_position(state(Txn(APP, 3, time), *halves(*times)), APP)
    assert actual == StoredPosition(3, digest, time)


@pytest.mark.parametrize(("known", "written"), [(0, 1), (1, 3), (2, 3)])
def test_digest_of_another_version_is_overwritten(known: int, written: int) -> None:
    recorded = state(Txn(APP, 3, 7), *halves(7, 7)[:known])
    actions = ledger_actions(recorded, APP, 4, None, 8)
    assert [fields["version"] for _, fields in actions] == [4, 0, 0][:written]


@pytest.mark.parametrize(("version", "delivered"), [(0, []), (1, [0]), (7, [6])])
def test_the_version_that_is_delivered_is_recorded_by_the_name_of_the_table(version: int, delivered: list[int]) -> None:
    actions = position_actions(state(), APP, Position("T", version), 0)
    assert [fields["version"] for _, fields in actions if fields["appId"] == APP] == delivered


def test_how_parts_were_planned_is_stored_with_a_position_within_a_version() -> None:
    target = replace(state(), metadata=Metadata("i", "{}", (), {CHANGELOG: APP, SOURCE: "T"}))
    for at, written in (
        (Position("T", 2), 0),
        (Position("T", 3, 1, plan=7), 1),
        (Position("T", 4), 1),
        (Position("T", 5), 0),
    ):
        actions = [fields for _, fields in position_actions(target, APP, at, 0)]
        assert sum(fields["appId"].endswith("/plan") for fields in actions) == written
        for fields in actions:
            target = replace(
                target, txns=target.txns.insert(fields["appId"], Txn(fields["appId"], fields["version"], 0))
            )
        actual = target_position(target, APP).position
        assert actual is not None
        assert (actual, actual.plan) == (at, at.plan)


@pytest.mark.parametrize("text", ["{", "[]", '{"snapshots":-1}'])
def test_damaged_control_of_a_target_is_refused(text: str) -> None:
    assert stored_control(state()) == EMPTY
    with pytest.raises(SinkError, match="is damaged"):
        stored_control(replace(state(), metadata=Metadata("i", "{}", (), {CONTROL: text})))


@pytest.mark.parametrize("text", ["{", "[]"])
def test_damaged_range_of_a_backfill_is_refused(text: str) -> None:
    assert stored_range(state(), "backfill") == {}
    with pytest.raises(SinkError, match=f"property {CHANGELOG}.backfill is damaged"):
        stored_range(replace(state(), metadata=Metadata("i", "{}", (), {f"{CHANGELOG}.backfill": text})), "backfill")


def test_deleted_position_has_no_digest() -> None:
    for version in (-1, -7):
        assert stored_position(state(Txn(APP, version, 7), *halves(7, 7)), APP) == StoredPosition(-1, None, 7)


def test_unknown_digest_is_stored_as_two_zeros() -> None:
    for unknown in (None, "", "0011", DIGEST.replace("f", "g")):
        assert halves_of(unknown) == (0, 0)
    assert digest_of((0, 0)) is None
    assert (halves_of(DIGEST), digest_of(HALVES)) == (HALVES, DIGEST)


def test_commits_have_the_tags_that_they_get() -> None:
    assert commit_info("OPTIMIZE", 50, tags={"a": "b"})[1]["tags"] == {"a": "b"}
    assert "tags" not in commit_info("OPTIMIZE", 50)[1]


@pytest.mark.parametrize(("place", "owner", "version"), [("", 7, 3), ("backfill", 8, 5)])
def test_backfill_of_a_target_has_a_position_of_its_own(place: str, owner: int, version: int) -> None:
    target = replace(state(), metadata=Metadata("i", "{}", (), {CHANGELOG: APP, SOURCE: "T"}))
    for beginning, number, at in ((APP, 7, 3), ("backfill", 8, 5)):
        for action in (owner_action(beginning, number, 0), *position_actions(target, beginning, Position("T", at), 0)):
            recorded = Txn(action[1]["appId"], action[1]["version"], 0)
            target = replace(target, txns=target.txns.insert(recorded.app_id, recorded))
    assert target_position(target, APP, place=place) == Stored(Position("T", version), owner)


@pytest.mark.parametrize(
    ("protocol", "stamped"),
    [
        (Protocol(1, 2), False),
        (Protocol(1, 7, None, frozenset({"appendOnly"})), False),
        (Protocol(1, 7, None, frozenset({"inCommitTimestamp"})), True),
        (Protocol(1, 7, None, frozenset({"inCommitTimestamp-preview"})), True),
    ],
)
def test_commits_have_an_in_commit_timestamp_if_the_table_has_the_feature(protocol: Protocol, stamped: bool) -> None:
    _, fields = commit_info("WRITE", 50, state(protocol=protocol))
    assert fields.get("inCommitTimestamp") == (101 if stamped else None)


def test_commit_after_one_without_an_in_commit_timestamp_is_refused() -> None:
    before = replace(state(protocol=Protocol(1, 7, None, frozenset({"inCommitTimestamp"}))), in_commit_timestamp=None)
    with pytest.raises(LogError, match="the newest commit has none"):
        commit_info("WRITE", 50, before)


def test_state_of_a_checkpoint_has_its_identifiers() -> None:
    domain = DomainMetadata("d", "{}")
    actual = from_checkpoint(5, State(PLAIN, ENABLED, {APP: Txn(APP, 3)}, {"d": domain}))
    assert (actual.version, actual.protocol, actual.metadata) == (5, PLAIN, ENABLED)
    assert (dict(actual.txns), dict(actual.domains)) == ({APP: Txn(APP, 3)}, {"d": domain})


@pytest.mark.parametrize("damaged", [State(), State(protocol=PLAIN), State(metadata=ENABLED)])
def test_checkpoint_without_protocol_or_metadata_is_refused(damaged: State) -> None:
    with pytest.raises(LogError, match="no protocol or no metaData") as caught:
        from_checkpoint(5, damaged)
    assert caught.value.version == 5


def test_commits_are_blind_appends_unless_they_read_the_table() -> None:
    for blind, options in ((True, {}), (False, {"blind": False})):
        _, fields = commit_info("WRITE", 50, **options)
        assert fields["isBlindAppend"] is blind
