"""The fuzzer: `make fuzz`, or `python -m tests.support.fuzz.run --help`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.fuzz import server
    from tests.support.fuzz.cases import Target

REGRESSIONS = Path(__file__).parent / "regressions"
# Before Arrow is there: what is reserved and not used must not count as memory.
SETTINGS = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "2",
    # A module that a case imports first must not count as a file that the case wrote.
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass
class Campaign:
    """The outcomes of a run of the fuzzer, by target."""

    seed: str
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)
    findings: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    again: Counter[tuple[str, str]] = field(default_factory=Counter)
    mutants: int = 0
    begun: float = field(default_factory=time.monotonic)

    def table(self) -> str:
        """Targets, their mutants and how those ended, as Markdown."""
        lines = [
            "| target | mutants | processor seconds | rows, values | refused | nothing else | findings |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, counts in sorted(self.outcomes.items()):
            refused = sum(n for word, n in counts.items() if word.startswith(("refused", "exit 1", "exit 2")))
            findings = sum(n for word, n in counts.items() if word.startswith("!"))
            read = sum(n for word, n in counts.items() if word.startswith(("rows", "read", "value", "exit 0")))
            others = sum(counts.values()) - refused - findings - read
            classes = sum(1 for target, _ in self.findings if target == name)
            told = (f"{n:,}" for n in (sum(counts.values()), round(self.seconds[name]), read, refused, others))
            lines.append(f"| {name} | {' | '.join(told)} | {findings:,} in {classes} classes |")
        return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--target", action="append", help="only these; repeatable")
    parser.add_argument("--mutants", type=int, default=None, help="how many in all")
    parser.add_argument("--seconds", type=float, default=None, help="how long")
    parser.add_argument("--number", type=int, default=None, help="only the mutant of that number of the target, here")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant of each target")
    parser.add_argument("--replay", type=Path, nargs="*", help="only the cases of these files")
    parser.add_argument("--keep", action="store_true", help="minimise findings into tests/regressions")
    options = parser.parse_args()
    if any(os.environ.get(name) != text for name, text in SETTINGS.items()):
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.support.fuzz.run", *sys.argv[1:]], {**os.environ, **SETTINGS}
        )
    from tests.support.fuzz import server
    from tests.support.fuzz.targets import TARGETS, by_name, load, prepared

    if options.replay is not None:
        cases = [(path, load(path)) for path in options.replay]
        if any(case.target == "hints" for _, case in cases):  # the others need nothing but the case
            prepared()
        return max(
            [told(server.alone(by_name(case.target), case), f"{path.stem}: ") for path, case in cases], default=0
        )
    prepared()
    chosen = [target for target in TARGETS if not options.target or target.name in options.target]
    if options.number is not None:
        return told(server.alone(chosen[0], server.make(chosen[0], options.seed, options.number)))
    campaign = run(options, chosen)
    print(campaign.table())
    took = time.monotonic() - campaign.begun
    print(
        f"\n{campaign.mutants:,} mutants in {took:.0f} seconds, seed {options.seed}: {len(campaign.findings)} classes of findings"
    )
    for (name, signature), (number, detail) in sorted(campaign.findings.items()):
        print(f"\n--- {name} {number}: {signature} ({campaign.again[name, signature]} times)\n{detail}")
    if options.keep:
        keep(campaign)
    return 1 if campaign.findings else 0


def told(outcome: server.Outcome, name: str = "") -> int:
    """Say how a case ended; the exit code."""
    print(f"{name}{outcome.finding or outcome.word}", outcome.detail, sep="\n")
    return 0 if outcome.finding is None else 1


def run(options: argparse.Namespace, chosen: list[Target]) -> Campaign:
    """Batches of all targets, by their shares, until there is enough."""
    from tests.support.fuzz import server

    campaign = Campaign(options.seed)
    begun = time.monotonic()
    numbers = count()
    waiting = _batches(options, chosen)
    retry: list[tuple[Target, range]] = []

    def following(ended: server.Child | None = None) -> server.Child | None:
        if ended is not None:
            campaign.seconds[ended.target.name] += ended.used
        if ended is not None and ended.next < ended.numbers.stop:
            retry.append((ended.target, range(ended.next, ended.numbers.stop)))
        if options.seconds is not None and time.monotonic() - begun > options.seconds:
            return None
        batch = retry.pop() if retry else next(waiting, None)
        if batch is None:
            return None
        target, numbers_of = batch
        serial = next(numbers)
        core = None if serial % 4 == 3 else sorted(os.sched_getaffinity(0))[serial % len(os.sched_getaffinity(0))]
        return server.fork(target, lambda number: server.make(target, options.seed, number), numbers_of, core)

    begins = [child for _ in range(options.workers) if (child := following()) is not None]
    for child, outcome in server.outcomes(begins, following):
        name = child.target.name
        counts = campaign.outcomes.setdefault(name, Counter())
        campaign.mutants += 1
        if not campaign.mutants % 20_000:
            print(f"{campaign.mutants:,} mutants, {time.monotonic() - begun:.0f} seconds", flush=True)
        if outcome.finding is None:
            counts[outcome.word] += 1
            continue
        counts["! " + outcome.finding] += 1
        key = (name, outcome.finding)
        campaign.again[key] += 1
        if key not in campaign.findings:
            campaign.findings[key] = outcome.number, outcome.detail
            print(f"finding: {name} {outcome.number}: {outcome.finding} {outcome.detail[-300:]!r}", flush=True)
    return campaign


def _batches(options: argparse.Namespace, chosen: list[Target]) -> Iterator[tuple[Target, range]]:
    """(target, numbers) in rounds of some thousand mutants that the targets have their shares of."""
    total = sum(target.share for target in chosen)
    left = options.mutants
    size = (
        20_000
        if left is not None and left > 200_000
        else 5000
        if left is None or left > 50_000
        else max(len(chosen), left)
    )
    size = min(size, 500) if options.seconds is not None and options.seconds <= 120 else size
    begins = dict.fromkeys((target.name for target in chosen), options.first)
    while left is None or left > 0:
        for target in chosen:
            share = max(1, round(size * target.share / total))
            share = share if left is None else min(share, left)
            if not share:
                return
            yield target, range(begins[target.name], begins[target.name] + share)
            begins[target.name] += share
            left = None if left is None else left - share


def keep(campaign: Campaign) -> None:
    """Minimise one case of each class of findings into a file."""
    from tests.support.fuzz import server
    from tests.support.fuzz.cases import to_json
    from tests.support.fuzz.minimise import minimised
    from tests.support.fuzz.targets import by_name

    REGRESSIONS.mkdir(exist_ok=True)
    for (name, signature), (number, _) in sorted(campaign.findings.items()):
        target = by_name(name)
        case = server.make(target, campaign.seed, number)
        result = server.alone(target, case)
        if result.finding is None:
            print(f"not again: {name} {number}: {signature}")
            continue
        small = minimised(target, case, result.finding)
        slug = "".join(c if c.isalnum() else "-" for c in result.finding.lower()).strip("-")[:80]
        path = REGRESSIONS / f"{name}-{slug}.json"
        path.write_text(to_json({"finding": result.finding, **small.to_json()}))
        print(f"kept: {path.name}")


if __name__ == "__main__":
    sys.exit(main())
