"""Two processes of one pipeline with a real broker: one delivers, and the other one takes its place, however the first one ends."""

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from cdfd.demo.writer import TableWriter
from tests.support.kafka.daemon_process import Daemon
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.lake import rows

QUIET = ("info", "debug")
Start = Callable[[], Daemon]


@pytest.fixture
def start(pipeline: Pipeline) -> Iterator[Start]:
    """Starts another process, which stands by or leads when this returns."""
    with ExitStack() as stack:

        def started() -> Daemon:
            daemon = stack.enter_context(pipeline.daemon("--standby"))
            daemon.wait_for(lambda line: line["message"] in ("standing by", "leading the pipeline"))
            return daemon

        yield started


def leading(daemon: Daemon) -> Daemon:
    """The daemon, once it delivers."""
    daemon.wait_for("leading the pipeline")
    daemon.wait_for("at version")
    return daemon


def loud(*daemons: Daemon) -> list[str]:
    """The lines that would wake a person."""
    return [line["message"] for daemon in daemons for line in daemon.lines if line["level"] not in QUIET]


def test_second_process_stands_by(pipeline: Pipeline, table: TableWriter, start: Start) -> None:
    first = leading(start())
    second = start()
    do(table.insert(rows(3)))
    assert pipeline.check() == 4
    assert not second.has_said("leading")
    assert loud(first, second) == []
    second.stop()
    first.stop()


def test_leader_is_ready_once_its_table_delivers(pipeline: Pipeline, table: TableWriter, start: Start) -> None:
    pipeline.configure(beside=[{"uri": f"{pipeline.uri}-later"}], http={"listen": "127.0.0.1:0"})
    daemon = leading(start())
    [address] = [where[0] for line in daemon.lines if (where := re.search(r"http://[0-9.:]+", line["message"]))]
    with pytest.raises(HTTPError) as missing:
        urlopen(f"{address}/readyz", timeout=10)
    assert missing.value.code == 503
    missing.value.close()
    pipeline.configure(http={"listen": "127.0.0.1:0"})
    daemon.wait_for("removed")
    with urlopen(f"{address}/readyz", timeout=10) as ready:
        assert ready.status == 200
    daemon.stop()


def test_killed_leader_is_replaced(pipeline: Pipeline, table: TableWriter, start: Start) -> None:
    first, second = leading(start()), start()
    do(table.insert(rows(3)))
    first.kill()
    do(table.insert(rows(4)))
    leading(second)
    assert pipeline.check() == 5
    assert loud(second) == []
    second.stop()


def test_stopped_leader_hands_over_at_once(pipeline: Pipeline, table: TableWriter, start: Start) -> None:
    """Before the lease is abandoned: a minute would pass until then."""
    pipeline.configure(standby={"takeover_after": "60s"})
    first, second = leading(start()), start()
    do(table.insert(rows(3)))
    first.stop()
    assert first.has_said("released the lease")
    leading(second)
    do(table.insert(rows(4)))
    assert pipeline.check() == 5
    assert loud(first, second) == []
    second.stop()


def test_paused_leader_stands_by_after_its_pause(pipeline: Pipeline, table: TableWriter, start: Start) -> None:
    first, second = leading(start()), start()
    with first.paused():
        do(table.insert(rows(3)))
        leading(second)
    first.wait_for("another process leads the pipeline; standing by")
    do(table.insert(rows(4)))
    assert pipeline.check() == 5
    # And takes its place again.
    before = len(first.lines)
    second.stop()
    first.wait_for("leading the pipeline", after=before)
    do(table.insert(rows(5)))
    assert pipeline.check() == 6
    assert loud(first, second) == []
    first.stop()


def test_processes_are_replaced_one_by_one(pipeline: Pipeline, start: Start) -> None:
    """As a rolling update does: the new one is there before the old one ends."""
    with pipeline.writing() as writing:
        daemons = [leading(start())]
        for _ in range(3):
            daemons.append(start())
            daemons[-2].stop()
            leading(daemons[-1])
            time.sleep(0.2)
    assert writing.table.version > 3
    pipeline.check()
    daemons[-1].stop()
    assert loud(*daemons) == []


def test_table_that_was_added_while_it_stood_by_is_delivered(
    pipeline: Pipeline, table: TableWriter, start: Start
) -> None:
    first, second = leading(start()), start()
    pipeline.configure(beside=[{"uri": pipeline.uri, "name": "again", "topic": f"{pipeline.name}.again"}])
    first.signal(signal.SIGKILL)
    leading(second)
    second.wait_for(lambda line: "starting at version" in line["message"])
    second.stop()
