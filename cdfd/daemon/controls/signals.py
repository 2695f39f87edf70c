"""Requests as records of a topic, in the form of Debezium's signals.

    {"id": "ops-7", "type": "execute-snapshot", "data": {"data-collections": ["orders"], "type": "incremental"}}

Everyone who may write to the topic can send requests. So only the configured actions are taken, a record has a bounded size, few records are
taken in a second, and no record ends the daemon. Records are taken at least once. Tables remember ids, so a request is carried out once.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cdfd.config.settings import Settings
from cdfd.daemon.controls.controller import Controller
from cdfd.daemon.membership.shard import Shard
from cdfd.deliver.requests import Refused, Request, document_of, parse_id, parse_request
from cdfd.errors import CdfdError
from cdfd.log.watch import Backoff
from cdfd.model.control import RECENT
from cdfd.runtime.clock import Clock
from cdfd.sinks.base import connector
from cdfd.sinks.own_topics import Signal, Signals

logger = logging.getLogger("cdfd.controls")

POLL_SECONDS = 1.0
"""The least time from one poll to the next. A poll takes `sinks.own_topics.SIGNALS` records at most."""
MOST_OUTSTANDING = 100
"""Records whose requests are not answered yet. No more records are taken until some are."""
HELD_SECONDS = 60.0
"""How long a record may hold back later ones. Its requests still wait for their tables then, but are lost if the daemon ends first."""
MOST_TABLES = 100
"""Tables in one record."""
SEARCH_SECONDS = 120.0
"""Longest wait for the first search for tables. A store that hangs must not hold back the signals for other tables."""
RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0
_ACTIONS = {
    "execute-snapshot": "snapshot",
    "stop-snapshot": "stop-snapshot",
    "pause": "pause",
    "resume": "resume",
    "move": "move",
    "log-level": "log-level",
}
_NOT_OURS = {
    "pause-snapshot": "pause the table with `pause`",
    "resume-snapshot": "resume the table with `resume`",
}


def parse_signal(signal: Signal, allowed: Collection[str]) -> list[Request]:
    """The requests of a record, one for each table.

    Raises:
        Refused: the record is malformed, or asks for something that is not allowed.
    """
    document = document_of(signal.value or b"")
    # The place may be longer than the id that a sender may choose, because the pipeline's name is a part of it.
    id = signal.place if document.get("id") is None else parse_id(document)
    kind, data = document.get("type"), _data(document.get("data"))
    if not isinstance(kind, str) or kind not in _ACTIONS:
        hint = _NOT_OURS.get(kind, "") if isinstance(kind, str) else ""
        expected = hint or f"the types are {', '.join(_ACTIONS)}"
        raise Refused("unknown", f"there is no signal of type {kind!r:.100}; {expected}")
    action = _ACTIONS[kind]
    if action not in allowed:
        raise Refused("unauthorised", f"signals may not {action}: `controls.signals` does not have it")
    if action == "log-level":
        return [parse_request(action, None, id, data)]
    names = data.pop("data-collections", None)
    if not isinstance(names, list) or not 0 < len(names) <= MOST_TABLES:
        raise Refused("malformed", f"`data-collections` must be a list of 1 to {MOST_TABLES} names of tables")
    if not all(isinstance(name, str) and 0 < len(name) <= 249 for name in names):
        raise Refused("malformed", "`data-collections` has an item that is not the name of a table")
    tables = list(dict.fromkeys(names))
    if action in ("snapshot", "stop-snapshot"):
        form = data.pop("type", "incremental")
        if not isinstance(form, str) or form.lower() != "incremental":
            raise Refused("unsupported", "the only type of snapshot is `incremental`")
    conditions = _conditions(data.pop("additional-conditions", []), tables)
    return [parse_request(action, table, id, data | conditions.get(table, {})) for table in tables]


def _data(data: object) -> dict[str, Any]:
    """`data`: an object, or as in Debezium's signal tables an object as text."""
    if isinstance(data, str):
        data = document_of(data.encode("utf-8", "surrogatepass"))
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise Refused("malformed", "`data` is not a JSON object")
    return dict(data)


def _conditions(entries: object, tables: Collection[str]) -> Mapping[str, dict[str, Any]]:
    """The condition of each table. The filter of a table replaces an earlier one."""
    if not isinstance(entries, list) or len(entries) > MOST_TABLES:
        raise Refused("malformed", f"`additional-conditions` must be a list of at most {MOST_TABLES} conditions")
    conditions = {}
    for each in entries:
        if not isinstance(each, dict) or set(each) != {"data-collection", "filter"}:
            raise Refused("malformed", "a condition has `data-collection` and `filter`, and nothing else")
        if each["data-collection"] not in tables:
            raise Refused("malformed", "a condition names a table that is not in `data-collections`")
        conditions[each["data-collection"]] = {"where": each["filter"]}
    return conditions


