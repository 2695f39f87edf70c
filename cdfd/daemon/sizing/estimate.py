"""From the work of tables to what a daemon needs for it: measured costs and prices in, estimates out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any, Final

from cdfd.daemon.sizing.workload import HOUR_MS, TableWork, VersionWork

LARGE_BYTES = 1 << 20
"""Bytes of files from which a delivery takes the memory of a large one."""
LARGE_AT_A_TIME = 2
"""Large deliveries that run at a time."""
RANGE_BYTES = 8 << 20
"""Bytes of a file that one request reads."""
MONTH_HOURS, HOUR_SECONDS = 730.0, 3600.0
SPILL_FREE_BYTES = 128 << 20
"""Bytes of rows that a version may keep in memory while its updates are found."""
CHECKS_AN_HOUR, LISTS_AN_HOUR, QUEUE_REQUESTS_AN_HOUR = 120.0, 4.0, 180.0
"""Requests without commits: that the last entry is still there, and a listing; see docs/polling.md."""

Hours = dict[int, list[float]]
"""Versions, rows and bytes of the hours of the clock that have any."""

_NOTHING: Final = [0.0, 0.0, 0.0]


@dataclass(frozen=True, slots=True)
class SinkCosts:
    """Measured costs of one form of one sink.

    Attributes:
        row_us, byte_ns: processor time for each row and for each byte of data files that is read.
        version_ms: processor time for a small version at the tip.
        cores: cores that a large delivery keeps busy.
        row_bytes, written: bytes that arrive for each row, and for each byte that is read.
        large_mb: memory of a large delivery, beyond that at rest.
    """

    row_us: float
    byte_ns: float
    version_ms: float
    cores: float
    row_bytes: float
    written: float
    large_mb: float

    def seconds(self, versions: float, rows: float, size: float) -> float:
        """Processor time."""
        return versions * self.version_ms / 1e3 + rows * self.row_us / 1e6 + size * self.byte_ns / 1e9


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a daemon, measured by `bench/sizing.py`.

    Attributes:
        sinks: by kind and form: `kafka/json`.
        base_mb: memory of a daemon with one table at rest.
        table_mb: memory of each further table.
        table_cores: cores of a table at rest.
        expansion: bytes of rows in memory for each byte of a data file.
        measured: when and on what.
        calibration: processor seconds of a fixed piece of work on that machine.
    """

    sinks: Mapping[str, SinkCosts]
    base_mb: float
    table_mb: float
    table_cores: float
    expansion: float
    measured: str
    calibration: float

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Costs:
        """From the file of costs."""
        fields = {name: document[name] for name in cls.__dataclass_fields__ if name != "sinks"}
        return cls({name: SinkCosts(**costs) for name, costs in document["sinks"].items()}, **fields)

    def sink(self, kind: str, form: str) -> tuple[str, SinkCosts]:
        """The costs of a form of a sink, or those of the dearest form of its kind, and their name."""
        name = f"{kind}/{form}"
        if name in self.sinks:
            return name, self.sinks[name]
        others = {other: costs for other, costs in self.sinks.items() if other.startswith(f"{kind}/")} or self.sinks
        dearest = max(others, key=lambda other: others[other].row_us)
        return dearest, others[dearest]


PRICES: Mapping[str, float] = {
    "core_hour": 0.04048,
    "gb_hour": 0.004445,
    "million_gets": 0.40,
    "million_lists": 5.00,
    "disk_gb_month": 0.10,
}
"""US dollars, list prices of us-east-1 in January 2026: Fargate for Linux on x86 (core, memory), S3 Standard (requests), and MSK (disk)."""
PRICES_SOURCE = "list prices of AWS us-east-1, January 2026: Fargate, S3 Standard, MSK storage"


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings that cost.

    Attributes:
        costs: of the sink.
        interval, max_interval: seconds between polls.
        notified: whether a queue announces commits.
        partitions, replicas: of a topic; 0: the sink has no topics.
        own_topics: partitions of topics that all tables share, by name.
        keep_hours: time for which topics keep rows.
        prices: see `PRICES`.
    """

    costs: SinkCosts
    interval: float = 1.0
    max_interval: float = 5.0
    notified: bool = False
    partitions: int = 0
    replicas: int = 0
    own_topics: Mapping[str, int] | None = None
    keep_hours: float = 168.0
    prices: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """Versions, rows and bytes of data files an hour, and cores."""

    versions: float
    rows: float
    size: float
    cores: float


@dataclass(frozen=True, slots=True)
class TableNeeds:
    """The needs of a table.

    Attributes:
        mean, peak: by hour; the peak is the busiest hour of the clock.
        load_seconds: time of the first load.
        gets, lists: requests to the store an hour.
        written: bytes an hour that arrive at the sink, once.
        spill: bytes of local disk for the version that needs most.
    """

    name: str
    mean: Rate
    peak: Rate
    load_seconds: float
    gets: float
    lists: float
    written: float
    spill: float


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of a pipeline: its tables, and all of them together.

    Attributes:
        tables: one by one.
        total: all of them. Its peak is the busiest hour of the clock for all.
        memory: bytes.
        topics, partitions: of the sink; 0: it has none.
        disk: bytes of all replicas of the topics, or of a month of files.
        money: US dollars a month, by item.
    """

    tables: Sequence[TableNeeds]
    total: TableNeeds
    memory: float
    topics: int
    partitions: int
    disk: float
    money: Mapping[str, float]


