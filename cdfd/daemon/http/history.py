"""The last hour of each table, for the page: lag, rows per second and delivery time, sampled every ten seconds.

Memory is bounded: a table takes `BYTES` for its samples, however long the daemon runs. 500 tables take 2.9 MB.
"""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cdfd.daemon.http.status import Status
from cdfd.daemon.http.table_status import TableMonitor
from cdfd.runtime.clock import Clock

SECONDS = 10.0
"""Time between two samples."""
POINTS = 360
"""Samples that are kept: one hour."""
SERIES = ("lag_seconds", "lag_versions", "rows_per_second", "delivery_seconds")
BYTES = len(SERIES) * POINTS * array("f").itemsize
"""Memory of the samples of one table."""
TREND_POINTS = 30
_RATE_POINTS = 6
"""Samples from which the time to catch up is estimated: one minute."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment of a table, in the order of `SERIES`. None: unknown.

    Attributes:
        lag_seconds: age of the oldest undelivered commit.
        lag_versions: undelivered versions.
        rows_per_second: mean since the sample before.
        delivery_seconds: longest time from a commit to its delivery since the sample before; None without deliveries.
    """

    lag_seconds: float | None
    lag_versions: float | None
    rows_per_second: float | None
    delivery_seconds: float | None


class Ring:
    """The newest `POINTS` samples, in single-precision floats. A sample that is unknown or not yet taken is None."""

    def __init__(self) -> None:
        self._values = {name: array("f", [math.nan]) * POINTS for name in SERIES}
        self._next = 0
        self._lags = 0  # samples with a lag: most tables have none, and need no trend
        self._trend: list[float | None] | None = None

    def add(self, sample: Sample) -> None:
        """Add a sample, in place of the oldest one."""
        lag = self._values["lag_seconds"]
        self._lags -= lag[self._next] > 0
        for name, series in self._values.items():
            value = getattr(sample, name)
            series[self._next] = math.nan if value is None else value
        self._lags += lag[self._next] > 0
        self._next = (self._next + 1) % POINTS
        self._trend = None

    def series(self, name: str, newest: int = POINTS) -> list[float | None]:
        """The newest samples of a series, oldest first. The list always has `newest` values."""
        values, first = self._values[name], self._next - newest
        series = values[first : self._next] if first >= 0 else values[first:] + values[: self._next]
        return [None if math.isnan(value) else float(f"{value:.4g}") for value in series]

    def document(self) -> dict[str, list[float | None]]:
        """All series, as JSON values."""
        return {name: self.series(name) for name in SERIES}

    def trend(self) -> list[float | None] | None:
        """The lag in seconds in `TREND_POINTS` values, each the largest of its time; None if there was no lag."""
        if self._lags and self._trend is None:
            lag, width = self.series("lag_seconds"), POINTS // TREND_POINTS
            self._trend = [largest(lag[start : start + width]) for start in range(0, POINTS, width)]
        return self._trend

    def seconds_to_tip(self) -> float | None:
        """The time until the lag is 0 if it goes on as in the last minute; infinity while it does not shrink; None if unknown."""
        if not self._lags:
            return None
        recent = [value for value in self.series("lag_versions", _RATE_POINTS + 1) if value is not None]
        if len(recent) < 2 or not recent[-1]:
            return None
        shrunk = recent[0] - recent[-1]
        return math.inf if shrunk <= 0 else recent[-1] * (len(recent) - 1) * SECONDS / shrunk


def largest(values: Iterable[float | None]) -> float | None:
    """The largest known value; None if there is none."""
    return max((value for value in values if value is not None), default=None)


@dataclass(eq=False)
class History:
    """The last hour of a daemon."""

    status: Status
    all: Ring = field(default_factory=Ring, init=False)
    _tables: dict[str, Ring] = field(default_factory=dict, init=False)
    _rows: dict[TableMonitor, int] = field(default_factory=dict, init=False)

    def sample(self) -> None:
        """Take a sample of every table. Takes about 30 microseconds for each."""
        monitors = self.status.tables()
        samples = []
        for monitor in monitors:
            reading, rows = monitor.reading(), monitor.rows - self._rows.get(monitor, 0)
            slowest = monitor.activity.take_slowest()
            samples.append(Sample(reading.lag_seconds, reading.lag_versions, rows / SECONDS, slowest))
        rings = {monitor.name: self.table(monitor.name) for monitor in monitors}
        for ring, sample in zip(rings.values(), samples, strict=True):
            ring.add(sample)
        self._tables = rings  # without tables that are gone
        self._rows = {monitor: monitor.rows for monitor in monitors}
        self.all.add(_together(samples))

    def table(self, name: str) -> Ring:
        """The samples of a table."""
        return self._tables.get(name) or Ring()

    async def run(self, clock: Clock) -> None:
        """Take samples forever."""
        while True:
            await clock.sleep(SECONDS)
            self.sample()


def _together(samples: Sequence[Sample]) -> Sample:
    lag = largest(sample.lag_seconds for sample in samples)
    unknown = any(sample.lag_seconds is None for sample in samples)
    return Sample(
        None
        if unknown and not lag
        else lag,  # the lag of all is at least the largest one, but 0 says that there is none
        sum(sample.lag_versions or 0 for sample in samples),
        sum(sample.rows_per_second or 0 for sample in samples),
        largest(sample.delivery_seconds for sample in samples),
    )
