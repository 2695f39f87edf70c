"""Standard error of child processes, as lines of the log."""

import json
import subprocess
import sys
from pathlib import Path

PARENT = """
import subprocess, sys, time
from cdfd.runtime import logs
from cdfd.spark.engine.sessions import log_standard_error

logs.set_up(sys.argv[1])
with log_standard_error() as stream:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream)
assert child.stdout.read(1) == b"."
{end}
"""
CHILD = r"""
import os, sys
os.write(2, b'plain\n  {"json": 1}\n\n\xff' + b"x" * 100_000 + b"\nno end")
os.write(1, b".")
sys.stdin.read()
"""


def output_of(format: str, end: str = "") -> list[str]:
    """The lines on standard error of a process that ends while its child runs."""
    command = [sys.executable, "-c", PARENT.format(end=end), format, CHILD]
    ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return ended.stderr.decode(errors="replace").splitlines()


def test_each_line_is_an_object_and_none_is_lost_at_the_end() -> None:
    written = [json.loads(line) for line in output_of("json")]
    assert {(line["level"], line["logger"], line["program"]) for line in written} == {("warning", "stderr", "spark")}
    messages = [line["message"] for line in written]
    assert messages[:2] == ["plain", '{"json": 1}']
    assert messages[-1] == "no end"
    assert messages[2].startswith("\N{REPLACEMENT CHARACTER}xxx")


def test_text_logs_leave_children_alone() -> None:
    lines = output_of("text")
    assert lines[:2] == ["plain", '  {"json": 1}']
    assert lines[-1] == "no end"


def test_threads_end_with_their_children(tmp_path: Path) -> None:
    """Many sessions may follow each other, and each has a pipe."""
    end = (
        "child.stdin.close(); child.wait(); threads = __import__('threading')\n"
        "deadline = time.monotonic() + 20\n"
        "while threads.active_count() > 1 and time.monotonic() < deadline: time.sleep(0.01)\n"
        f"open({str(tmp_path / 'left')!r}, 'w').write(str(threads.active_count()))"
    )
    assert json.loads(output_of("json", end)[-1])["message"] == "no end"
    assert (tmp_path / "left").read_text() == "1"
