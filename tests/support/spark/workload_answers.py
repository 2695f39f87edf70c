"""The rows that delta-spark and cdfd read of a table, and the differences.

Rows are compared as bags, with change type, version and timestamp. A column that is null and one that is not there are the same: a range
that ends before a column was added has it in one reader and not in the other. The order of rows is ours alone.
"""

import datetime
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import cdfd
from cdfd.errors import CdfdError, SchemaChangedError
from cdfd.spark import changes
from tests.support.fold import META, SIGN
from tests.support.spark.workload import FEED, REFUSALS, Workload, name_of

Row = frozenset[tuple[str, Any]]
Bag = Counter[Row]


def frozen(value: Any) -> Any:
    """A hashable value, equal where the data is equal: NaN is itself, maps have no order, fields that are null are not there."""
    if isinstance(value, dict):
        return frozenset((name, frozen(item)) for name, item in value.items() if item is not None)
    if isinstance(value, list):
        if value and all(isinstance(entry, tuple) for entry in value):  # how pyarrow renders a map
            return frozenset((frozen(key), frozen(item)) for key, item in value)
        return tuple(frozen(item) for item in value)
    if isinstance(value, float) and value != value:
        return "NaN"
    return value


def bag(batches: Iterable[pa.RecordBatch], less: Iterable[str] = ()) -> Bag:
    """The rows without the columns `less`, and how many there are of each."""
    return Counter(
        frozenset((name, frozen(value)) for name, value in row.items() if value is not None and name not in less)
        for batch in batches
        for row in batch.to_pylist()
    )


def folded(changes: Bag) -> Bag:
    """The rows that are left after inserts added rows and deletes removed them."""
    rows: Bag = Counter()
    for row, count in changes.items():
        rows[frozenset(cell for cell in row if cell[0] not in META)] += SIGN[dict(row)["_change_type"]] * count
    return Counter({row: count for row, count in rows.items() if count})


