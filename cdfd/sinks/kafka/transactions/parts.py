"""A version that is delivered by many producers: each delivers a part of it, in a transaction of its own, once.

A part is a role of the table, `part.3`: it has a transactional id and a progress record of its own. That record names the job which the part
is of, and is written in the transaction that carries the part's rows. So whoever is to deliver a part can tell whether somebody has, and one
that is delivered again (a task's second attempt, a speculative one, a job that goes on after its driver died) is not sent again.

Two attempts at one part: opening a sink fences whoever has it open. The one that is fenced does not fence back, or both would go on like that
for ever. It waits to see the part delivered by the other one, and only where nothing comes of that, it delivers the part itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from cdfd.changes.position import Position
from cdfd.errors import FencedError, SinkError
from cdfd.sinks.base import Counts, Write
from cdfd.sinks.kafka.destination import Destination
from cdfd.sinks.kafka.progress import positions
from cdfd.sinks.kafka.progress.records import Progress
from cdfd.sinks.kafka.transactions.sink import MARGIN, KafkaSink

log = logging.getLogger("cdfd.kafka")

_TAKE_OVERS = 3
_LOOK_SECONDS = 1.0


def role(number: int, within: str | None = None) -> str:
    """The role in which a part is delivered.

    Args:
        number: of the part.
        within: the role of what it is a part of.
    """
    return f"part.{number}" if within is None else f"{within}.part.{number}"


def delivered(progress: Progress | None, job: str) -> Counts | None:
    """The rows of a part by its progress record; None where it is not delivered as part of that job."""
    return progress.counts if progress is not None and progress.job.get("id") == job else None


async def deliver(
    place: Destination,
    opened: Callable[[], AbstractAsyncContextManager[KafkaSink]],
    job: str,
    position: Position,
    write: Write,
) -> Counts:
    """Deliver a part, if nobody has.

    Args:
        place: where to, in the role of the part.
        opened: opens a sink there.
        job: id of what the part is of.
        position: of the version.
        write: writes the part's rows.

    Returns:
        The rows of the part, whoever delivered them.

    Raises:
        SinkError: it could not be delivered, or not in the time that a transaction may take.
    """
    take_overs = 0
    while True:
        began = time.monotonic()
        try:
            async with opened() as sink:
                return await _once(sink, job, position, write)
        except FencedError as error:
            took = time.monotonic() - began
            if took >= place.transaction_timeout:
                raise _too_long(place, position, took) from error
            found = await _by_another(place, job)
            if found is not None:
                return found
            take_overs += 1
            if take_overs == _TAKE_OVERS:
                raise SinkError(
                    f"a part ({place.delivery_name}) is taken over again and again, and nobody delivers it",
                    version=position.version,
                    hint="Do two pipelines of one name deliver to this cluster?",
                    retriable=True,
                ) from error
            log.warning("%s: another attempt took over and did not deliver it; retrying", place.delivery_name)


async def _once(sink: KafkaSink, job: str, position: Position, write: Write) -> Counts:
    found = delivered(sink.progress, job)
    if found is not None:
        return found
    sink.move_to(position)
    async with sink.delivery(position) as delivery:
        counts = await write(delivery)
        await delivery.commit(position.after_version(), {"id": job}, counts)
    return counts


async def _by_another(place: Destination, job: str) -> Counts | None:
    """Wait for another attempt to deliver the part; None where it has not after all the time that it may take."""
    deadline = time.monotonic() + place.transaction_timeout + MARGIN
    while time.monotonic() < deadline:
        found = delivered(await positions.read_progress(place), job)
        if found is not None:
            return found
        await asyncio.sleep(_LOOK_SECONDS)
    return None


def _too_long(place: Destination, position: Position, took: float) -> SinkError:
    return SinkError(
        f"a part ({place.delivery_name}) was not delivered within {took:.0f} s, and Kafka gave its transaction up",
        version=position.version,
        hint=f"Raise sink.transaction_timeout, which is {place.transaction_timeout:g} s",
    )
