"""The delivery of a version in parts: what sinks with this ability override."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdfd.errors import UnsupportedError
from cdfd.model.position import Phase, Position
from cdfd.model.version import Version

NO_PARTS = "this sink does not support parts of versions"
"""The error of a sink without the ability."""

Counts = Mapping[str, int]
"""Change rows by type."""


@dataclass(frozen=True, slots=True)
class Job:
    """The delivery of a version in parts. The sink stores it with the table's position, until all parts are delivered.

    Attributes:
        id: unique id of the job.
        version, phase: of the position.
        parts: number of parts.
        bytes: size limit of a part; see `cutting.cut`.
        digest: digest of the parts.
        since: the sink's mark of the start of the job; with Kafka, an offset of the progress topic.
    """

    id: str
    version: int
    phase: Phase
    parts: int
    bytes: int
    digest: str
    since: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """A part that is delivered.

    Attributes:
        counts: its rows by type.
        receipt: tells `Sink.finish_job` about the part; empty if the sink needs nothing.
    """

    counts: Counts
    receipt: bytes = b""


def counts_of(parts: Sequence[Delivered]) -> Counts:
    """The rows of several parts by type."""
    total = Counter[str]()
    for part in parts:
        total.update(part.counts)
    return total


class JobSink:
    """A sink that delivers versions in parts. A sink without that ability overrides nothing."""

    @property
    def job(self) -> Job | None:
        """The job in progress at the sink's position; None if there is none.

        Raises:
            SinkError: this version of cdfd does not support the job.
        """
        return None

    def takes_job(self, position: Position) -> bool:
        """Whether the version at a position can be delivered in parts. `Connector.deliver_part` delivers a part in any process."""
        return False

    async def begin_job(self, version: Version, position: Position, parts: int, size: int, digest: str) -> Job:
        """Begin a job; see `Job` for the arguments.

        A sink that can resume a job stores it, and publishes the start of the version to consumers. Any other sink may return a subclass
        with more that `Connector.deliver_part` has to know.
        """
        raise UnsupportedError(NO_PARTS)

    async def claim_job(self, position: Position, job: Job) -> None:
        """Check that the job is still this process's. `FencedError` if another process has taken over."""
        raise UnsupportedError(NO_PARTS)

    async def finish_job(self, version: Version, position: Position, job: Job, parts: Sequence[Delivered]) -> None:
        """Move to the position after the version, once all parts are delivered."""
        raise UnsupportedError(NO_PARTS)
