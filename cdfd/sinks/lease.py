"""The lease port: a register that says which of several processes of a pipeline delivers.

A lease only decides who tries to deliver. It may be wrong for a moment: two processes may both believe that they have it. Fencing by the sink
is what keeps two of them from delivering.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace

from cdfd.errors import SinkError

MOST_BYTES = 2048
"""Largest claim. Ours have about 150 bytes, and a broker keeps 4096 bytes of metadata with an offset."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of a lease.

    Attributes:
        owner: the process that wrote it. No other process has the same name, also none of the same host and number.
        term: a successor's is larger than its predecessor's.
        beat: the owner raises it while it works. A claim whose beat stays has an owner that is gone.
        released: the owner has ended in good order, and has closed its sinks.
        closing: the owner is about to release the lease.
    """

    owner: str
    term: int
    beat: int = 0
    released: bool = False
    closing: bool = False

    def renewed(self) -> Claim:
        """The next beat of the same owner."""
        return replace(self, beat=self.beat + 1)

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))


class Lease(ABC):
    """The lease of a pipeline. One call at a time; a call that fails or is cancelled may still take effect later.

    Attributes:
        place: where it is, for messages.
        settle: seconds after a write until one that was begun before it was visible has arrived, too; 0 where such a write fails.
    """

    place: str = "the lease"
    settle: float = 0.0

    @abstractmethod
    async def read(self) -> Claim | None:
        """The newest claim; None if the lease never had an owner.

        Raises:
            SinkError: it cannot be read, or is not a claim.
        """

    @abstractmethod
    async def write(self, claim: Claim) -> None:
        """Replace the claim. Where the store can, only if it is still the one that was read last; otherwise the last writer wins.

        Whether the claim holds is known after the next `read`.

        Raises:
            SinkError: the outcome is unknown, or the claim was refused.
        """


def parse_claim(text: str | bytes, place: str) -> Claim:
    """The claim in a lease. Unknown fields are ignored.

    Raises:
        SinkError: it is not a claim. Only an operator knows whether another program uses the same place.
    """
    try:
        if len(text) > MOST_BYTES:
            raise ValueError(f"a claim has at most {MOST_BYTES} bytes")
        fields = json.loads(text)
        names = ("owner", "term", "beat", "released")
        owner, term, beat, released = (fields.get(name) for name in names) if isinstance(fields, dict) else [None] * 4
        closing = isinstance(fields, dict) and fields.get("closing") is True  # earlier versions did not say it
        numbers = all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in (term, beat))
        if not isinstance(owner, str) or not isinstance(released, bool) or not numbers:
            raise ValueError("a field of the claim is missing or has the wrong type")
    except (ValueError, RecursionError) as error:
        hint = "If no other program writes there, stop all processes of the pipeline and delete it"
        raise SinkError(f"{place} has something that is not a claim: {error}", hint=hint) from error
    return Claim(owner, term, beat, released, closing)  # type: ignore[arg-type]  # checked together
