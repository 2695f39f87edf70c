"""`python -m tests.support.simulation --seed N` shows what happens in a seed; `--seeds 10000` runs many."""

import argparse
import logging
import os
import sys

from tests.support.simulation.run import Outcome, simulate
from tests.support.simulation.seeds import many
from tests.support.simulation.sinks import simulate_sinks
from tests.support.simulation.standby import simulate_standby


def shown(outcome: Outcome) -> str:
    lines = [f"{entry[0]:>9}  {' '.join(str(part) for part in entry[1:])}" for entry in outcome.trace]
    return "\n".join([*lines, "", *outcome.violations, f"seed {outcome.seed}: {len(outcome.violations)} violations"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulation")
    parser.add_argument("--seed", type=int, help="run this one and show what happens")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--standby", action="store_true", help="with two or three processes of the pipeline")
    parser.add_argument("--sinks", action="store_true", help="with two sinks, of which one fails now and then")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="one for each core")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    run = simulate_standby if arguments.standby else simulate_sinks if arguments.sinks else simulate
    if arguments.seed is not None:
        outcome = run(arguments.seed)
        print(shown(outcome))
        return 1 if outcome.violations else 0
    return many(range(arguments.first, arguments.first + arguments.seeds), arguments.processes, run)


if __name__ == "__main__":
    sys.exit(main())
