"""How many faults of each kind, and a writer that commits meanwhile.

`make test` has a few of each kind. `CDFD_CHAOS` is the number of faults of all kinds together in one run of `make chaos`.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from tests.support.kafka.history import Writing
from tests.support.kafka.pipeline import Pipeline

FAULTS = int(os.environ.get("CDFD_CHAOS", "0"))
SEED = int(os.environ.get("CDFD_CHAOS_SEED", "1"))
CLIENTS = ["kafka-python", "librdkafka"] if FAULTS else ["kafka-python"]


def share(percent: float, least: int) -> int:
    """Faults of one kind: a percentage of those of a long run, `least` in a short one."""
    return max(round(FAULTS * percent / 100), least) if FAULTS else least


@contextmanager
def while_writing(kind: str, faults: int, pipeline: Pipeline, writer: Writing | None = None) -> Iterator[Random]:
    """Let things fail while a thread commits. Then a last daemon delivers the rest, and every change must be there once.

    With `-s`, one line says how it went.
    """
    began = time.monotonic()
    with writer or writing(pipeline) as writer:
        yield Random(SEED)
    rows = pipeline.finish()
    everything = len(pipeline.read(committed=False))
    print(
        f"\n{kind}: {faults} in {time.monotonic() - began:.0f} s; {writer.table.version + 1} versions, {rows} rows, each delivered once; "
        f"{everything - rows} more were sent and aborted"
    )


def writing(pipeline: Pipeline) -> Writing:
    """A long run has many faults, not a large table."""
    return pipeline.writing(SEED, pause=0.1, burst=200) if FAULTS else pipeline.writing(SEED, burst=1000)
