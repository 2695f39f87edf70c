"""The results of tasks that several readers run at about the same time: each task runs once, in whichever thread needs its next result.

A reader that is ahead leaves its results for the others, in bounded memory. One that lags behind the bound is cut off, and runs the task by
itself. So no reader waits for a slower one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, Generic, TypeVar

B = TypeVar("B")

LIMIT_BYTES = 64 << 20
"""Bytes of results that wait for other readers, in all."""
RUN_BYTES = 64 << 10
"""Bytes that a run counts for besides its results. They bound the number of runs."""
WAIT_SECONDS = 30.0
"""How long results wait for a reader that has not begun the task."""
MOST_BEGUN = 4096
"""Tasks that a reader began last, by which it is known that it does not want their results."""


class CutOffError(Exception):
    """The reader is too far behind: the results that follow are gone."""


class _Mark:
    """A result that is none."""


_END: Final = _Mark()
_NEXT: Final = _Mark()


@dataclass(slots=True, eq=False)
class _Run(Generic[B]):
    """A task that runs.

    Attributes:
        source: its results.
        began: when, by the monotonic clock.
        awaited: readers that have not begun it.
        at: of each reader under way, the number of its next result.
        results: those that are kept, from number `first` on.
        size: bytes that count for it.
        ended: whether the last result has come.
        failed: whether it ended with an error, which each reader has to find for itself.
        kept: whether results are kept for other readers.
        advancing: held by the thread that waits for the next result.
    """

    source: Iterator[B]
    began: float
    awaited: set[Reader[B]]
    at: dict[Reader[B], int] = field(default_factory=dict)
    results: list[tuple[B, int]] = field(default_factory=list)
    first: int = 0
    size: int = RUN_BYTES
    ended: bool = False
    failed: bool = False
    kept: bool = True
    advancing: Lock = field(default_factory=Lock)

    def result(self, number: int) -> B | _Mark:
        """A result that is kept, or a mark: the end, or that the source has the next one."""
        place = number - self.first
        if place < 0 or (self.failed and place >= len(self.results)):
            raise CutOffError
        if place < len(self.results):
            return self.results[place][0]
        return _END if self.ended else _NEXT


@dataclass(eq=False)
class SharedResults(Generic[B]):
    """The results that wait for other readers. Thread-safe.

    Attributes:
        weigh: the bytes of a result.
        limit: bytes of all results.
    """

    weigh: Callable[[B], int]
    limit: int = LIMIT_BYTES
    size: int = field(default=0, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)
    _runs: OrderedDict[Hashable, _Run[B]] = field(default_factory=OrderedDict, init=False)
    _readers: dict[Hashable, set[Reader[B]]] = field(default_factory=dict, init=False)
    _closing: list[_Run[B]] = field(default_factory=list, init=False)

    @contextmanager
    def reader(self, domain: Hashable) -> Iterator[Reader[B]]:
        """A reader until the block ends. Readers of one domain give equal tasks equal keys."""
        reader = Reader(self, domain)
        with self._lock:
            self._readers.setdefault(domain, set()).add(reader)
        try:
            yield reader
        finally:
            with self._lock:
                self._readers[domain].discard(reader)
                if not self._readers[domain]:
                    del self._readers[domain]
                for run in self._runs.values():
                    run.awaited.discard(reader)
                idle = self._idle()
            _close(idle)

    def begin(self, reader: Reader[B], key: Hashable, task: Callable[[], Iterator[B]]) -> _Run[B] | None:
        """The run of a task for a reader; None if no other reader may want it."""
        place = (reader.domain, key)
        with self._lock:
            others = {each for each in self._readers.get(reader.domain, ()) if each is not reader}
            run = self._runs.get(place)
            reader.begun[hash(place)] = None
            if len(reader.begun) > MOST_BEGUN:
                reader.begun.popitem(last=False)
            if run is None or run.first or run.failed or reader in run.at:
                awaited = {each for each in others if hash(place) not in each.begun}
                if not awaited:
                    return None
                if run is not None:
                    self._forget(place, run)
                run = self._runs[place] = _Run(task(), time.monotonic(), awaited)
                self.size += run.size
            run.awaited.discard(reader)
            run.at[reader] = 0
            idle = self._idle()
        _close(idle)
        return run

    def result(self, run: _Run[B], reader: Reader[B], number: int) -> B | _Mark:
        """Result number `number` of a run; a mark after the last one. Raises `CutOffError`, or the error of the task."""
        with self._lock:
            run.at[reader] = number
            self._trim(run)
            if (outcome := run.result(number)) is not _NEXT:
                return outcome
        with run.advancing:
            with self._lock:
                if (outcome := run.result(number)) is not _NEXT:
                    return outcome  # another reader was faster
            try:
                result: B | _Mark = next(run.source, _END)
            except BaseException:
                with self._lock:
                    run.failed = True
                raise
            with self._lock:
                if isinstance(result, _Mark):
                    run.ended = True
                else:
                    self._keep(run, result)
                closing, self._closing = self._closing, []
        _close(closing)
        return result

    def leave(self, run: _Run[B], reader: Reader[B]) -> None:
        """A reader ends."""
        with self._lock:
            del run.at[reader]
            self._trim(run)
            idle = self._idle()
            if not run.kept and not run.at:
                idle.append(run)
        _close(idle)

    def _keep(self, run: _Run[B], result: B) -> None:
        size = self.weigh(result)
        if not run.kept:
            run.first += 1
            return
        run.results.append((result, size))
        run.size += size
        self.size += size
        self._trim(run)
        while self.size > self.limit:
            # The oldest one. Its readers go on, without what they left for others.
            self._forget(*next(iter(self._runs.items())))

    def _trim(self, run: _Run[B]) -> None:
        """Let go of the results that no reader needs."""
        if run.awaited or not run.kept:
            return
        needed = min(run.at.values(), default=run.first + len(run.results))
        count = needed - run.first
        if count > 0:
            freed = sum(size for _, size in run.results[:count])
            del run.results[:count]
            run.first = needed
            run.size -= freed
            self.size -= freed

    def _forget(self, place: Hashable, run: _Run[B]) -> None:
        """Keep nothing of a run any more. Readers that are behind are cut off."""
        del self._runs[place]
        self.size -= run.size
        run.first += len(run.results)
        run.results.clear()
        run.kept = False
        run.awaited.clear()
        if not run.at:
            self._closing.append(run)

    def _idle(self) -> list[_Run[B]]:
        """Forget the runs that no reader may want. Those that are returned are to be closed without the lock."""
        past = time.monotonic() - WAIT_SECONDS
        for place, run in tuple(self._runs.items()):
            if not run.at and (not run.awaited or run.failed or run.first or run.began < past):
                self._forget(place, run)
        closing, self._closing = self._closing, []
        return closing


@dataclass(eq=False)
class Reader(Generic[B]):
    """One of the readers of the same tasks.

    Attributes:
        shared: of all readers.
        domain: what the keys of tasks belong to.
        begun: hashes of the tasks that it began lately, and whose results it will not want.
    """

    shared: SharedResults[B]
    domain: Hashable
    begun: OrderedDict[int, None] = field(default_factory=OrderedDict, init=False)

    def results(self, key: Hashable, task: Callable[[], Iterator[B]]) -> Iterator[B]:
        """The results of a task.

        Args:
            key: of the task, in the domain.
            task: runs it.

        Raises:
            CutOffError: the reader is too far behind, or another one has met an error. It has to read on by itself.
        """
        run = self.shared.begin(self, key, task)
        if run is None:
            yield from task()
            return
        try:
            number = 0
            while not isinstance(result := self.shared.result(run, self, number), _Mark):
                yield result
                number += 1
        finally:
            self.shared.leave(run, self)


def _close(runs: list[_Run[Any]]) -> None:
    for run in runs:
        close = getattr(run.source, "close", None)
        if close is not None:
            close()