def needs(tables: Sequence[TableWork], costs: Costs, setup: Setup) -> Needs:
    """The needs of a daemon for tables that go on as they did."""
    by_table = [_by_hour(table.versions) for table in tables]
    each = [_table_needs(table, by_hour, costs, setup) for table, by_hour in zip(tables, by_table, strict=True)]
    together: Hours = {}
    for by_hour in by_table:
        for hour, work in by_hour.items():
            together[hour] = [sum(pair) for pair in zip(together.get(hour, _NOTHING), work, strict=True)]
    resting = costs.table_cores * len(tables)
    total = TableNeeds(
        "total",
        Rate(*(sum(getattr(table.mean, name) for table in each) for name in Rate.__dataclass_fields__)),
        _peak(together, setup.costs, resting),
        sum(table.load_seconds for table in each),
        sum(table.gets for table in each) + setup.notified * QUEUE_REQUESTS_AN_HOUR,
        sum(table.lists for table in each),
        sum(table.written for table in each),
        max((table.spill for table in each), default=0.0),
    )
    large = sum(
        table.live_bytes > LARGE_BYTES or any(version.size > LARGE_BYTES for version in table.versions)
        for table in tables
    )
    large = min(large, LARGE_AT_A_TIME)  # whatever the number of tables: the allocator gives the memory back
    more = costs.table_mb * max(0, len(tables) - 1) + setup.costs.large_mb * large
    memory = (costs.base_mb + more) * 1e6
    own = setup.own_topics or {}
    topics = len(tables) + len(own) if setup.partitions else 0
    hours, copies = (setup.keep_hours, setup.replicas) if setup.partitions else (MONTH_HOURS, 1)
    disk = total.written * hours * copies
    prices = setup.prices or PRICES
    return Needs(
        each,
        total,
        memory,
        topics,
        len(tables) * setup.partitions + sum(own.values()) if setup.partitions else 0,
        disk,
        {
            "processor": max(total.mean.cores, 0.0) * MONTH_HOURS * prices["core_hour"],
            "memory": memory / 1e9 * MONTH_HOURS * prices["gb_hour"],
            "requests": MONTH_HOURS
            * (total.gets * prices["million_gets"] + total.lists * prices["million_lists"])
            / 1e6,
            "disk": disk / 1e9 * prices["disk_gb_month"],
        },
    )


def _table_needs(table: TableWork, by_hour: Hours, costs: Costs, setup: Setup) -> TableNeeds:
    count, rows, size = (sum(column) for column in zip(_NOTHING, *by_hour.values(), strict=True))
    files, hours = sum(version.files for version in table.versions), table.hours
    cores = setup.costs.seconds(count, rows, size) / (hours * HOUR_SECONDS) + costs.table_cores
    gets = lists = 0.0
    if table.remote:
        # After a commit, polls are `interval` apart, and then twice as far each time.
        backing_off = log2(max(setup.max_interval / setup.interval, 1.0)) * count / hours
        polls = min(HOUR_SECONDS / setup.max_interval + backing_off, HOUR_SECONDS / setup.interval)
        gets = polls + CHECKS_AN_HOUR + (2 * count + files + size / RANGE_BYTES) / hours
        lists = LISTS_AN_HOUR
    refined = max((version.refined for version in table.versions), default=0) * costs.expansion
    return TableNeeds(
        table.name,
        Rate(count / hours, rows / hours, size / hours, cores),
        _peak(by_hour, setup.costs, costs.table_cores),
        setup.costs.seconds(0, table.live_rows, table.live_bytes) / setup.costs.cores,
        gets,
        lists,
        (rows * setup.costs.row_bytes + size * setup.costs.written) / hours,
        max(0.0, refined - SPILL_FREE_BYTES),
    )


def _by_hour(versions: Iterable[VersionWork]) -> Hours:
    hours: Hours = {}
    for version in versions:
        hour = hours.setdefault(version.at_ms // HOUR_MS, list(_NOTHING))
        hour[0] += 1
        hour[1] += version.rows
        hour[2] += version.size
    return hours


def _peak(hours: Hours, costs: SinkCosts, resting: float) -> Rate:
    """The busiest hour by processor time."""
    rates = [
        Rate(versions, rows, size, costs.seconds(versions, rows, size) / HOUR_SECONDS + resting)
        for versions, rows, size in hours.values()
    ]
    return max(rates, key=lambda rate: rate.cores, default=Rate(0, 0, 0, resting))
