"""Shards on a real broker: tables move between processes that come, go and are killed, and every change arrives exactly once."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from cdfd.daemon.membership.shard import owner
from cdfd.demo.writer import TableWriter
from tests.support.kafka import history
from tests.support.kafka.daemon_process import Daemon, configure, until
from tests.support.kafka.history import Location, Writing
from tests.support.kafka.pipeline import do
from tests.support.kafka.shared import SharedBroker
from tests.support.lake import SCHEMA, rows


def names_of(moves: Sequence[tuple[int, int]], count: int) -> list[str]:
    """Names of tables that each of these shards owns, of one and of `count`: so that a further shard takes some and leaves some."""
    candidates = [f"t{number}" for number in range(1000)]
    return [
        next(
            name for name in candidates[100 * index :] if owner(name, count) == last and owner(name, count - 1) == first
        )
        for index, (first, last) in enumerate(moves)
    ]


class Fleet:
    """The tables of a lake, and the processes that share them.

    Args:
        folder: an empty one.
        name: of the pipeline.
        servers: the cluster.
        tables: their names.
    """

    def __init__(self, folder: Path, name: str, servers: str, tables: Sequence[str]) -> None:
        self.name, self.servers, self.tables = name, servers, tables
        self.places = {table: Location(str(folder / "lake" / table)) for table in tables}
        pattern = {"discover": str(folder / "lake" / "*"), "interval": "500ms"}
        self.config = configure(folder, name, servers, [pattern])

    def shard(self, index: int, count: int) -> Daemon:
        return Daemon(self.config, "--shard", f"{index}/{count}")

    def table(self, name: str) -> TableWriter:
        writer = TableWriter(self.places[name].storage(), SCHEMA)
        do(writer.create())
        return writer

    @contextmanager
    def writing(self, pause: float) -> Iterator[list[Writing]]:
        """Writers that change every table all the time."""
        with ExitStack() as stack:
            yield [
                stack.enter_context(Writing(place, seed, pause=pause))
                for seed, place in enumerate(self.places.values())
            ]

    def check(self) -> int:
        """Every change of every table, which are at rest now, arrives exactly once and in order. How many there are."""
        total = 0
        for name, place in self.places.items():
            expected = history.history(place, 0)
            history.check(place, history.await_records(self.servers, f"{self.name}.{name}", len(expected)), expected)
            total += len(expected)
        return total


def test_a_further_shard_fences_the_old_owner_of_the_tables_it_takes_and_of_no_other(
    broker: SharedBroker, name: str, tmp_path: Path
) -> None:
    stays, moves = names_of([(0, 0), (0, 1)], 2)
    fleet = Fleet(tmp_path, name, broker.bootstrap_servers, [stays, moves])
    writers = {table: fleet.table(table) for table in fleet.tables}
    with fleet.shard(0, 1) as old:
        for writer in writers.values():
            do(writer.insert(rows(1)))
        fleet.check()
        with fleet.shard(1, 2) as new:
            resumed = new.wait_for("resuming at version")
            assert (resumed["table"], resumed["version"]) == (fleet.places[moves].uri, 2)
            for writer in writers.values():
                do(writer.insert(rows(2)))
            # Both see the new version of the moved table: the old owner is fenced, and continues with its other table.
            fenced = old.wait_for(lambda line: line.get("family") == "fenced")
            assert (fenced["table"], fenced["level"]) == (moves, "error")
            assert fenced["retry_in"] > 200
            for writer in writers.values():
                do(writer.insert(rows(3)))
            fleet.check()
            assert old.running
            assert not any(line.get("table") == fleet.places[stays].uri for line in new.lines)
            old.stop()
            new.stop()
    fleet.check()


def test_a_table_goes_back_when_its_shard_is_removed(broker: SharedBroker, name: str, tmp_path: Path) -> None:
    [moves] = names_of([(0, 1)], 2)
    fleet = Fleet(tmp_path, name, broker.bootstrap_servers, [moves])
    writer = fleet.table(moves)
    do(writer.insert(rows(1)))
    for round, (index, count) in enumerate([(0, 1), (1, 2), (0, 1)], start=2):
        with fleet.shard(index, count) as daemon:
            daemon.wait_for("at version")
            do(writer.insert(rows(round)))
            fleet.check()
            daemon.kill()
    assert fleet.check() == 4


def test_a_shard_without_tables_runs_and_takes_up_one_that_appears(
    broker: SharedBroker, name: str, tmp_path: Path
) -> None:
    [table] = names_of([(0, 1)], 2)
    fleet = Fleet(tmp_path, name, broker.bootstrap_servers, [table])
    (tmp_path / "lake").mkdir()
    with fleet.shard(1, 2) as daemon:
        daemon.wait_for("0 tables")
        do(fleet.table(table).insert(rows(1)))
        fleet.check()
        daemon.stop()


@pytest.mark.parametrize("seed", [1, 2])
def test_kills_while_shards_are_added_and_removed(seed: int, broker: SharedBroker, name: str, tmp_path: Path) -> None:
    """Processes of the old and of the new count run at once, and some of them are killed."""
    random = Random(seed)
    fleet = Fleet(tmp_path, name, broker.bootstrap_servers, [f"t{number}" for number in range(5)])
    with ExitStack() as stack:
        running: list[Daemon] = []
        with fleet.writing(pause=0.3) as writings:
            for count in (1, 3, 2, 4, 1, 2):
                old, running = running, []
                indices = random.sample(range(count), count)
                for index in indices:
                    running.append(stack.enter_context(fleet.shard(index, count)))
                    if random.random() < 0.5:
                        running[-1].wait_for("pipeline")
                    if old:
                        end(old.pop(random.randrange(len(old))), random)
                for daemon in old:
                    end(daemon, random)
                # A process that crashes is started again, as Kubernetes does it.
                for position, index in enumerate(indices):
                    if random.random() < 0.5:
                        running[position].kill()
                        running[position] = stack.enter_context(fleet.shard(index, count))
                before = [writing.table.version for writing in writings]
                until(partial(have_written, writings, before))
        assert all(daemon.running for daemon in running)
        assert fleet.check() > 50
        for daemon in running:
            daemon.stop()
    assert fleet.check() > 50


def have_written(writings: Sequence[Writing], before: Sequence[int]) -> bool:
    return all(writing.table.version > version + 2 for writing, version in zip(writings, before, strict=True))


def end(daemon: Daemon, random: Random) -> None:
    if random.random() < 0.6 or not daemon.has_said("pipeline"):  # before that, nothing handles a signal
        daemon.kill()
    else:
        daemon.stop()
