"""Delivery in executors, with the daemon's own sink, in parts that are delivered once."""

import asyncio
import base64
import json
import pickle
import zlib

from cdfd.deliver import splits
from cdfd.deliver.assignment import Assignment
from cdfd.scan.splits import Measured, Part
from cdfd.sinks.jobs import Delivered

_WORKERS = 1
"""Threads that read: Spark gives each task one core."""


def pack(part: Part) -> bytes:
    """Serialize a part."""
    return zlib.compress(pickle.dumps(part), 1)


def deliver(assignment: Assignment, item: bytes) -> bytes:
    """Deliver a part that was `pack`; the result is for `delivered_of`. Runs in an executor.

    Raises:
        CdfdError: as in `Assignment.deliver`.
    """
    number, part = _unpack(item)
    delivered = asyncio.run(assignment.deliver(number, part, _WORKERS))
    return json.dumps([[each.counts, base64.b64encode(each.receipt).decode()] for each in delivered]).encode()


def delivered_of(result: bytes) -> list[Delivered]:
    """The deliveries of the part."""
    return [Delivered(counts, base64.b64decode(receipt)) for counts, receipt in json.loads(result)]


def measure(assignment: Assignment, item: bytes) -> bytes:
    """Measure a `pack` part; the result is for `measured_of`. Runs in an executor.

    Raises:
        CdfdError: as in `measure`.
    """
    return pickle.dumps(splits.measure(_unpack(item)[1], assignment.execution(_WORKERS)))


def measured_of(result: bytes) -> Measured:
    """The measured content of a split."""
    contents: Measured = pickle.loads(result)
    return contents


def _unpack(item: bytes) -> Part:
    part: Part = pickle.loads(zlib.decompress(item))
    return part
