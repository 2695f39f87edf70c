"""Shards: each table has one owner, and a further shard moves only the tables that it takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.daemon.membership.shard import Shard, owner
from cdfd.errors import ConfigError

NAMES = [f"table_{number}" for number in range(2000)]


@pytest.mark.parametrize(
    ("text", "shard"),
    [
        ("0/1", Shard(0, 1)),
        ("2/5", Shard(2, 5)),
        ("cdfd-4/5", Shard(4, 5)),
        ("shop-cdfd-12/20", Shard(12, 20)),
    ],
)
def test_a_shard_is_a_number_or_the_name_of_a_pod(text: str, shard: Shard) -> None:
    assert Shard.parse(text) == shard


@pytest.mark.parametrize("text", ["", "1", "5/5", "1/0", "-1/2", "a/2", "1/2/3", "1 / 2", "cdfd/2", "1/100000", "٣/٥"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="shard") as raised:
        Shard.parse(text)
    assert raised.value.hint is not None
    assert "0/5" in raised.value.hint


@given(st.text(), st.integers(1, 30))
def test_each_table_has_one_owner(name: str, count: int) -> None:
    assert [Shard(index, count).owns(name) for index in range(count)].count(True) == 1


@given(st.text(), st.integers(1, 30))
def test_a_further_shard_moves_only_tables_that_it_takes(name: str, count: int) -> None:
    assert owner(name, count + 1) in (owner(name, count), count)


def test_the_tables_are_spread_evenly_and_few_move() -> None:
    owners = {name: owner(name, 5) for name in NAMES}
    sizes = [list(owners.values()).count(shard) for shard in range(5)]
    assert min(sizes) > 330
    moved = sum(owner(name, 6) != owners[name] for name in NAMES)
    assert moved < 2 * len(NAMES) / 6


def test_the_owners_are_those_of_earlier_versions() -> None:
    # Processes of two versions share tables while they are replaced one by one.
    assert [owner(name, 5) for name in ("orders", "customers", "items", "payments", "ü")] == OWNERS


OWNERS = [2, 4, 0, 4, 3]
