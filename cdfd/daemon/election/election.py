"""The election of a process: it waits as a standby, delivers as a leader, and hands over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from cdfd.daemon.election.candidate import Candidate
from cdfd.errors import CdfdError, FencedError
from cdfd.log.watch import Backoff
from cdfd.runtime.clock import Clock
from cdfd.sinks.lease import Claim, Lease

logger = logging.getLogger("cdfd.standby")

RENEWALS = 5
"""Renewals of the lease within `takeover_after`."""
RELEASE_SECONDS = 1.0
"""Longest time to release the lease. Without that, a standby waits for `takeover_after`."""
CLOSING_POLL_SECONDS = 0.01
"""Seconds between two readings of a standby while the leader says that it ends: that takes a fraction of a second."""
GRACE_SECONDS = 10.0
"""How long the lease may fail without a warning. A broker that restarts takes about as long."""
_REOPEN_SECONDS, _MAX_REOPEN_SECONDS = 0.2, 5.0

Lead = Callable[[asyncio.Event], Awaitable[None]]
"""Delivers until the event is set. Returns once all sinks are closed."""


@dataclass(eq=False)
class Election:
    """Takes part in the election of a pipeline.

    Attributes:
        poll: seconds between two readings of a standby.
        expected: set while this process stands by and may lead soon.
    """

    lease: Lease
    clock: Clock
    poll: float
    candidate: Candidate
    expected: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _failing_since: float | None = field(default=None, init=False)
    _warned: bool = field(default=False, init=False)
    _used: bool = field(default=False, init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def run(self, lead: Lead, stop: asyncio.Event) -> None:
        """Take part until `stop` is set, or until this process has led. The lease is released at the end, after the sinks are closed.

        Args:
            lead: delivers; called once this process leads, and again if it was fenced and still leads.
            stop: set it to stop.

        Raises:
            CdfdError: the lease could not be used from the beginning, and only an operator can change that; or the error of `lead`.
        """
        while not stop.is_set():
            await self._step()
            if self.candidate.leads:
                return await self._lead(lead, stop)
            closing = self.candidate.seen is not None and self.candidate.seen.closing
            await self.clock.wait(stop, min(self.poll, CLOSING_POLL_SECONDS) if closing else self.poll)
        return None

    async def _lead(self, lead: Lead, stop: asyncio.Event) -> None:
        """Deliver until `stop` is set, or until another process leads."""
        over, closing, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        renewing = asyncio.create_task(self._renew(over, closing, closed), name="lease")
        delivering = asyncio.create_task(self._deliver(lead, over), name="leader")
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((stopping, renewing, delivering), return_when=asyncio.FIRST_COMPLETED)
            over.set()
            if renewing.done():
                delivering.cancel()  # a sink that it still opened would fence the successor
            elif self.candidate.claim is not None:
                # Standbys look more often from now on.
                self.candidate = replace(self.candidate, claim=replace(self.candidate.claim, closing=True))
                closing.set()
            await asyncio.wait((delivering,))
        finally:
            over.set()
            closing.set()
            closed.set()
            stopping.cancel()
            delivering.cancel()
            await asyncio.wait((stopping, delivering))
            await asyncio.wait((renewing,), timeout=RELEASE_SECONDS)
            renewing.cancel()
            await asyncio.wait((renewing,))
            await self._release()
        for task in (delivering, renewing):
            if not task.cancelled():
                task.result()

    async def _renew(self, over: asyncio.Event, closing: asyncio.Event, closed: asyncio.Event) -> None:
        """Renew the lease until the sinks are closed, and at once after `closing`. Sets `over` once another process leads."""
        seconds = self.candidate.takeover_after / RENEWALS
        while True:
            await self.clock.wait(closed if closing.is_set() else closing, seconds)
            if closed.is_set():
                return
            await self._step()
            if not self.candidate.leads:
                over.set()
                return

    async def _deliver(self, lead: Lead, over: asyncio.Event) -> None:
        """Deliver until `over` is set.

        A process that is fenced looks at the lease. If the lease is still its own, it opens its sinks again: a process that has lost the
        lease has opened them last, or still holds the lock of a folder.
        """
        backoff = Backoff(_REOPEN_SECONDS, _MAX_REOPEN_SECONDS)
        while not over.is_set():
            began = self.clock.monotonic()
            try:
                return await lead(over)
            except FencedError as error:
                await self._step()
                if self.candidate.leads:
                    logger.info("another process holds a sink, but not the lease; opening the sinks again: %s", error)
                else:
                    over.set()
            if self.clock.monotonic() - began > _MAX_REOPEN_SECONDS:
                backoff = backoff.reset()
            await self.clock.wait(over, backoff.delay)
            backoff = backoff.longer()
        return None

    async def _step(self) -> None:
        """Read the lease, and write it if it is this process's turn. A failure may pass.

        Raises:
            CdfdError: the lease could not be used from the beginning, and only an operator can change that.
        """
        async with self._turn:
            before = self.candidate
            try:
                now = self.clock.monotonic()
                self.candidate, claim = self.candidate.after(await self.lease.read(), now)
                if claim is not None:
                    await self.lease.write(claim)
                    if not self.candidate.leads:
                        await self.clock.sleep(self.lease.settle)
                        now = self.clock.monotonic()
                        # Another standby may have taken it at the same time. The claim that is there now counts.
                        self.candidate, _ = self.candidate.after(await self.lease.read(), now)
            except CdfdError as error:
                self.candidate = self.candidate.after_failure()
                if not error.retriable and not self._used:
                    raise
                # Warn once of a failure that lasts.
                now = self.clock.monotonic()
                self._failing_since = now if self._failing_since is None else self._failing_since
                if not self._warned and now - self._failing_since >= GRACE_SECONDS:
                    self._warned = True
                    extra = {"lease": self.lease.place}
                    logger.warning("cannot use the lease, and continue to try: %s", error, extra=extra)
            else:
                if self._warned:
                    logger.info("the lease can be used again", extra={"lease": self.lease.place})
                self._failing_since, self._warned, self._used = None, False, True
            if self.candidate.expects(self.clock.monotonic()):
                self.expected.set()
            else:
                self.expected.clear()
            self._announce(before)

    def _announce(self, before: Candidate) -> None:
        after = self.candidate
        if after.claim is not None and not before.leads:
            previous = None if before.seen is None else before.seen.owner
            logger.info(
                "leading the pipeline", extra={"owner": after.owner, "term": after.claim.term, "previous": previous}
            )
        elif before.leads and not after.leads:
            logger.info("another process leads the pipeline; standing by", extra=_leader(after.seen))
        elif not after.leads and before.seen is None and after.seen is not None:
            logger.info("standing by", extra=_leader(after.seen))

    async def _release(self) -> None:
        """Let a standby take over at once."""
        claim = self.candidate.claim
        if claim is None:
            return
        with suppress(CdfdError, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                read = await self.lease.read()
                if read is not None and read.owner == claim.owner:
                    await self.lease.write(Claim(claim.owner, claim.term, read.beat + 1, released=True))
                    logger.info("released the lease", extra={"owner": claim.owner, "term": claim.term})
        self.candidate = Candidate(claim.owner, self.candidate.takeover_after, highest=self.candidate.highest)


def _leader(claim: Claim | None) -> dict[str, object]:
    return {} if claim is None else {"leader": claim.owner, "term": claim.term}
