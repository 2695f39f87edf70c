"""How long work says how far it has come."""

import logging
import os
import pty
import subprocess
import sys

import pytest

from cdfd.runtime.progress_line import LOG_SECONDS, ProgressLine
from tests.support.manual_time import ManualClock


def test_a_log_line_every_ten_seconds_of_long_work(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    report = ProgressLine(logging.getLogger("cdfd.test"), "delivered", "orders", clock=clock)
    with caplog.at_level(logging.INFO, "cdfd.test"):
        for _ in range(25):
            clock.advance(1.0)
            report.count(3, 100)
    assert [record.getMessage() for record in caplog.records] == [
        "at version 3, 1000 rows delivered",
        "at version 3, 2000 rows delivered",
    ]


def test_work_that_is_not_long_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    report = ProgressLine(logging.getLogger("cdfd.test"), "delivered", "orders", clock=clock)
    with caplog.at_level(logging.INFO, "cdfd.test"):
        for version in range(20):
            clock.advance(LOG_SECONDS)
            report.count(version, 1)
    assert not caplog.records


WITH_TESTS = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
"""The environment of a process that imports what this one can import."""

PROGRAM = """
import logging
from cdfd.runtime.progress_line import ProgressLine
from tests.support.manual_time import ManualClock
clock = ManualClock()
report = ProgressLine(logging.getLogger(), "written", "orders", terminal=True, clock=clock)
report.count(3, 1000)
clock.advance(1.5)
report.count(4, 234)
report.close()
"""


def test_a_bar_on_a_terminal() -> None:
    screen, terminal = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", PROGRAM], env=WITH_TESTS, stderr=terminal, check=True, timeout=60)
        shown = os.read(screen, 65_536).decode()
    finally:
        os.close(screen)
        os.close(terminal)
    assert "version 4: 1,234 rows written" in shown


LOST = """
import logging, sys
from cdfd.runtime.progress_line import ProgressLine
from tests.support.manual_time import ManualClock

clock = ManualClock()
report = ProgressLine(logging.getLogger("cdfd"), "delivered", "orders", terminal=True, clock=clock)
sys.stdin.readline()
for _ in range(5):
    clock.advance(1.5)
    report.count(4, 1000)
print("went on", flush=True)
"""


def test_a_terminal_that_is_lost_ends_no_work() -> None:
    screen, terminal = pty.openpty()
    command = [sys.executable, "-c", LOST]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=terminal, env=WITH_TESTS, text=True
    ) as process:
        os.close(screen)
        os.close(terminal)
        out, _ = process.communicate("go\n", timeout=60)
    assert out == "went on\n"
