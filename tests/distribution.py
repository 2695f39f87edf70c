"""Which tests a worker of pytest-xdist runs one after another: those that share a server, a cluster or a session.

The unit of work is a test module, so that each of its fixtures is set up once in a run. Some modules make one unit together. xdist has a mark
for that, which writes the group into a test's id. pytest 9.2 computes ids, and the mark has no effect there.
"""

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


def unit(test: str) -> str:
    """The unit of the test with an id."""
    module = test.partition("::")[0]
    return next((name for name, places in TOGETHER.items() if module.startswith(places)), module)


class Units(LoadScopeScheduling):
    """Gives workers a unit at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        for name in reversed(TOGETHER):
            if name in self.workqueue:
                self.workqueue.move_to_end(name, last=False)
        super()._assign_work_unit(node)
