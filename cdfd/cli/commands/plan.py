"""`cdfd plan`: the needs of a pipeline, from the logs of its tables. Writes nothing, and connects to no sink."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cdfd.cli.commands.columns import align_columns
from cdfd.config.parser import load
from cdfd.config.settings import Settings
from cdfd.daemon.membership.discovery import discover_tables
from cdfd.daemon.membership.shard import Shard
from cdfd.daemon.sizing.estimate import PRICES, PRICES_SOURCE, Needs, Rate, Setup, TableNeeds, needs
from cdfd.daemon.sizing.reading import costs, read_work
from cdfd.errors import ConfigError
from cdfd.escaping import as_json as json_of
from cdfd.escaping import one_line
from cdfd.runtime.clock import SystemClock

COLUMNS = ("table", "versions/h", "rows/h", "bytes/h", "peak rows/h", "peak cores", "first load", "requests/h")


def run(
    path: Path,
    days: float,
    keep_days: float,
    prices: Sequence[str] = (),
    *,
    shard: Shard | None = None,
    sink: str | None = None,
    as_json: bool = False,
) -> tuple[str, int]:
    """The report as text or as JSON, and the exit code: 1 if a table cannot be read.

    Args:
        path: of the configuration file.
        days: how many days of commits to read.
        keep_days: for how long topics keep rows.
        prices: others than `PRICES`, as NAME=USD.
        shard: only the tables of this shard; None: all.
        sink: only this one; None: all, each by itself.
        as_json: whether to return JSON.

    Raises:
        ConfigError: the configuration or a price is invalid, or there is no such sink.
    """
    charged = dict(PRICES)
    for text in prices:
        name, _, value = text.partition("=")
        try:
            charged[name] = float(value)
        except ValueError:
            raise ConfigError(f"the price {text!r:.100} is not NAME=USD", hint=_NAMES) from None
        if name not in PRICES or not 0 <= charged[name] < 1e9:
            raise ConfigError(f"{name!r:.100} is not the name of a price, or its value is not one", hint=_NAMES)
    reports = {config.sink_name: _report(config, days, keep_days, shard, charged) for config in load(path).chosen(sink)}
    code = int(any(report.problems for report in reports.values()))
    if as_json:
        documents = {
            name: asdict(report.needs) | {"assumptions": report.assumptions, "not_read": report.problems}
            for name, report in reports.items()
        }
        document = documents[""] if list(documents) == [""] else {"sinks": documents}
        return json_of(document, indent=2) + "\n", code
    return "\n".join(
        (f"sink {one_line(name)}\n\n" if name else "") + "".join(report.lines()) for name, report in reports.items()
    ), code


@dataclass(frozen=True, slots=True)
class Report:
    """The needs of the tables of one sink, and what they are based on.

    Attributes:
        needs: of the tables that can be read.
        setup: the settings that cost.
        assumptions: as JSON values.
        problems: errors of tables.
    """

    needs: Needs
    setup: Setup
    assumptions: Mapping[str, Any]
    problems: Sequence[str]

    def lines(self) -> Iterator[str]:
        """The report for people."""
        needs, setup = self.needs, self.setup
        total = needs.total
        yield align_columns([COLUMNS, *map(_row, needs.tables), _row(total)])
        yield "\n"
        topics = f"{needs.topics:,} with {needs.partitions:,} partitions" if needs.topics else "none"
        kept = (
            f"kept for {setup.keep_hours / 24:g} days, {setup.replicas} replicas"
            if needs.topics
            else "a month of files"
        )
        rows = [
            ("processor", f"{total.mean.cores:.2f} cores on average, {total.peak.cores:.2f} in the busiest hour"),
            ("memory", amount(needs.memory)),
            ("spill", f"{amount(total.spill)} of local disk" if total.spill else "none"),
            ("topics", topics),
            ("disk of the sink", f"{amount(needs.disk)}, {kept}"),
            ("first load", f"{duration(total.load_seconds)} for all tables, one after the other"),
            ("store", f"{total.gets + total.lists:,.0f} requests an hour"),
            ("month", ", ".join(f"{name} {usd:,.2f}" for name, usd in needs.money.items()) + " USD"),
        ]
        yield from (f"{label:<18}{text}\n" for label, text in rows)
        yield from (f"not read: {one_line(problem)}\n" for problem in self.problems)
        told = self.assumptions
        prices = ", ".join(f"{name}={usd:g}" for name, usd in told["prices_usd"].items())
        yield f"\nFrom the commits of the last {told['days']:g} days. Costs of {told['costs_of']}, {told['costs_measured']}.\n"
        yield f"Prices: {told['prices_source']}: {prices}.\n"


def _report(
    config: Settings, days: float, keep_days: float, shard: Shard | None, charged: Mapping[str, float]
) -> Report:
    measured = costs()
    config, refused = asyncio.run(discover_tables(config, shard=shard))
    works, errors = asyncio.run(read_work(config, days, SystemClock()))
    measured_as, sink = measured.sink(config.sink.kind, config.sink.form)
    partitions, replicas = config.sink.partitions
    own = dict.fromkeys(config.sink.side_topics(config.pipeline), 1)
    own |= {f"_cdfd_progress.{config.pipeline}": 1} if partitions and config.sink.keeps_positions else {}
    setup = Setup(
        sink,
        config.poll.interval,
        config.poll.max_interval,
        config.poll.notifications is not None,
        partitions,
        replicas,
        own,
        keep_days * 24,
        charged,
    )
    assumptions = {
        "days": days,
        "topics_keep_days": keep_days if partitions else None,
        "costs_of": measured_as,
        "costs_measured": measured.measured,
        "prices_usd": charged,
        "prices_source": PRICES_SOURCE if charged == PRICES else f"given; otherwise {PRICES_SOURCE}",
    }
    return Report(needs(works, measured, setup), setup, assumptions, [*map(str, (*refused, *errors))])


_NAMES = f"Names are {', '.join(PRICES)}; a value is in US dollars"


def _row(table: TableNeeds) -> tuple[str, ...]:
    mean: Rate = table.mean
    return (
        table.name,
        f"{mean.versions:,.1f}",
        f"{mean.rows:,.0f}",
        amount(mean.size),
        f"{table.peak.rows:,.0f}",
        f"{table.peak.cores:.3f}",
        duration(table.load_seconds),
        f"{table.gets + table.lists:,.0f}",
    )


def amount(size: float) -> str:
    """Bytes for people."""
    for unit, least in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= least:
            return f"{size / least:.1f} {unit}"
    return f"{size:.0f} B"


def duration(seconds: float) -> str:
    """A duration for people."""
    for unit, least in (("h", 3600.0), ("min", 60.0)):
        if seconds >= least:
            return f"{seconds / least:.1f} {unit}"
    return f"{seconds:.1f} s"
