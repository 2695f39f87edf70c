"""The lease of a pipeline in a store, for sinks that write there: numbered objects, of which the newest one counts.

    _cdfd_standby/<pipeline>/00000000000000000042.json

A claim is a new object with the next number, which is put if absent: of several processes, one gets the number. A process follows the claims
by reading the object after the last one that it knows. It deletes the objects that are older than the last few.

A process that was away for longer may find a number free because later ones came and older ones were deleted. So after a claim that follows a
pause, and after the first claim of a term, it lists the objects: if a newer one is there, its own does not count.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress

from cdfd.errors import ExistsError, NotFoundError, SinkError, StorageError
from cdfd.sinks.lease import Claim, Lease, parse_claim
from cdfd.storage.base import Storage

logger = logging.getLogger("cdfd.standby")

FOLDER = "_cdfd_standby"
KEPT = 20
"""Objects that stay. A process that knows an older one lists them all."""
_DIGITS = 20


class StoredLease(Lease):
    """The lease of a pipeline in a store.

    Args:
        storage: the place of the sink.
        pipeline: its name.
        pause: seconds without an access after which this process lists the objects again.
        monotonic: the source of time.
    """

    def __init__(
        self, storage: Storage, pipeline: str, pause: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._storage = storage
        self._prefix = f"{FOLDER}/{pipeline}/"
        self._pause = pause
        self._monotonic = monotonic
        self._number: int | None = None
        self._claim: Claim | None = None
        self._known_at = 0.0
        self.place = f"{storage.uri.rstrip('/')}/{self._prefix}"

    async def read(self) -> Claim | None:
        """Read the objects after the last one that is known; see the port."""
        now = self._monotonic()
        with self._translate():
            if self._number is None or now - self._known_at > self._pause:
                await self._list()
            else:
                with suppress(NotFoundError):
                    while True:
                        text = await self._storage.read(self._path(self._number + 1), 0, 1 << 16)
                        self._claim, self._number = parse_claim(text, self.place), self._number + 1
        self._known_at = now
        return self._claim

    async def write(self, claim: Claim) -> None:
        """Put the next object, if it is absent; see the port. If another process has put it, nothing is written."""
        number = 1 if self._number is None else self._number + 1
        with self._translate():
            try:
                await self._storage.put_if_absent(self._path(number), claim.text().encode())
            except ExistsError:
                return  # the next reading shows whose it is
            is_first = self._claim is None or (self._claim.owner, self._claim.term) != (claim.owner, claim.term)
            if is_first or self._monotonic() - self._known_at > self._pause:
                await self._list()
            else:
                self._number, self._claim = number, claim
                await self._delete(number - KEPT)

    async def _list(self) -> None:
        """Read the newest of all objects, and delete what is left of old ones."""
        numbers = list[int]()
        async with aclosing(self._storage.list(self._prefix)) as stats:
            async for stat in stats:
                name = stat.path.removeprefix(self._prefix).removesuffix(".json")
                if name.isdecimal() and len(name) == _DIGITS:
                    numbers.append(int(name))
        if not numbers:
            self._number = self._claim = None
            return
        newest = max(numbers)
        self._claim = parse_claim(await self._storage.read(self._path(newest), 0, 1 << 16), self.place)
        self._number = newest
        for number in sorted(numbers):
            if number <= newest - 2 * KEPT:
                await self._delete(number)

    async def _delete(self, number: int) -> None:
        if number < 1:
            return
        try:
            await self._storage.delete(self._path(number))
        except StorageError as error:
            logger.debug("cannot delete an old claim: %s", error)

    def _path(self, number: int) -> str:
        return f"{self._prefix}{number:0{_DIGITS}d}.json"

    @contextmanager
    def _translate(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            # An object that is gone was an old one: there are newer ones now.
            retriable = error.retriable or isinstance(error, NotFoundError)
            failure = SinkError(f"cannot use the lease: {error.what}", hint=error.hint, retriable=retriable)
            raise failure.within(path=self.place) from error
