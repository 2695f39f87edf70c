"""The figures of a report: rows of the table in `bench/README.md`."""

from __future__ import annotations

from dataclasses import dataclass

HEADER = ("| what | cdfd | peer | value | target | moonshot | |", "|---|---|---|---|---|---|---|")


@dataclass(frozen=True)
class Figure:
    """One row of the table: a measurement and its target, if it has one. `more` is whether more is better."""

    what: str
    ours: str
    peer: str
    value: float | None
    unit: str
    target: float | None = None
    moonshot: float | None = None
    more: bool = False

    def line(self) -> str:
        goals = [goal for goal in (self.target, self.moonshot) if goal is not None]
        reached = sum(self._reaches(goal) for goal in goals)
        verdict = ("missed", "met", "moonshot")[reached] if goals and self.value is not None else ""
        sign = "≥" if self.more else "≤"
        bounds = [f"{sign} {goal:.3g}{self.unit}" for goal in goals] + [""] * (2 - len(goals))
        value = "" if self.value is None else f"{self.value:.3g}{self.unit}"
        return f"| {' | '.join([self.what, self.ours, self.peer, value, *bounds, verdict])} |"

    def _reaches(self, goal: float) -> bool:
        return self.value is not None and (self.value >= goal if self.more else self.value <= goal)
