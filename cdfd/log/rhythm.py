"""The rhythm of a table's commits: the distribution of the times between them, and when to poll next because of it. Pure.

A commit that comes at hazard `h` (the probability of a commit in the next second, if none has come yet) and is polled every `d` seconds waits
`d / 2` on average. Per second, that is `h * d / 2` seconds of delay, for `1 / d` requests. If a request is worth `price` seconds of delay,
`d = sqrt(2 * price / h)` is the best interval. So polls are equidistant in the integral of `sqrt(h)` over time, which is called the effort
here, and one price for all tables gives each its best share of a budget. Crawlers of web pages are scheduled by the same rule.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

GAPS = 64
"""Gaps that are remembered."""
FADING = 0.95
"""Weight of a gap, relative to the one after it: a table that changes its rhythm is learned within some twenty commits."""
MISSED = 0.1
"""Weight of two successive gaps as one, relative to a gap: a job that runs every minute may skip one."""
UNKNOWN = 1.0
"""Weight of a gap unlike all others: it may end at any time, as likely between one and two hours as between one and two seconds."""
NEIGHBOURS = 8
"""A gap stands for those up to its eighth neighbour, or a third of all while there are few,"""
NEAR = 0.125
"""and for none that differ by more than this share of it: pauses between bursts are few, and have nothing to do with the gaps in a burst."""
MIN_ERROR = 0.02
"""Seconds by which a gap is wrong, at least."""

Floats = npt.NDArray[np.float64]

_GRID: Floats = np.concatenate([[0.0], np.geomspace(0.02, 1e7, 128)])
"""Seconds since the last commit at which the hazard is computed, besides where it jumps."""


@dataclass(eq=False)
class Rhythm:
    """Learns the gaps between the commits of one table.

    Attributes:
        scale: a typical gap in seconds, until one is known.
        gaps: the remembered ones in seconds, and by how much each may be wrong, the newest last.
    """

    scale: float
    gaps: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=GAPS), init=False)
    _effort: tuple[Floats, Floats] | None = field(default=None, init=False)

    def learn(self, seconds: float, error: float) -> None:
        """A commit came `seconds` after the one before it, give or take `error`."""
        self.gaps.append((max(seconds, 0.0), max(error, MIN_ERROR)))
        self._effort = None

    def delay(self, elapsed: float, price: float) -> float:
        """Seconds to the next poll; infinite if a poll is not worth its price.

        Args:
            elapsed: seconds since the last commit.
            price: seconds of delay of a commit that a request is worth.
        """
        if self._effort is None:
            # Times since a commit, ascending, and the integral of the root of the hazard up to each.
            starts, ends, weights = self._intervals()
            times = np.unique(np.concatenate([_GRID, starts, ends]))
            steps, middles = np.diff(times), (times[1:] + times[:-1]) / 2
            # Weight per second at each time, if each weight is spread evenly from its start to its end.
            rates = weights / np.maximum(ends - starts, MIN_ERROR)
            by_start, by_end = np.argsort(starts), np.argsort(ends)
            begun = np.concatenate([[0.0], np.cumsum(rates[by_start])])[
                np.searchsorted(starts[by_start], middles, "right")
            ]
            ended = np.concatenate([[0.0], np.cumsum(rates[by_end])])[np.searchsorted(ends[by_end], middles, "right")]
            density: Floats = np.maximum(begun - ended, 0.0)
            # Weight of the gaps that have not ended in the middle of each step.
            mass = density * steps
            survival = np.maximum(weights.sum() - np.cumsum(mass) + mass / 2, 0.0)
            scale = float(np.median([seconds for seconds, _ in self.gaps])) if self.gaps else self.scale
            unknown = UNKNOWN / (1 + middles / max(scale, MIN_ERROR))
            hazard = (density + unknown / (max(scale, MIN_ERROR) + middles)) / (survival + unknown)
            self._effort = times, np.concatenate([[0.0], np.cumsum(np.sqrt(hazard) * steps)])
        times, effort = self._effort
        target = float(np.interp(elapsed, times, effort)) + (2 * price) ** 0.5
        if target >= effort[-1]:
            return float("inf")
        return max(float(np.interp(target, effort, times)) - elapsed, 0.0)

    def _intervals(self) -> tuple[Floats, Floats, Floats]:
        """For each remembered gap, and for each two that follow each other: when it may end, from and to, and its weight."""
        if not self.gaps:
            return np.empty(0), np.empty(0), np.empty(0)
        seconds, errors = np.array(self.gaps).T
        weights: Floats = FADING ** np.arange(len(seconds), dtype=np.float64)[::-1]
        # From each gap to its neighbour, as `NEIGHBOURS` says; half the gap if there are less than three.
        distance: Floats = seconds / 2
        neighbours = min(NEIGHBOURS, len(seconds) // 3)
        if neighbours:
            order = np.argsort(seconds)
            ascending = seconds[order]
            nearest = np.full(len(seconds), np.inf)
            # The nearest ones are next to each other. Of the windows that contain the gap, one has them, and its farthest is the neighbour.
            for before in range(neighbours + 1):
                after = neighbours - before
                at = np.arange(before, len(seconds) - after)
                farthest = np.maximum(ascending[at] - ascending[at - before], ascending[at + after] - ascending[at])
                nearest[at] = np.minimum(nearest[at], farthest)
            distance[order] = nearest
            distance = np.minimum(distance, NEAR * seconds)
        half = np.maximum(errors, distance)
        twice, twice_half = seconds[1:] + seconds[:-1], half[1:] + half[:-1]
        seconds, half = np.concatenate([seconds, twice]), np.concatenate([half, twice_half])
        weights = np.concatenate([weights, MISSED * weights[1:]])
        return np.maximum(seconds - half, 0.0), seconds + half, weights