@dataclass(slots=True)
class Comparison:
    """Both readers of one table.

    Attributes:
        work: the table's life.
        differences: what was found to differ, in words.
        refusals: what delta-spark did not answer, by its own names for it.
        compared: how many pairs of answers there were.
    """

    work: Workload
    differences: list[str] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    compared: int = 0

    def run(self, random: random.Random) -> None:
        """Compare snapshots, feeds of all stretches that have one, and parts of these by version and by timestamp."""
        last = self.work.version()
        newest = self.table(last)
        self._same(f"snapshot {last}", newest, lambda: self.rows(last))
        self._snapshot(random.randint(0, last))
        for start, end in stretches(self.work.path):
            for first, final, feed in self._answered(start, end):
                self._same(f"changes {first} to {final}", feed, lambda s=first, e=final: self.ours(s, e))
                if feed:
                    low, high = sorted((random.randint(first, final), random.randint(first, final)))
                    self._same(
                        f"changes {low} to {high}", within(feed, low, high), lambda s=low, e=high: self.ours(s, e)
                    )
                    self._by_time(feed, random)
                    self._same(
                        f"format(cdfd) {low} to {high}",
                        within(feed, low, high),
                        lambda s=low, e=high: self.on_spark(s, e),
                    )
                    self._same(
                        f"cdfd.spark.changes {low} to {high}",
                        within(feed, low, high),
                        lambda s=low, e=high: self.by_spark(s, e, refine="off"),
                    )
        self._same("cdfd.spark.snapshot", newest, lambda: self.by_spark("snapshot", last, META))
        for ordinals in (False, True):
            self._same_as_python(last, ordinals=ordinals)
        back = returned(self.work.path)
        for source in ("auto", "files"):
            if self._narrowed(last, source):
                continue
            self._same(
                f"fold of {source}",
                without(newest, back),
                lambda kind=source: folded(without(self.ours(0, last, kind, "auto"), back)),
            )

    def table(self, version: int) -> Bag:
        """delta-spark's rows of a version."""
        reader = self.work.spark.read.format("delta").option("versionAsOf", version)
        return bag(reader.load(self.work.path).toArrow().to_batches())

    def theirs(self, **options: object) -> Bag:
        """delta-spark's changes of a range."""
        reader = self.work.spark.read.format("delta").option("readChangeFeed", "true")
        return bag(reader.options(**options).load(self.work.path).toArrow().to_batches())

    def ours(self, start: object, end: object, source: str = "auto", refine: str = "off") -> Bag:
        """Our changes of a range. Without derived updates: a RESTORE has no change data files, and delta-spark gives deletes and inserts."""
        roots = self.work.allowed_roots
        batches = cdfd.changes(self.work.path, start, end, changes=source, refine=refine, allowed_roots=roots)
        return bag(batches, ["_change_ordinal"])

    def _narrowed(self, last: int, source: str) -> bool:
        """Whether RESTORE makes a widened column narrow again: what that version deletes fits no type of its own, and both refuse it."""
        try:
            self.ours(0, last, source)
        except SchemaChangedError as error:
            try:
                self.theirs(startingVersion=error.version, endingVersion=error.version)
            except REFUSALS:
                self.refusals["cdfd: SchemaChangedError"] += 1
                return True
        except CdfdError:
            pass  # the comparison has it
        return False

    def on_spark(self, start: int, end: int) -> Bag:
        """Our changes of a range, read by Spark."""
        reader = self.work.spark.read.format("cdfd").option("startingVersion", start).option("endingVersion", end)
        reader = reader.option("refine", "off")
        if self.work.allowed_roots:
            reader = reader.option("allowedRoots", ",".join(self.work.allowed_roots))
        return bag(reader.load(self.work.path).toArrow().to_batches(), ["_change_ordinal"])

    def by_spark(self, start: object, end: int, less: Iterable[str] = (), **options: object) -> Bag:
        """Our changes of a range, or the live rows of a version, read by Spark's own reader where it can."""
        if self.work.allowed_roots:
            options["allowedRoots"] = ",".join(self.work.allowed_roots)
        ordinals = bool(options.pop("ordinals", False))
        frame = changes(self.work.spark, self.work.path, start, end, options, ordinals=ordinals)  # type: ignore[arg-type]
        return bag(frame.toArrow().to_batches(), less)

    def _same_as_python(self, last: int, *, ordinals: bool) -> None:
        """The whole history from its files alone, also where delta-spark does not answer; with numbers of rows, or without."""
        less = () if ordinals else ("_change_ordinal",)
        roots = self.work.allowed_roots
        try:
            wanted = bag(cdfd.changes(self.work.path, 0, last, changes="files", allowed_roots=roots), less)
        except CdfdError:
            return  # the comparisons above have it
        self._same(
            f"cdfd.spark.changes of files, ordinals {ordinals}",
            wanted,
            lambda: self.by_spark(0, last, changes="files", ordinals=ordinals),
        )

    def rows(self, version: int) -> Bag:
        """Our rows of a version."""
        return bag(cdfd.snapshot(self.work.path, version, allowed_roots=self.work.allowed_roots), META)

    def _snapshot(self, version: int) -> None:
        try:
            theirs = self.table(version)
        except REFUSALS as error:
            self.refusals[f"snapshot: {name_of(error)}"] += 1
            return
        self._same(f"snapshot {version}", theirs, lambda: self.rows(version))

    def _answered(self, start: int, end: int) -> Iterator[tuple[int, int, Bag]]:
        """The longest parts of a range that delta-spark answers: where it refuses, both halves are asked for."""
        try:
            yield start, end, self.theirs(startingVersion=start, endingVersion=end)
        except REFUSALS as error:
            self.refusals[f"feed: {name_of(error)}"] += 1
            if start < end:
                middle = (start + end) // 2
                yield from self._answered(start, middle)
                yield from self._answered(middle + 1, end)

    def _by_time(self, rows: Bag, random: random.Random) -> None:
        """From the instant of a version, or a millisecond before or after it, to that of a later one."""
        if ends_commit_timestamps(self.work.path):
            return
        instants = sorted({dict(row)["_commit_timestamp"] for row in rows})
        low, high = sorted((random.choice(instants), random.choice(instants)))
        low += datetime.timedelta(milliseconds=random.choice([-1, 0, 0]))
        high += datetime.timedelta(milliseconds=random.choice([0, 0, 1]))
        try:
            theirs = self.theirs(
                startingTimestamp=str(low.replace(tzinfo=None)), endingTimestamp=str(high.replace(tzinfo=None))
            )
        except REFUSALS as error:
            self.refusals[f"by time: {name_of(error)}"] += 1
            return
        self._same(f"changes {low} to {high}", theirs, lambda: self.ours(low, high))

    def _same(self, what: str, theirs: Bag, ours: Callable[[], Bag]) -> None:
        self.compared += 1
        try:
            actual = ours()
        except (CdfdError, *REFUSALS) as error:
            self.differences.append(f"{what}: {error!r} {error}")
            return
        if actual != theirs:
            self.differences.append(f"{what}:{_brief('delta-spark', theirs - actual)}{_brief('cdfd', actual - theirs)}")


