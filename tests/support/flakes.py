"""Finds tests that fail now and then: `python -m tests.support.flakes RUNS [PATHS...]` runs a selection again and again on a busy machine.

Each run has the output of its failures in `.cache/flakes/`. Ctrl-C ends it, and lists what failed until then.
"""

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from xml.etree import ElementTree

from tests.support.cache import ROOT

PATHS = ("tests/quick", "tests/standard")
"""Those of `make test`."""
FOLDER = ROOT / ".cache" / "flakes"
LOAD = 8
"""Processes that want a processor, those of the tests among them."""
RUN_SECONDS = 3600

# It ends as soon as its standard input does, whatever becomes of the process that started it.
_BUSY = "import sys, threading; threading.Thread(target=lambda: (sys.stdin.read(), __import__('os')._exit(0))).start()\nwhile True: pass"


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes compute, until the `with` ends."""
    with ExitStack() as stack:
        for _ in range(processes):
            process = subprocess.Popen([sys.executable, "-I", "-S", "-c", _BUSY], stdin=subprocess.PIPE)
            stack.callback(process.wait)
            assert process.stdin is not None
            stack.callback(process.stdin.close)
        yield


def failures(number: int, paths: Sequence[str], workers: int) -> tuple[list[str], int]:
    """The tests that failed in one run, and how many ran."""
    report, log = FOLDER / f"{number}.xml", FOLDER / f"{number}.log"
    report.unlink(missing_ok=True)
    options = ["-q", "-n", str(workers), "-p", "no:cacheprovider", f"--junitxml={report}", "-o", "junit_family=xunit1"]
    with log.open("w") as out:
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, *paths],
            cwd=ROOT,
            stdout=out,
            stderr=out,
            timeout=RUN_SECONDS,
            check=False,
        )
    if not report.exists():
        return [f"run {number} has no report: {log}"], 0
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [
        f"{case.get('file')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    if not failed:
        log.unlink()
    return failed, len(cases)


def main(runs: int, paths: Sequence[str]) -> int:
    """Run and report. Returns 1 if a test failed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    failed = defaultdict[str, list[int]](list)
    workers = os.cpu_count() or 1
    with busy(max(0, LOAD - workers)):
        try:
            for number in range(1, runs + 1):
                began = time.monotonic()
                names, count = failures(number, paths or PATHS, workers)
                for name in names:
                    failed[name].append(number)
                print(f"run {number}: {count} tests, {len(names)} failed, {time.monotonic() - began:.0f} s", flush=True)
        except KeyboardInterrupt:
            print("interrupted")
    for name, numbers in sorted(failed.items()):
        print(f"{name}: failed in {len(numbers)} of {runs} runs: {', '.join(map(str, numbers))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
