"""Finds tests that fail now and then: `python -m tests.support.flakes RUNS [PATHS...]` runs a selection again and again on a busy machine.

Several runs go on at once, and each is the load of the others: no time of a processor is spent on anything but tests.
Each run that fails has its output in `.cache/flakes/`. Ctrl-C ends them, and lists what failed until then.
"""

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from xml.etree import ElementTree

from tests.support.cache import ROOT

PATHS = ("tests/quick", "tests/standard")
"""Those of `make test`."""
FOLDER = ROOT / ".cache" / "flakes"
LOAD = 8
"""Workers that run tests at a time, at most."""
RUN_BYTES = 7 << 30
"""Memory of a run with its servers. One of the tests takes 5 GB."""
RUN_SECONDS = 7200


def failures(number: int, paths: Sequence[str], workers: int) -> tuple[list[str], int]:
    """The tests that failed in one run, and how many ran."""
    report, log = FOLDER / f"{number}.xml", FOLDER / f"{number}.log"
    report.unlink(missing_ok=True)
    # Some releases of Python 3.11 raise SystemError while pytest parses the source for a longer traceback.
    options = [
        "-q",
        "--tb=native",
        "-n",
        str(workers),
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        "-o",
        "junit_family=xunit1",
    ]
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
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    began = time.monotonic()
    with ThreadPoolExecutor(max(1, min(LOAD // workers, memory // RUN_BYTES))) as pool:
        running = {pool.submit(failures, number, paths or PATHS, workers): number for number in range(1, runs + 1)}
        try:
            for run in as_completed(running):
                names, count = run.result()
                for name in names:
                    failed[name].append(running[run])
                print(
                    f"run {running[run]}: {count} tests, {len(names)} failed, {time.monotonic() - began:.0f} s after the start",
                    flush=True,
                )
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            print("interrupted")
    for name, numbers in sorted(failed.items()):
        print(f"{name}: failed in {len(numbers)} of {runs} runs: {', '.join(map(str, sorted(numbers)))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
