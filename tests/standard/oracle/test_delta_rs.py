"""delta-rs as the oracle: random tables that it wrote, read by it and by cdfd.

Differences that are expected, and not compared:
- `_commit_timestamp`: delta-rs takes `commitInfo.timestamp`, cdfd the log file's modification time as Spark does.
- The order of rows: delta-rs has none.
- Nulls against missing columns: `load_cdf` reads every version in the newest schema, so a column added later is null in
  older versions; the bags of rows leave nulls out.
- Columns that a RESTORE took away: `load_cdf` does not know them any more (the newest schema again), and a version's
  removes of files that still hold them are read in that version's schema, which is without them.
- `load_cdf` of tables with percent-encoded paths (`p=a%20b`): delta-rs does not decode the path, finds no file. It
  reads their snapshots, so these tables are compared by their rows after all changes.
- `load_cdf` of ranges with a version in which the feed is off: delta-rs refuses. The stretches between are compared.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import cdfd
from cdfd.errors import GapError, MissingFileError
from tests.support.fold import LEFT_OUT, META, Row, bag, fold
from tests.support.oracle.workload import Step, Workload
from tests.support.sampling import sample

SEEDS = sample(range(25), 5)
STEPS = 12


@dataclass(frozen=True)
class Life:
    """A table that has been through a workload."""

    workload: Workload
    steps: list[Step]

    @property
    def uri(self) -> str:
        return str(self.workload.path)

    @property
    def last(self) -> int:
        return self.steps[-1].version

    def table(self, version: int | None = None) -> Counter[Row]:
        """The rows at a version, as delta-rs sees them.

        Not by `to_pyarrow_table`: its threads use a file system in Python and may abort the interpreter at its exit.
        """
        return bag(pa.table(DeltaTable(self.uri, version=version).scan()).to_batches())

    def changes(self, start: int, end: int) -> Counter[Row]:
        """The change rows of a range, as delta-rs sees them."""
        reader = DeltaTable(self.uri).load_cdf(start, end)
        return bag(pa.table(reader).to_batches(), self.unseen)

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """The longest ranges of versions that have the feed on throughout."""
        feed = {step.version: step.feed for step in self.steps}
        starts = [version for version in feed if feed[version] and not feed.get(version - 1)]
        ends = [version for version in feed if feed[version] and not feed.get(version + 1)]
        return list(zip(starts, ends, strict=True))

    @property
    def unseen(self) -> list[str]:
        return [*LEFT_OUT, *self.workload.dropped]


def live(path: Path, seed: int) -> Life:
    """Four kinds of tables in turn: with the feed, with the feed, without it, with percent-encoded partitions."""
    workload = Workload(path, seed, cdf=seed % 4 != 2, awkward=seed % 4 == 3)
    return Life(workload, list(workload.steps(STEPS)))


@pytest.fixture(scope="module", params=SEEDS, ids="seed{}".format)
def life(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    folder = tmp_path_factory.mktemp("life")
    yield live(folder / "table", request.param)
    shutil.rmtree(folder)


def parts(first: int, last: int) -> list[tuple[int, int]]:
    """A range, and some ranges in it."""
    middle = (first + last) // 2
    return sorted({(first, last), (middle, last), (first, middle), (middle, middle), (last, last)})


def test_changes_are_those_of_load_cdf(life: Life) -> None:
    if life.workload.awkward:  # delta-rs has no answer, but the fold has
        return
    for start, end in [part for stretch in life.stretches for part in parts(*stretch)]:
        assert bag(cdfd.changes(life.uri, start, end), life.unseen) == life.changes(start, end), (
            start,
            end,
            life.steps,
        )


def test_snapshots_are_the_tables(life: Life) -> None:
    for version in sorted({0, life.last // 3, life.last // 2, life.last}):
        assert bag(cdfd.snapshot(life.uri, version), META) == life.table(version), (version, life.steps)
    assert bag(cdfd.snapshot(life.uri), META) == life.table(), life.steps


@pytest.mark.parametrize("source", ["auto", "files"])
def test_changes_fold_to_the_table(life: Life, source: str) -> None:
    dropped = life.workload.dropped
    assert fold(cdfd.changes(life.uri, 0, changes=source), dropped) == life.table(), life.steps


def test_a_snapshot_and_what_follows_fold_to_the_table(life: Life) -> None:
    """Starting in the middle needs the state there: from a checkpoint, or from the beginning."""
    dropped = life.workload.dropped
    middle = life.last // 2
    rows = bag(cdfd.snapshot(life.uri, middle), [*META, *dropped])
    if middle < life.last:
        rows.update(fold(cdfd.changes(life.uri, middle + 1), dropped))
    assert Counter({row: count for row, count in rows.items() if count}) == life.table(), (middle, life.steps)


def test_changes_version_by_version_are_the_changes_of_the_range(life: Life) -> None:
    pieces: Counter[Row] = Counter()
    for version in range(life.last + 1):
        pieces.update(bag(cdfd.changes(life.uri, version, version), life.unseen))
    assert pieces == bag(cdfd.changes(life.uri), life.unseen), life.steps


@pytest.mark.parametrize("seed", sample(range(1000, 1006), 2))
def test_after_vacuum_the_table_is_there_and_its_past_is_not(tmp_path: Path, seed: int) -> None:
    life = live(tmp_path / "table", seed)
    before = life.table()
    DeltaTable(life.uri).update(updates={"n": "n + 1"})
    gone = DeltaTable(life.uri).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert bag(cdfd.snapshot(life.uri), META) == life.table()
    newest = DeltaTable(life.uri).version()
    assert bag(cdfd.changes(life.uri, newest - 1)) == Counter(), "VACUUM's own two commits change no row"
    if before:
        assert gone
        with pytest.raises(MissingFileError) as caught:
            list(cdfd.changes(life.uri, 0, changes="files"))
        assert caught.value.version is not None
        assert caught.value.path is not None
        assert caught.value.hint is not None


@pytest.mark.parametrize("seed", sample(range(2000, 2003), 1))
def test_after_log_clean_up_what_is_gone_is_a_gap(tmp_path: Path, seed: int) -> None:
    life = live(tmp_path / "table", seed)
    table = DeltaTable(life.uri)
    table.alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 0 days", "delta.enableExpiredLogCleanup": "true"}
    )
    table = DeltaTable(life.uri)
    table.create_checkpoint()
    table.cleanup_metadata()
    assert not (life.workload.path / "_delta_log" / f"{0:020}.json").exists()
    assert bag(cdfd.snapshot(life.uri), META) == life.table()
    with pytest.raises(GapError) as caught:
        list(cdfd.changes(life.uri, 0))
    assert caught.value.hint is not None
