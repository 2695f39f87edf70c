"""Delivery in executors, with the daemon's own sink, in parts that are delivered once."""

import asyncio
import json
import pickle
import zlib

from cdfd.changes.cutting import Measured, Part
from cdfd.jobs.assignment import Assignment
from cdfd.sinks.base import Counts

_WORKERS = 1
"""Threads that read: Spark gives each task one core."""


def packed(part: Part) -> bytes:
    """Serialize a part."""
    return zlib.compress(pickle.dumps(part), 1)


def deliver(assignment: Assignment, item: bytes) -> bytes:
    """Deliver a part that was `packed`; its rows, for `counts_of`. Runs in an executor.

    Raises:
        CdfdError: as in `Assignment.deliver`.
    """
    number, part = _unpacked(item)
    return json.dumps(asyncio.run(assignment.deliver(number, part, _WORKERS))).encode()


def counts_of(result: bytes) -> Counts:
    """Change rows by type."""
    found: Counts = json.loads(result)
    return found


def measure(assignment: Assignment, item: bytes) -> bytes:
    """Measure a `packed` part; the result is for `measured_of`. Runs in an executor.

    Raises:
        CdfdError: as in `measure`.
    """
    return pickle.dumps(assignment.measured(_unpacked(item)[1], _WORKERS))


def measured_of(result: bytes) -> Measured:
    """The measured content of a slice."""
    found: Measured = pickle.loads(result)
    return found


def _unpacked(item: bytes) -> Part:
    found: Part = pickle.loads(zlib.decompress(item))
    return found
