"""Which tests a worker of pytest-xdist runs one after another, and in which order.

The unit of work is a module, so that each of its fixtures is set up once. Modules that share a server or a session of their own are one
unit. The longest unit comes first, as `durations.json` has them, so that all workers end at about the same time.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadScopeScheduling

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
DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds of each unit, of one run. `CDFD_DURATIONS=1` writes those of the units that ran."""


def unit(test: str) -> str:
    """The unit of the test with an id."""
    module = test.partition("::")[0]
    return next((folder for folder in TOGETHER if module.startswith(folder)), module)


class Units(LoadScopeScheduling):
    """Gives workers a unit at a time."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        self._seconds = durations()

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        longest = max(self.workqueue, key=lambda name: self._seconds.get(name, 1.0))
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)

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
    return dict(json.loads(DURATIONS.read_text()))


class Recorder:
    """A plugin that records the seconds of each unit."""

    def __init__(self) -> None:
        self._seconds = defaultdict[str, float](float)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[unit(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        recorded = durations() | {name: round(seconds, 1) for name, seconds in self._seconds.items()}
        kept = {name: seconds for name, seconds in sorted(recorded.items()) if Path(name).exists()}
        DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")
