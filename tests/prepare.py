"""What tests fetch or build where it is missing, made before them: `python -m tests.prepare programs`; a part of `make test`.

Otherwise a worker waits for a download or a compiler, and often the other one for the same. `programs` needs no installed package.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

Step = Callable[[], object]


def programs() -> Iterator[Step]:
    """Go's compiler uses all cores."""
    from tests.helm import tools
    from tests.s3 import server

    if server.missing() is None:
        yield server.gateway
    if tools.missing() is None:
        yield tools.helm


def jars() -> Iterator[Step]:
    """Maven expects no other one beside it."""
    from tests.kafka import installation as kafka
    from tests.spark import archive
    from tests.spark import installation as spark
    from tests.trevni import reference

    if kafka.missing() is None:
        yield kafka.installed
    if spark.missing() is None:
        yield archive.options
    if reference.missing() is None:
        yield reference.installed


def packages() -> Iterator[Step]:
    """Debian's."""
    from tests.browser import chromium
    from tests.helm import tools

    if chromium.missing() is None:
        yield chromium.chromium
    if tools.missing() is None:
        yield tools.promtool


def environments() -> Iterator[Step]:
    """Of Python, with other packages than the tests' own, or for other processes."""
    from tests.cluster import environment
    from tests.spark import environments, installation

    if installation.missing() is None:
        yield lambda: environments.python(*environments.NEXT_SPARK)
        yield lambda: environments.python(*environments.CONNECT)
        yield environment.archive


LANES = {lane.__name__: lane for lane in (programs, jars, packages, environments)}
"""Each is a thread, which does one step after the other."""


def run(lane: str) -> None:
    for step in LANES[lane]():
        step()


if __name__ == "__main__":
    with ThreadPoolExecutor() as pool:
        list(pool.map(run, sys.argv[1:]))
