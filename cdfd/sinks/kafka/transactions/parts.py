"""Delivery of a version by many producers: each part is delivered exactly once, in its own transaction.

A part is a role of the table, such as `part.3`, with its own transactional id and progress record. The record names the job of the part, and
is written in the transaction with the part's rows. So another attempt finds the record and does not send the part again: a retried task, a
speculative one, or a job that resumes after its driver crashed.

If two attempts run at the same time, the second one fences the first. A fenced attempt must not fence back, or both would do so forever. It
waits until the other attempt has delivered the part, and delivers the part itself only after a timeout.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from cdfd.encode.side import EVENTS
from cdfd.errors import FencedError, SinkError
from cdfd.model.position import Position
from cdfd.sinks.base import Write, aborting
from cdfd.sinks.jobs import Counts
from cdfd.sinks.kafka.destination import Destination
from cdfd.sinks.kafka.progress import positions
from cdfd.sinks.kafka.progress.positions import MARGIN
from cdfd.sinks.kafka.progress.records import Progress
from cdfd.sinks.kafka.transactions.sink import KafkaSink

log = logging.getLogger("cdfd.kafka")

_MAX_TAKEOVERS = 3
_POLL_SECONDS = 1.0


def role(number: int, within: str | None = None) -> str:
    """The role of a part.

    Args:
        number: of the part.
        within: the role of its job; None for the daemon's own delivery.
    """
    return f"part.{number}" if within is None else f"{within}.part.{number}"


def counts_of(progress: Progress | None, job: str) -> Counts | None:
    """The rows of a part, from its progress record; None if the job has not delivered it."""
    return progress.counts if progress is not None and progress.job.get("id") == job else None


async def deliver(
    place: Destination,
    open_sink: Callable[[], AbstractAsyncContextManager[KafkaSink]],
    job: str,
    position: Position,
    write: Write,
) -> Counts:
    """Deliver a part, unless it is already delivered.

    Args:
        place: the destination, in the role of the part.
        open_sink: opens a sink at the destination.
        job: id of the job.
        position: of the version.
        write: writes the part's rows.

    Returns:
        The rows of the part, even if another attempt delivered them. With `place.event_key`, also `EVENTS`.

    Raises:
        SinkError: the part cannot be delivered, or takes longer than a transaction may take.
    """
    takeovers = 0
    while True:
        began = time.monotonic()
        try:
            async with open_sink() as sink:
                counts = counts_of(sink.progress, job)
                if counts is not None:
                    return counts
                sink.move_to(position)
                async with aborting(await sink.begin(position)) as delivery:
                    counts = await write(delivery)
                    if delivery.events is not None:
                        counts = {**counts, EVENTS: delivery.events}
                    await delivery.commit(position.after_version(), {"id": job}, counts)
                return counts
        except FencedError as error:
            took = time.monotonic() - began
            if took >= place.transaction_timeout:
                raise SinkError(
                    f"a part ({place.delivery_name}) was not delivered within {took:.0f} s, and Kafka aborted its transaction",
                    version=position.version,
                    hint=f"Raise sink.transaction_timeout, which is {place.transaction_timeout:g} s",
                ) from error
            counts = await _wait_for_other_attempt(place, job)
            if counts is not None:
                return counts
            takeovers += 1
            if takeovers == _MAX_TAKEOVERS:
                raise SinkError(
                    f"{_MAX_TAKEOVERS} other attempts took over a part ({place.delivery_name}) and did not deliver it",
                    version=position.version,
                    hint="Check for a second pipeline of this name on this cluster",
                    retriable=True,
                ) from error
            log.warning("%s: another attempt took over and did not deliver it; retrying", place.delivery_name)


async def _wait_for_other_attempt(place: Destination, job: str) -> Counts | None:
    """Wait until another attempt has delivered the part; None after the longest time that it may take."""
    deadline = time.monotonic() + place.transaction_timeout + MARGIN
    while time.monotonic() < deadline:
        counts = counts_of(await positions.read_progress(place), job)
        if counts is not None:
            return counts
        await asyncio.sleep(_POLL_SECONDS)
    return None
