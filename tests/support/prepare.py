"""Fetches or builds the missing programs of a tier before its tests run: `python -m tests.support.prepare TIER...`.

Without it, a test worker waits for a download or a compiler, and often another worker for the same one.
`programs` needs no installed package.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial

Step = Callable[[], object]


def programs() -> Iterator[Step]:
    """Go's compiler uses all cores."""
    from tests.support.helm import tools

    if tools.missing() is None:
        yield tools.helm


def test() -> Iterator[Step]:
    """Tests that are compiled, jars of Kafka, Spark and Delta Kernel, and Azurite. Two runs of Maven at once would conflict."""
    from tests.support import compiled_tests
    from tests.support.catalogs import kernel
    from tests.support.kafka import installation as kafka
    from tests.support.queues import azurite
    from tests.support.spark import archive
    from tests.support.spark import installation as spark

    yield compiled_tests.restore
    if kafka.missing() is None:
        yield kafka.installed
    if kernel.missing() is None:
        yield kernel.installed
    if spark.missing() is None:
        yield archive.options
    if azurite.missing() is None:
        yield azurite.install


def integration() -> Iterator[Step]:
    """Also the reference of Trevni, a browser, promtool, consumers of topics, libraries of data frames and the next version of Spark."""
    from tests.support import installation
    from tests.support.browser import chromium
    from tests.support.consumers import clients, flink, postgres
    from tests.support.consumers import installation as consumers
    from tests.support.helm import tools
    from tests.support.spark import environments
    from tests.support.spark import installation as spark
    from tests.support.trevni import reference

    yield from test()
    yield lambda: environments.python(*environments.FRAMES)
    if spark.missing() is None:
        yield lambda: environments.python(*environments.NEXT_SPARK)
    if reference.missing() is None:
        yield reference.installed
    if chromium.missing() is None:
        yield chromium.chromium
    if tools.missing() is None:
        yield tools.promtool
    if consumers.missing() is None:
        for name in consumers.CONNECT:
            yield partial(consumers.jars, name)
        yield flink.install
    if installation.missing_package("psql") is None:
        yield postgres.install
    if clients.missing("kafkajs") is None:
        yield clients.install_node
    if clients.missing("franz-go") is None:
        yield clients.install_go


def overnight() -> Iterator[Step]:
    """Also the next version of Spark and Spark Connect, an environment for a cluster, and a second S3 server."""
    from tests.support.cluster import environment
    from tests.support.s3 import server
    from tests.support.spark import environments, installation

    yield from test()
    if installation.missing() is None:
        yield lambda: environments.python(*environments.NEXT_SPARK)
        yield lambda: environments.python(*environments.CONNECT)
        yield environment.archive
    if server.missing() is None:
        yield server.gateway


STEPS = {each.__name__: each for each in (programs, test, integration, overnight)}


if __name__ == "__main__":
    for tier in sys.argv[1:]:
        for step in STEPS[tier]():
            step()
