"""Which tests a worker of pytest-xdist runs one after another, and in which order.

The unit of work is a module, so that each of its fixtures is set up once. Modules that share a server or a session of their own are one
unit. The longest unit comes first, as the last run on this machine had them, so that all workers end at about the same time.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadScopeScheduling

from tests.support.cache import CACHE, ROOT, locked

TOGETHER = (
    "tests/standard/spark/",
    "tests/integration/spark/",
    "tests/integration/consumers/",
    "tests/integration/image/",
    "tests/overnight/chaos/",
    "tests/overnight/upgrade/",
    "tests/overnight/cluster/",
)
"""Folders whose modules are one unit."""
DURATIONS = CACHE / "durations.json"
"""Seconds of each unit, as it ran last. Runs of all tests of their units write it."""
_SECONDS_OF_A_BYTE = 1e-4
"""Of a module that has not run on this machine yet."""


def unit(test: str) -> str:
    """The unit of the test with an id."""
    module = test.partition("::")[0]
    return next((folder for folder in TOGETHER if module.startswith(folder)), module)


class Units(LoadScopeScheduling):
    """Gives workers a unit at a time."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        self._durations = durations()

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(max(self.workqueue, key=self._seconds), last=False)
        super()._assign_work_unit(node)

    def _seconds(self, name: str) -> float:
        if name not in self._durations:
            path = ROOT / name
            modules = path.rglob("test_*.py") if path.is_dir() else filter(Path.is_file, [path])
            self._durations[name] = _SECONDS_OF_A_BYTE * sum(module.stat().st_size for module in modules)
        return self._durations[name]

    def remove_node(self, node: Any) -> str | None:
        """Give the tests that a dead worker has left to others: the test at which it died, if any. That one is not run again.

        xdist gives away whole units, with what has run. A worker with nothing to run then waits, and so does the whole run, for ever.
        """
        workload = self.assigned_work.pop(node)
        left = {name: [test for test, done in tests.items() if not done] for name, tests in workload.items()}
        died_at = next((test for tests in left.values() for test in tests), None)
        for name, tests in left.items():
            if others := {test: False for test in tests if test != died_at}:
                self.workqueue[name] = others
        if died_at is not None:
            for other in self.assigned_work:
                self._reschedule(other)
        return died_at


def durations() -> dict[str, float]:
    """Seconds by unit."""
    return dict(json.loads(DURATIONS.read_text())) if DURATIONS.exists() else {}


def has_whole_units(config: Any) -> bool:
    """Whether a process distributes all tests of the modules that it runs."""
    chosen, places = config.option, config.args
    is_distributor = getattr(chosen, "numprocesses", None) and not hasattr(config, "workerinput")
    return bool(is_distributor) and not (chosen.keyword or chosen.markexpr or any("::" in each for each in places))


class Recorder:
    """A plugin that records the seconds of each unit."""

    def __init__(self) -> None:
        self._seconds = defaultdict[str, float](float)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[unit(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        with locked(CACHE):
            recorded = durations() | {name: round(seconds, 1) for name, seconds in self._seconds.items()}
            DURATIONS.write_text(json.dumps(recorded, indent=0))
