"""The position at which a table resumes, for every combination of the sink's and the ledger's state."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.errors import SinkError, TableChangedError
from cdfd.model.position import Position
from cdfd.sinks.ledger.ledger import LedgerEntry, app_id
from cdfd.sinks.ledger.recovery import Start, decide, delivered_version

TABLE, OTHER = "table-1", "table-2"
NAMES = ("the topic _cdfd_progress", "the ledger /var/lib/cdfd/ledger")


def entry(version: int, table_id: str | None = TABLE) -> LedgerEntry:
    return LedgerEntry(app_id("shop", "orders"), version, table_id, 1)


def snapshot(version: int, part: int = 0) -> Position:
    return Position(TABLE, version, part, "snapshot", 10 * part)


def facts(start: Start) -> tuple[Position | None, int | None, bool]:
    return start.position, start.record, start.warning


@pytest.mark.parametrize("recover", [False, True])
class TestTheSinkWins:
    """`--recover-from-ledger` changes nothing where the sink knows."""

    def test_agreeing_sink_and_ledger_continue_without_a_warning(self, recover: bool) -> None:
        start = decide(Position(TABLE, 13), entry(12), TABLE, recover)
        assert facts(start) == (Position(TABLE, 13), None, False)

    def test_the_ledger_is_behind(self, recover: bool) -> None:
        start = decide(Position(TABLE, 13), entry(8), TABLE, recover, *NAMES)
        assert facts(start) == (Position(TABLE, 13), 12, False)
        assert "_cdfd_progress" in start.reason
        assert "lags at version 8" in start.reason

    def test_the_ledger_has_nothing(self, recover: bool) -> None:
        start = decide(Position(TABLE, 13), None, TABLE, recover)
        assert facts(start) == (Position(TABLE, 13), 12, False)

    def test_the_ledger_is_ahead(self, recover: bool) -> None:
        start = decide(Position(TABLE, 13), entry(20), TABLE, recover)
        assert facts(start) == (Position(TABLE, 13), 12, True)
        assert "version 20" in start.reason

    def test_the_ledger_is_of_another_table(self, recover: bool) -> None:
        start = decide(Position(TABLE, 13), entry(12, OTHER), TABLE, recover)
        assert facts(start) == (Position(TABLE, 13), 12, True)
        assert OTHER in start.reason

    @pytest.mark.parametrize(("version", "record"), [(8, 12), (12, 12), (20, 12)])
    def test_the_ledger_does_not_know_of_which_table(self, recover: bool, version: int, record: int) -> None:
        start = decide(Position(TABLE, 13), entry(version, None), TABLE, recover)
        assert facts(start) == (Position(TABLE, 13), record, version > 12)

    def test_the_ledger_does_not_have_the_hash_of_the_entry(self, recover: bool) -> None:
        position = Position(TABLE, 13, digest="of 12")
        assert facts(decide(position, entry(12), TABLE, recover)) == (position, 12, False)
        assert facts(decide(position, replace(entry(12), digest="of 12"), TABLE, recover)) == (position, None, False)
        assert facts(decide(position, replace(entry(12), digest="another"), TABLE, recover)) == (position, 12, False)

    def test_the_sink_does_not_have_the_hash_of_the_entry(self, recover: bool) -> None:
        """It has that of the version which it is in the middle of, or none."""
        known = replace(entry(12), digest="of 12")
        for position in (Position(TABLE, 13), Position(TABLE, 13, 4, "stream", 4000, "of 13")):
            assert facts(decide(position, known, TABLE, recover)) == (position, None, False)

    def test_in_the_middle_of_a_version(self, recover: bool) -> None:
        position = Position(TABLE, 13, 4, "stream", 4000)
        assert facts(decide(position, entry(11), TABLE, recover)) == (position, 12, False)

    @pytest.mark.parametrize("known", [None, entry(3), entry(12), entry(99), entry(3, OTHER)])
    def test_in_the_middle_of_a_snapshot(self, recover: bool, known: LedgerEntry | None) -> None:
        start = decide(snapshot(12, 3), known, TABLE, recover)
        assert facts(start) == (snapshot(12, 3), None, False)

    @pytest.mark.parametrize("known", [None, entry(3)])
    def test_before_the_first_version(self, recover: bool, known: LedgerEntry | None) -> None:
        assert facts(decide(Position(TABLE, 0), known, TABLE, recover)) == (Position(TABLE, 0), None, False)

    @pytest.mark.parametrize("known", [None, entry(12), entry(12, OTHER)])
    def test_log_decides_whether_table_with_another_id_continues(
        self, recover: bool, known: LedgerEntry | None
    ) -> None:
        assert decide(Position(OTHER, 13), known, TABLE, recover).position == Position(OTHER, 13)


class TestTheSinkKnowsNothing:
    @pytest.mark.parametrize("recover", [False, True])
    def test_nor_does_the_ledger(self, recover: bool) -> None:
        assert facts(decide(None, None, TABLE, recover)) == (None, None, False)

    @pytest.mark.parametrize("table_id", [TABLE, None])
    def test_sink_without_the_position_of_the_ledger_is_refused(self, table_id: str | None) -> None:
        with pytest.raises(SinkError) as caught:
            decide(None, entry(12, table_id), TABLE, False, *NAMES)
        for word in ("_cdfd_progress", "/var/lib/cdfd/ledger", "version 12", "--recover-from-ledger", "version 13"):
            assert word in str(caught.value)

    @pytest.mark.parametrize("table_id", [TABLE, None])
    def test_the_ledger_does_and_is_trusted(self, table_id: str | None) -> None:
        start = decide(None, entry(12, table_id), TABLE, True, *NAMES)
        assert facts(start) == (Position(TABLE, 13), None, False)
        assert "/var/lib/cdfd/ledger" in start.reason

    @pytest.mark.parametrize("recover", [False, True])
    def test_the_ledger_knows_another_table(self, recover: bool) -> None:
        with pytest.raises(TableChangedError) as caught:
            decide(None, entry(12, OTHER), TABLE, recover, *NAMES)
        for word in (TABLE, OTHER, "/var/lib/cdfd/ledger"):
            assert word in str(caught.value)

    def test_digest_decides_instead_of_id(self) -> None:
        known = replace(entry(12, OTHER), digest="of 12")
        assert decide(None, known, TABLE, True).position == Position(OTHER, 13)


@pytest.mark.parametrize("digest", [None, "of 12"])
def test_the_hash_of_the_entry_comes_along_from_the_ledger(digest: str | None) -> None:
    start = decide(None, replace(entry(12), digest=digest), TABLE, True)
    assert start.position is not None
    assert start.position.digest == digest


def test_what_is_delivered_whole() -> None:
    assert delivered_version(Position(TABLE, 0)) is None
    assert delivered_version(Position(TABLE, 0, 3)) is None
    assert delivered_version(Position(TABLE, 1)) == 0
    assert delivered_version(Position(TABLE, 7, 3)) == 6
    assert delivered_version(Position(TABLE, 7).after_version()) == 7
    assert delivered_version(snapshot(7)) is None


POSITIONS = st.builds(
    Position,
    st.sampled_from([TABLE, OTHER]),
    st.integers(0, 5),
    st.integers(0, 2),
    st.sampled_from(["snapshot", "stream"]),
)
ENTRIES = st.builds(entry, st.integers(0, 5), st.sampled_from([TABLE, OTHER, None]))


@given(st.none() | POSITIONS, st.none() | ENTRIES, st.booleans())
def test_never_skips_what_the_sink_lacks(sink: Position | None, known: LedgerEntry | None, recover: bool) -> None:
    try:
        start = decide(sink, known, TABLE, recover)
    except TableChangedError:
        assert OTHER in {None if sink is None else sink.table_id, None if known is None else known.table_id}
        return
    except SinkError:
        assert sink is None
        assert known is not None
        assert not recover
        return
    if sink is not None:
        assert start.position == sink
    elif known is not None:
        assert start.position == Position(TABLE, known.version + 1)
        assert recover
    else:
        assert start.position is None
    if start.record is not None:
        # Once the ledger has recorded it, another start finds that both agree.
        assert start.position is not None
        again = decide(sink, entry(start.record, start.position.table_id), TABLE, recover)
        assert facts(again) == (start.position, None, False)


def test_a_lost_sink_goes_on_where_it_was() -> None:
    """From the ledger's record of any position, recovery resumes at the version after it: it skips none and repeats none."""
    for version, part in itertools.product(range(1, 5), range(3)):
        position = Position(TABLE, version, part)
        whole = delivered_version(position)
        assert whole is not None
        assert decide(None, entry(whole), TABLE, True).position == Position(TABLE, version)
