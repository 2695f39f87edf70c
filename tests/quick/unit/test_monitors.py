"""Events of a table that several monitors receive."""

import inspect

import pytest

from cdfd.daemon.telemetry.monitors import Monitors
from cdfd.deliver.monitor import Monitor

ANSWERS = {"tolerates", "urgency"}
EVENTS = sorted(name for name in vars(Monitor) if not name.startswith("_") and name not in ANSWERS)


class Answering(Monitor):
    def __init__(self, urgency: float | None, *, tolerates: bool = False) -> None:
        self._urgency, self._tolerates = urgency, tolerates

    def urgency(self) -> float | None:
        return self._urgency

    def tolerates(self) -> bool:
        return self._tolerates


@pytest.mark.parametrize("event", EVENTS)
def test_every_monitor_receives_each_event_in_order(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[tuple[object, ...]] = []
    monkeypatch.setattr(Monitor, event, lambda *values: received.append(values), raising=False)
    one, two = Monitor(), Monitor()
    values = list(inspect.signature(getattr(Monitor, event)).parameters)[1:]
    getattr(Monitors(one, two), event)(*values)
    assert received == [(one, *values), (two, *values)]


def test_the_first_monitor_with_an_urgency_answers() -> None:
    assert Monitors(Answering(None), Answering(2.0), Answering(1.0)).urgency() == 2.0
    assert Monitors(Monitor()).urgency() is None


def test_one_monitor_that_tolerates_errors_is_sufficient() -> None:
    assert Monitors(Monitor(), Answering(None, tolerates=True)).tolerates()
    assert not Monitors(Monitor()).tolerates()