@dataclass(frozen=True, slots=True)
class _Taken:
    """A record that is taken: the tables of its requests, the task that carries them out, and the monotonic time."""

    tables: frozenset[str | None]
    task: asyncio.Task[None]
    at: float


@dataclass(eq=False)
class SignalReader:
    """Takes the records of a topic, and carries out their requests.

    Attributes:
        allowed: the actions that records may ask for.
        shares_tables: whether unknown tables belong to other shards, which take the same records.
        address: the name of the loop of a table; see `Settings.address`.
    """

    controller: Controller
    allowed: Collection[str]
    clock: Clock
    shares_tables: bool = field(default=False, kw_only=True)
    address: Callable[[str], str] = field(default=str, kw_only=True)
    _taken: dict[Signal, _Taken] = field(default_factory=dict, init=False)
    _late: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def read(self, signals: Signals) -> None:
        """Take records forever. A record counts as done once all of its requests, and all earlier records, are answered.

        If no more records can be taken, those whose tables have not answered for `HELD_SECONDS` count as done too.

        Raises:
            SinkError: the topic cannot be read. Requests that were taken go on, and another call waits for their answers.
        """
        waiting, outstanding = deque[tuple[Signal, list[Request]]](), deque[Signal]()
        while True:
            full = len(outstanding) >= MOST_OUTSTANDING
            if not waiting and not full:
                # A topic that is opened again has the records that are not done again. Their requests are not repetitions.
                waiting.extend(
                    (signal, [] if signal in self._taken else self._parse(signal)) for signal in await signals.poll()
                )
            while waiting:
                signal, requests = waiting[0]
                if signal not in self._taken:
                    tables = frozenset(each.table for each in requests if each.table in self.controller.tables)
                    # After a restart, these records come again, and a table does not remember more ids.
                    if any(
                        sum(table in self._taken[each].tables for each in outstanding) >= RECENT for table in tables
                    ):
                        full = True
                        break
                    task = asyncio.create_task(self._carry_out(requests))
                    self._taken[signal] = _Taken(tables, task, self.clock.monotonic())
                waiting.popleft()
                outstanding.append(signal)
            last: Signal | None = None
            while outstanding:
                taken = self._taken[outstanding[0]]
                if taken.task.done():
                    taken.task.result()
                elif full and self.clock.monotonic() - taken.at >= HELD_SECONDS:
                    self._late.add(taken.task)
                    taken.task.add_done_callback(self._late.discard)
                    logger.warning(
                        "a signal for a table that does not answer no longer holds back others; if the daemon ends first, it is lost",
                        extra={"signal": outstanding[0].place, "tables": sorted(filter(None, taken.tables))},
                    )
                else:
                    break
                last = outstanding.popleft()
            if last is not None:
                await signals.done(last)
                self._taken = {signal: taken for signal, taken in self._taken.items() if signal.offset > last.offset}
            await self.clock.sleep(POLL_SECONDS)

    async def close(self) -> None:
        """Wait for no more answers."""
        tasks = [*self._late, *(taken.task for taken in self._taken.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _parse(self, signal: Signal) -> list[Request]:
        """The requests of a record. One that is malformed is refused, and has none."""
        if signal.value is None:
            return []  # a tombstone
        try:
            requests = parse_signal(signal, self.allowed)
        except Refused as error:
            self.controller.refuse(Refused(error.kind, f"the signal {signal.place}: {error.reason}"))
            return []
        # A request for a table by its name alone is one for the sink that has the topic.
        return [
            each if each.table is None or "@" in each.table else replace(each, table=self.address(each.table))
            for each in requests
        ]

    async def _carry_out(self, requests: Sequence[Request]) -> None:
        names = (None, *self.controller.tables)
        ours = [each for each in requests if not self.shares_tables or each.table in names]
        await asyncio.gather(*map(self.controller.submit, ours))


async def read_signals(
    config: Settings, controller: Controller, clock: Clock, shard: Shard | None, searched: asyncio.Event
) -> None:
    """Take the configured signals forever. A shard ignores signals for tables of others.

    A topic that cannot be read is tried again; deliveries do not wait for it.

    Args:
        shard: of this process; None: it delivers all tables.
        searched: set once the tables of patterns are known. Signals for them may have come while the daemon was down.
    """
    reader = SignalReader(
        controller, config.controls.signals, clock, shares_tables=shard is not None, address=config.address
    )
    name = "" if shard is None else f"{shard.index}"
    backoff = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)
    try:
        while True:
            try:
                async with connector(config).signals(name) as signals:
                    logger.info("signals are taken from the topic %s", signals.topic)
                    backoff = backoff.reset()
                    await clock.wait(searched, SEARCH_SECONDS)
                    await reader.read(signals)
            except CdfdError as error:
                logger.warning("cannot read signals: %s; retrying in %g s, deliveries continue", error, backoff.delay)
            await clock.sleep(backoff.delay)
            backoff = backoff.longer()
    finally:
        await reader.close()
