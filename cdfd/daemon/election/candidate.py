"""A process of an election: its next step, from the claims that it reads. Pure: it is given each claim, and the time of the reading.

A standby takes the lease if it has no owner, if its owner has released it, or if the same claim stays for `takeover_after`. It measures that
by its own monotonic clock, so clocks of different machines are never compared. A leader renews its claim, until it reads that of a successor.

Of two processes that take the lease at the same time, the one leads whose claim is there when both have written. The other one reads it and
stays a standby. A claim that arrives late, after a successor's, has a smaller term: the successor writes its own again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cdfd.sinks.lease import Claim


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process, and what it knows of the lease.

    Attributes:
        owner: its name in claims.
        takeover_after: seconds without a change of the claim after which it counts as abandoned.
        claim: its own claim, if it leads.
        seen: the claim that it read last.
        since: when `seen` was there for the first time; None before the first reading, and after one that failed.
        highest: the largest term of all claims that it has read or written.
    """

    owner: str
    takeover_after: float
    claim: Claim | None = None
    seen: Claim | None = None
    since: float | None = None
    highest: int = 0

    @property
    def leads(self) -> bool:
        """Whether it has the lease, as far as it knows."""
        return self.claim is not None

    def after(self, read: Claim | None, now: float) -> tuple[Candidate, Claim | None]:
        """The state after a reading, and the claim to write, if any. Read again at once after the first claim of a term is written.

        Args:
            read: the claim in the lease.
            now: seconds of the process's monotonic clock, before the reading began.
        """
        highest = max(self.highest, 0 if read is None else read.term)
        if self.claim is not None:
            if read is not None and read.owner != self.owner and read.term >= self.claim.term:
                return replace(self, claim=None, seen=read, since=now, highest=highest), None
            renewed = self.claim.renewed()
            return replace(self, claim=renewed, seen=read, since=now), renewed
        if read is not None and not read.released and read.owner == self.owner and read.term >= self.highest:
            # Its claim has taken effect, perhaps later than expected.
            return replace(self, claim=read, seen=read, since=now, highest=highest), None
        is_new = self.since is None or read != self.seen
        since = now if is_new else self.since
        assert since is not None
        following = replace(self, seen=read, since=since, highest=highest)
        if read is not None and not read.released and now - since < self.takeover_after:
            return following, None
        return replace(following, highest=highest + 1), Claim(self.owner, highest + 1)

    def expects(self, now: float) -> bool:
        """Whether a standby may lead soon: its leader says that it ends, or has been silent for half of the time."""
        if self.seen is None or self.since is None or self.leads:
            return False
        return self.seen.closing or now - self.since > self.takeover_after / 2

    def after_failure(self) -> Candidate:
        """The state after a reading that failed.

        The claim may have stayed because its owner could not write it, either. So a standby begins its wait again. A leader continues: if it
        can reach nothing, it delivers nothing, and its tables report that.
        """
        return replace(self, since=None)
