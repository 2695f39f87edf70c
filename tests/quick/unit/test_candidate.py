"""The election's rules: single steps, and any number of processes with any delays at one register."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.config.parser import parse
from cdfd.daemon.election.candidate import Candidate
from cdfd.daemon.membership.shard import Shard
from cdfd.daemon.supervision.preflight import preflight
from cdfd.errors import ConfigError, SinkError
from cdfd.sinks.lease import Claim, parse_claim

AFTER = 2.5
NEW = Candidate("me", AFTER)
OTHER = Claim("other", 7, 3)
LEADER = Candidate("me", AFTER, claim=Claim("me", 7), highest=7)


def reading(candidate: Candidate, *claims: tuple[float, Claim | None]) -> tuple[Candidate, Claim | None]:
    write = None
    for now, claim in claims:
        candidate, write = candidate.after(claim, now)
    return candidate, write


class TestStandby:
    def test_takes_a_lease_that_nobody_has_at_once(self) -> None:
        after, write = NEW.after(None, 0)
        assert write == Claim("me", 1)
        assert not after.leads, "the next reading decides"

    def test_takes_a_released_lease_at_once(self) -> None:
        _, write = reading(NEW, (0, OTHER), (0.1, replace(OTHER, beat=4, released=True)))
        assert write == Claim("me", 8)

    def test_waits_while_the_claim_changes(self) -> None:
        candidate = NEW
        for beat in range(20):
            candidate, write = candidate.after(replace(OTHER, beat=beat), beat * 0.9 * AFTER)
            assert write is None

    def test_takes_a_claim_that_stays_for_long_enough(self) -> None:
        assert reading(NEW, (0, OTHER), (AFTER - 0.01, OTHER))[1] is None
        assert reading(NEW, (0, OTHER), (1, OTHER), (AFTER, OTHER))[1] == Claim("me", 8)

    def test_waits_anew_after_readings_that_failed(self) -> None:
        known, _ = NEW.after(OTHER, 0)
        later, write = known.after_failure().after(OTHER, 100)
        assert write is None
        assert later.after(OTHER, 100 + AFTER)[1] == Claim("me", 8)

    def test_leads_once_it_reads_its_claim(self) -> None:
        after, write = reading(NEW, (0, None), (0.1, Claim("me", 1)))
        assert after.leads
        assert write is None

    def test_does_not_lead_if_another_one_has_written_last(self) -> None:
        after, write = reading(NEW, (0, None), (0.1, Claim("other", 1)))
        assert not after.leads
        assert write is None

    def test_own_claim_that_arrives_after_that_of_a_successor_is_none_of_its_own(self) -> None:
        after, write = reading(NEW, (0, OTHER), (0.1, Claim("me", 6)))
        assert not after.leads
        assert write is None


class TestLeader:
    def test_renews_its_claim(self) -> None:
        after, write = LEADER.after(LEADER.claim, 1)
        assert write == Claim("me", 7, 1)
        assert after.after(write, 2)[1] == Claim("me", 7, 2)

    @pytest.mark.parametrize("term", [7, 8, 100])
    def test_steps_down_for_a_successor(self, term: int) -> None:
        after, write = LEADER.after(Claim("other", term), 1)
        assert not after.leads
        assert write is None

    def test_writes_its_claim_again_over_one_that_came_late(self) -> None:
        after, write = LEADER.after(Claim("other", 6), 1)
        assert after.leads
        assert write == Claim("me", 7, 1)

    def test_writes_its_claim_again_if_the_lease_is_lost(self) -> None:
        assert LEADER.after(None, 1)[1] == Claim("me", 7, 1)

    def test_continues_if_the_lease_cannot_be_read(self) -> None:
        assert LEADER.after_failure().leads

    def test_takes_a_larger_term_the_next_time(self) -> None:
        down, _ = LEADER.after(OTHER, 0)
        assert reading(down, (1, replace(OTHER, released=True)))[1] == Claim("me", 8)


@given(st.integers(), st.integers(2, 4))
def test_processes_agree_on_one_leader_whatever_is_delayed_lost_or_killed(seed: int, count: int) -> None:
    """Afterwards, when nothing fails, there is one leader within `takeover_after`, and it stays."""
    random, now = Random(seed), 0.0
    register: Claim | None = None
    processes = {f"p{number}": Candidate(f"p{number}", AFTER) for number in range(count)}
    delayed: list[Claim] = []
    for _ in range(60):
        now += random.choice((0.0, 0.1, 0.5, 3.0))
        name = random.choice(list(processes))
        match random.randrange(12):
            case 0:
                processes[name] = processes[name].after_failure()
            case 1 if delayed:
                register = delayed.pop(random.randrange(len(delayed)))
            case 2 if register is not None and (mine := processes[name].claim) is not None:
                register = replace(mine, beat=mine.beat + 1, released=True)
                processes[name] = Candidate(name, AFTER, highest=processes[name].highest)
            case 3:
                processes[name] = Candidate(f"{name}", AFTER)  # a restart forgets everything
            case _:
                processes[name], write = processes[name].after(register, now)
                if write is not None and random.random() < 0.5:
                    delayed.append(write)
                elif write is not None and random.random() < 0.9:
                    register = write
    leaders: list[set[str]] = []
    for step in range(60):
        now += 0.1
        for name in processes:
            processes[name], write = processes[name].after(register, now)
            register = write or register
        if step > 10 * AFTER + 5:
            leaders.append({name for name, each in processes.items() if each.leads})
    assert all(len(each) == 1 for each in leaders), leaders
    assert len(set.union(*leaders)) == 1, "the leader changes without a reason"


class TestClaim:
    def test_text_is_parsed_to_the_same_claim(self) -> None:
        claim = Claim("host-1-ab", 3, 17, released=True)
        assert parse_claim(claim.text(), "here") == claim

    def test_unknown_fields_are_ignored(self) -> None:
        assert parse_claim('{"owner":"a","term":1,"beat":2,"released":false,"new":[]}', "here") == Claim("a", 1, 2)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "null",
            "{}",
            '{"owner":"a","term":true,"beat":0,"released":false}',
            '{"owner":"a","term":-1,"beat":0,"released":false}',
        ],
    )
    def test_something_else_is_an_error(self, text: str) -> None:
        with pytest.raises(SinkError, match="not a claim"):
            parse_claim(text, "here")

    def test_long_text_is_an_error(self) -> None:
        with pytest.raises(SinkError, match="at most"):
            parse_claim('{"owner":"' + "a" * 5000 + '"}', "here")


@pytest.mark.parametrize(("engine", "shard"), [("spark", None), ("auto", Shard(0, 2))])
def test_standby_with_shards_or_spark_is_refused(engine: str, shard: Shard | None) -> None:
    section = f"engine: {{kind: {engine}, spark: {{checkpoint: /c}}}}"
    text = f"pipeline: p\ntables: [{{uri: /lake/t}}]\nsink: {{kind: files, path: /out}}\n{section}"
    with pytest.raises(ConfigError, match="--standby"):
        preflight(parse(text, {}), shard, standby=True)
