"""Measurements as processes of their own, taken in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
CDFD = [sys.executable, "-m", "cdfd"]

Measured = dict[str, float]


def probe(name: str, *arguments: str, **environment: str) -> Measured:
    command = [sys.executable, "-m", "bench.probe", name, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    measured: Measured = json.loads(done.stdout.splitlines()[-1])
    return measured


# Linux counts what a process had before it became another program towards its peak. So a small process starts the command, and not
# this one, which may just have written a table.
_STARTS = """
import json, os, subprocess, sys, time
start = time.perf_counter()
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
print(json.dumps({"seconds": time.perf_counter() - start, "peak_mb": usage.ru_maxrss / 1024}))
sys.exit(os.waitstatus_to_exitcode(status) != 0)
"""


def process(*command: str) -> Measured:
    """A command from start to end: seconds, and its peak memory in MB."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _STARTS, *command], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    measured: Measured = json.loads(done.stdout)
    return measured


def python(code: str, uri: str) -> Measured:
    """The same of a Python that runs code about the table `URI`."""
    return process(sys.executable, "-c", f"URI = {uri!r}; {code}")


def cpu_seconds(pid: int) -> float:
    """Seconds of user and system time that all threads of a running process have taken."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mb(pid: int) -> float:
    """High-water mark of the resident memory of a running process, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def bare_mb() -> float:
    """Peak memory of a Python that does nothing."""
    status = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    return int(subprocess.check_output([sys.executable, "-c", status])) / 1024


def alternating(runs: int, **measures: Callable[[], Measured]) -> dict[str, Measured]:
    """Medians of each field of each measure, taken in turn; the first round does not count."""
    taken: dict[str, list[Measured]] = {name: [] for name in measures}
    for round_ in range(runs + 1):
        for name, measure in measures.items():
            measured = measure()
            if round_:
                taken[name].append(measured)
    return {
        name: {field: median(run[field] for run in runs_of) for field in runs_of[0]} for name, runs_of in taken.items()
    }
