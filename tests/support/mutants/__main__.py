"""Mutation tests: `make mutants`, or `python -m tests.support.mutants --help`.

The pure rooms are changed, one small thing at a time, and the tests that run the changed lines must fail. `survivors.toml` lists the changes
that no test can or need notice, each with the reason. Any other survivor is a gap of the tests.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.cache import ROOT
from tests.support.kafka.installation import missing
from tests.support.kafka.shared import shared_broker
from tests.support.mutants import forks, lines
from tests.support.mutants.lines import Lines
from tests.support.mutants.mutations import Mutant, mutants
from tests.support.mutants.trial import Verdict, judge

EXPLAINED = Path(__file__).with_name("survivors.toml")
CACHE = ROOT / ".cache" / "mutants"

_PLAN = (
    "model/*",
    "plan/**/*",
    "scan/splits",
    "scan/image_order",
    "scan/shaping",
    "scan/updates/*",
    "deliver/splits",
)
ROOMS = {
    "delta": ("cdfd/delta/**/*.py",),
    "plan": tuple(f"cdfd/{name}.py" for name in _PLAN),
    "trevni": ("cdfd/trevni/*.py", "cdfd/trevni/values/*.py"),
    "ledger": ("cdfd/sinks/ledger/*.py",),
    "sinks": tuple(
        f"cdfd/sinks/{name}.py" for name in ("kafka/transactions/*", "kafka/records/*", "files/*", "delta/**/*")
    ),
}
TESTS = (
    *(
        f"tests/{tier}/{room}/test_*.py"
        for tier in ("quick", "standard")
        for room in ("unit", "contract", "golden", "trevni")
    ),
    "tests/standard/kafka/test_parts.py",
    "tests/standard/kafka/test_prepared_sink.py",
    "tests/standard/kafka/test_sink.py",
)
ELSEWHERE = re.compile(
    r"test_(agreement|certificates|clock|config|discovery|fsspec|headroom|heartbeats|hints|hostile|http|local_storage|logs|metrics|mounted|msk"
    r"|mutants|mutated|notifications|page_sizes|registry|reloading|report|s3|signals|spark|status|storage|summary|supervisor|threads"
    r"|tokens|topic|watch|words)"
)
"""Modules of tests that run the rooms on their way to others, and take their time."""

_SECOND = "CDFD_TEST_SECOND"

_FIRST = 4.0
"""Seconds of tests that a mutant meets first, those that run little else."""
_ALL = 20.0
"""Seconds of the other tests, which a mutant meets that is left."""


class Run:
    """Mutants and their verdicts.

    Args:
        tests: by the value of `CDFD_TEST_SECOND` with which they run. A mutant meets all of them.
        explained: see `explanations`.
    """

    def __init__(self, tests: Mapping[str, Lines], explained: frozenset[tuple[str, str, str, str]]) -> None:
        self.outcomes: dict[str, Counter[str]] = {}
        self.survivors: list[Mutant] = []
        self._tests = tests
        self._explained = explained
        self._reliable: set[tuple[str, str]] = set()

    def try_mutant(self, room: str, mutant: Mutant) -> None:
        outcome = "explained" if is_explained(mutant, self._explained) else self._outcome(mutant)
        self.outcomes.setdefault(room, Counter())[outcome] += 1
        if outcome in ("survived", "untested"):
            self.survivors.append(mutant)
            print(f"{outcome}: {described(mutant)}", flush=True)

    def _outcome(self, mutant: Mutant) -> str:
        outcome = "untested"
        for second, tests in self._tests.items():
            with second_implementations(second):
                result = self._outcome_of(mutant, tests, second)
            outcome = outcome if result == "untested" else result
            if outcome not in ("untested", "survived"):
                break
        return outcome

    def _outcome_of(self, mutant: Mutant, known: Lines, second: str) -> str:
        """The verdict of a few tests, then of the others."""
        tests = known.tests(mutant.file, None if mutant.imported else range(mutant.lines[0], mutant.lines[1] + 1))
        # Any other test is one that ran with the first implementations already.
        tests = [test for test in tests if second in test.partition("::")[2]]
        if not tests:
            return "untested"
        first = _within(tests, known, _FIRST)
        outcome = self._trusted(mutant, first, known, second).outcome
        others = _within([test for test in tests if test not in first], known, _ALL)
        return self._trusted(mutant, others, known, second).outcome if others and outcome == "survived" else outcome

    def _trusted(self, mutant: Mutant, tests: Sequence[str], known: Lines, second: str) -> Verdict:
        """A verdict of tests that pass without the mutant. One test of each module is tried, because a few at a time run here."""
        while True:
            limit = 30 + 5 * sum(map(known.seconds, tests))
            verdict = judge(ROOT, mutant, tests, limit)
            module = verdict.test.partition("::")[0]
            if not module or (module, second) in self._reliable:
                return verdict
            control = judge(ROOT, None, tests[: tests.index(verdict.test) + 1], limit)
            if control.outcome == "survived":
                self._reliable.add((module, second))
                return verdict
            print(f"left out, because it fails without a mutant ({control.outcome}): {control.test}", flush=True)
            failing = control.test or verdict.test
            known.forget(failing)
            tests = [test for test in tests if test != failing]

    def table(self) -> str:
        rows = ["| room | mutants | killed | by the time limit | by their memory | explained | survived | untested |"]
        rows.append("|---|---|---|---|---|---|---|---|")
        for room, counts in self.outcomes.items():
            numbers = [sum(counts.values())]
            numbers += [counts[name] for name in ("killed", "timeout", "died", "explained", "survived", "untested")]
            rows.append(f"| {room} | {' | '.join(map(str, numbers))} |")
        return "\n".join(rows)


def _within(tests: Sequence[str], known: Lines, seconds: float) -> Sequence[str]:
    """The first tests, as long as they take together; one at least. A test that takes too long does not hide those after it."""
    chosen: list[str] = []
    for test in tests:
        if not chosen or sum(map(known.seconds, (*chosen, test))) <= seconds:
            chosen.append(test)
    return chosen


@contextmanager
def second_implementations(names: str) -> Iterator[None]:
    """Child processes run tests with other implementations of ports; see `tests.support.axes`."""
    before = os.environ.pop(_SECOND, None)
    os.environ.update({_SECOND: names} if names else {})
    try:
        yield
    finally:
        os.environ.pop(_SECOND, None)
        os.environ.update({} if before is None else {_SECOND: before})


@contextmanager
def one_broker() -> Iterator[None]:
    """All child processes use one broker. Each test has topics of its own."""
    if (reason := missing()) is not None:
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory(prefix="cdfd-mutants-") as place:
        os.environ["CDFD_TEST_BROKER"] = place
        with shared_broker(Path(place)):
            yield


def described(mutant: Mutant) -> str:
    return f"{mutant.file}:{mutant.lines[0]} {mutant.scope}\n    - {mutant.was}\n    + {mutant.now}"


def sample(candidates: Iterable[Mutant], count: int, seed: str) -> list[Mutant]:
    """`count` of them, the same for a seed as long as they are the same, wherever lines move."""
    return sorted(candidates, key=lambda mutant: hashlib.sha256(repr((seed, mutant.key)).encode()).digest())[:count]


def explanations() -> frozenset[tuple[str, str, str, str]]:
    entries = tomllib.loads(EXPLAINED.read_text(encoding="utf-8")).get("survivor", []) if EXPLAINED.exists() else []
    assert all(entry["why"] for entry in entries)
    return frozenset((entry["file"], entry["scope"], entry["was"], entry.get("now", "")) for entry in entries)


def is_explained(mutant: Mutant, explained: frozenset[tuple[str, str, str, str]]) -> bool:
    """Whether there is an explanation of the change, or of all changes of its statement."""
    return mutant.key in explained or (*mutant.key[:3], "") in explained


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutants", description=__doc__)
    parser.add_argument(
        "paths", nargs="*", help="only of these files, all of their mutants unless --count says how many"
    )
    parser.add_argument("--only", choices=ROOMS, help="only of this room")
    parser.add_argument("--count", type=int, help="how many of each room (100), chosen by the seed")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no mutant after that time")
    parser.add_argument("--scope", help="only in this function or class")
    parser.add_argument("--list", action="store_true", help="show them, and try none")
    arguments = parser.parse_args()
    rooms = {
        room: sorted(path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern))
        for room, patterns in ROOMS.items()
        if arguments.only in (None, room)
    }
    count = arguments.count or (sys.maxsize if arguments.paths else 100)
    chosen = []
    for room, files in rooms.items():
        wanted = [file for file in files if not arguments.paths or file in arguments.paths]
        every = [
            mutant
            for file in wanted
            for mutant in mutants(ROOT, file)
            if mutant.scope.startswith(arguments.scope or "")
        ]
        chosen += [(room, mutant) for mutant in sample(every, count, arguments.seed)]
    if arguments.list:
        print("\n".join(described(mutant) for _, mutant in chosen))
        return 0
    tests = [path for pattern in TESTS for path in ROOT.glob(pattern) if not ELSEWHERE.match(path.name)]
    modules = sorted(path.relative_to(ROOT).as_posix() for path in tests)
    forks.prepare(CACHE / "compiled")
    measured = frozenset(
        path.relative_to(ROOT).as_posix() for room in ROOMS.values() for p in room for path in ROOT.glob(p)
    )
    # The counterparts of the kernels are in the rooms. The kernels themselves are not Python, so no mutant is in them.
    numpy = [module for module in modules if "kernels" in (ROOT / module).read_text(encoding="utf-8")]
    with one_broker():
        recordings = {"": lines.record(ROOT, CACHE / "lines", modules, measured)}
        with second_implementations("numpy"):
            recordings["numpy"] = lines.record(ROOT, CACHE / "lines-numpy", numpy, measured)
        run = Run(recordings, explanations())
        until = time.monotonic() + arguments.minutes * 60
        for room, mutant in chosen:
            if time.monotonic() < until:
                run.try_mutant(room, mutant)
    print(run.table())
    return 1 if run.survivors else 0


if __name__ == "__main__":
    sys.exit(main())