def ends_commit_timestamps(path: str) -> bool:
    """Whether REPLACE or RESTORE has ended in-commit timestamps: delta-spark then searches for versions by times that rows do not have."""
    entries = sorted(file for file in Path(path, "_delta_log").glob("*.json") if file.stem.isdigit())
    # Without the colon, it may be the name of the feature.
    stamped = ['"inCommitTimestamp":' in entry.read_text() for entry in entries]
    return any(stamped) and not stamped[-1]


def within(rows: Bag, low: int, high: int) -> Bag:
    """The changes of some of the versions."""
    return Counter({row: count for row, count in rows.items() if low <= dict(row)["_commit_version"] <= high})


def stretches(path: str) -> list[tuple[int, int]]:
    """The longest ranges of versions that have the feed on throughout, as the log says.

    Where deletion vectors are not a feature of the table any more, delta-spark does not look at those of older versions, and gives rows
    that were never deleted: these versions are left out. So is a version in which mapped columns go: what an overwrite of the schema deletes
    is nulls to delta-spark.
    """
    ranges: list[tuple[int, int]] = []
    on = vectors = False
    mapped: set[str] = set()
    for version, entry in enumerate(
        sorted(file for file in Path(path, "_delta_log").glob("*.json") if file.stem.isdigit())
    ):
        gone = False
        for action in map(json.loads, entry.read_text().rstrip("\n").split("\n")):
            if (metadata := action.get("metaData")) is not None:
                on = metadata["configuration"].get(FEED) == "true"
                had_columns, mapped = mapped, physical_names(metadata["schemaString"])
                gone = bool(had_columns - mapped)
            if (protocol := action.get("protocol")) is not None:
                had, vectors = vectors, "deletionVectors" in protocol.get("readerFeatures", ())
                ranges = [] if had and not vectors else ranges
        if gone:
            continue
        if on and ranges and ranges[-1][1] == version - 1:
            ranges[-1] = (ranges[-1][0], version)
        elif on:
            ranges.append((version, version))
    return ranges


def returned(path: str) -> set[str]:
    """Names of the columns that RESTORE brought back after a drop, and of those that were renamed before a new schema used the name again.

    Files that were written in between, or only rewritten, have no value of them: changes do not add up to such a column. Nor do they if
    the new schema knows the column by its last name only: earlier rows have it by another name.
    """
    gone: set[str] = set()
    back: set[str] = set()
    renamed: set[str] = set()
    names: dict[str, set[str]] = {}
    now: dict[str, str] = {}
    for entry in sorted(file for file in Path(path, "_delta_log").glob("*.json") if file.stem.isdigit()):
        for action in map(json.loads, entry.read_text().rstrip("\n").split("\n")):
            if (metadata := action.get("metaData")) is not None:
                before, now = now, columns(metadata["schemaString"])
                gone |= before.keys() - now.keys()
                back |= gone & now.keys()
                renamed |= {name for key, name in before.items() if key not in now and len(names[key]) > 1}
                for key, name in now.items():
                    names.setdefault(key, set()).add(name)
    return {now[physical] for physical in back & now.keys()} | renamed


def without(rows: Bag, names: set[str]) -> Bag:
    """The rows without some of their columns."""
    narrowed: Bag = Counter()
    for row, count in rows.items():
        narrowed[frozenset(item for item in row if item[0] not in names)] += count
    return narrowed


def columns(schema: str) -> dict[str, str]:
    """Names of the columns by their physical names, where they are mapped."""
    fields = json.loads(schema)["fields"]
    key = "delta.columnMapping.physicalName"
    return {one["metadata"][key]: one["name"] for one in fields if key in one["metadata"]}


def physical_names(schema: str) -> set[str]:
    """Of the columns, where they are mapped."""
    return set(columns(schema))


def _brief(who: str, rows: Bag) -> str:
    if not rows:
        return ""
    some = [dict(sorted(row, key=str)) for row in sorted(rows, key=str)[:2]]
    return f"\n    only {who}, {rows.total()} rows: {some}"
