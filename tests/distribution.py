"""Which tests a worker of pytest-xdist runs one after another: those that share a server, a cluster or a session.

The unit of work is a test module, so that each of its fixtures is set up once in a run. Some modules make one unit together. xdist has a mark
for that, which writes the group into a test's id. pytest 9.2 computes ids, and the mark has no effect there.
"""

import os
from typing import Any

from xdist.scheduler import LoadScopeScheduling

TOGETHER = {
    "cluster": ("tests/cluster/",),
    "chaos": ("tests/chaos/",),
    "proxied broker": (
        "tests/kafka/test_faults.py",
        "tests/kafka/test_proxy.py",
        "tests/kafka/test_sink_faults.py",
        "tests/kafka/test_windows.py",
    ),
    "secured broker": ("tests/kafka/test_access.py", "tests/kafka/test_security.py"),
    "image": ("tests/image/",),
}
"""Folders and modules by the name of their unit. The longest comes first: its worker would be alone with it at the end."""

SHORT = (
    "tests/unit/",
    "tests/contract/",
    "tests/golden/",
    "tests/oracle/",
    "tests/simulation/",
    "tests/trevni/",
)
"""Folders whose modules take two minutes at most, and mostly compute. They come last, so that all workers end at about the same time.

By itself, xdist begins with the modules of the most tests. The last ones have one test each, such as the fuzzer or the next Spark, and
take minutes.
"""

NICE = 5
"""The niceness of workers beyond the machine's processors: a third of another's time, where both want all of a processor."""


def unit(test: str) -> str:
    """The unit of the test with an id."""
    module = test.partition("::")[0]
    return next((name for name, places in TOGETHER.items() if module.startswith(places)), module)


def rank(name: str) -> int:
    """The place of a unit in the order in which units begin; of equals, the one with more tests is first."""
    order = list(TOGETHER)
    return order.index(name) if name in TOGETHER else len(order) + name.startswith(SHORT)


def fills(worker: str) -> bool:
    """Whether the worker of an id, such as gw2, is beyond the machine's processors.

    Such a worker takes the time that others wait for brokers and clusters: it has short units only, and yields to everyone (`NICE`).
    """
    return _number(worker) >= (os.cpu_count() or 1)


def _number(worker: str) -> int:
    return int(worker.removeprefix("gw"))


class Units(LoadScopeScheduling):
    """Gives workers a unit at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        first = min(self._units_for(node), key=rank, default=None)
        if first is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)

    def _units_for(self, node: Any) -> list[str]:
        """The ones that a worker may have: all, if it replaces one that died."""
        worker = node.gateway.id
        short_only = fills(worker) and _number(worker) < self.numnodes
        return [name for name in self.workqueue if not short_only or name.startswith(SHORT)]
