"""Run events for OpenLineage: each life of a table's loop is a run of the job `<pipeline>.<table>`.

    START     the loop delivers from a position on
    RUNNING   in regular intervals, and when the schema changes; with the rows so far
    FAIL      an error ended the loop; its restart is another run
    COMPLETE  the loop stopped on request

Events wait in a queue of bounded size for one sender. If the receiver does not answer, the oldest events are dropped, and deliveries are not
affected. RUNNING events wait apart, at most one for each run, so that those of many tables displace no other ones.
"""

import asyncio
import json
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal
from uuid import uuid4
from weakref import WeakValueDictionary

import aiohttp

from cdfd import __version__
from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.config.values import Secret
from cdfd.deliver.monitor import Monitor
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import CdfdError
from cdfd.escaping import shorten
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.runtime.clock import Clock
from cdfd.runtime.registry import CATALOGS
from cdfd.runtime.tasks import background
from cdfd.storage.location import is_local

logger = logging.getLogger("cdfd.daemon")

QUEUE_EVENTS = 1000
"""Events that wait for the receiver, without RUNNING events. Above it, the oldest are dropped."""
REQUEST_SECONDS = 5.0
"""Longest time for a request to the receiver."""
RETRY_SECONDS = 5.0
CLOSING_SECONDS = 1.5
"""How long the end of the daemon waits for the last events."""

EventType = Literal["START", "RUNNING", "COMPLETE", "FAIL", "ABORT"]
Dataset = tuple[str, str]
"""Namespace and name, by OpenLineage's conventions."""

_FILE: Final = re.compile(r"\Afile:(//[^/]*)?", re.IGNORECASE)

_PRODUCER = "https://pypi.org/project/cdfd"
_SPEC = "https://openlineage.io/spec"
_EVENT_SCHEMA = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"


def _facet(kind: str, release: str, /, **fields: Any) -> dict[str, Any]:
    return {"_producer": _PRODUCER, "_schemaURL": f"{_SPEC}/facets/{release}/{kind}.json", **fields}


def source_dataset(uri: str) -> Dataset:
    """The dataset of a table: `s3://lake/orders` is `orders` in `s3://lake`, `uc://main.sales.orders` is `main.sales.orders` in `uc`."""
    scheme, _, name = uri.partition("://")
    if scheme in CATALOGS:
        return scheme, name
    # `urlsplit` would end a path at `#` or `?`, which names of folders may have.
    if is_local(uri):
        return "file", _FILE.sub("", uri)
    store, _, path = name.partition("/")
    return f"{scheme.lower()}://{store}", path.strip("/") or "/"


@dataclass(eq=False)
class LineageMonitor(Monitor):
    """The `Monitor` that makes the run events of one table.

    Attributes:
        job: namespace and name of the job.
        source: the dataset that it reads.
        target: the dataset that it writes.
    """

    job: Dataset
    source: Dataset
    target: Dataset
    send: Callable[[dict[str, Any]], None]
    clock: Clock
    _run: str | None = field(default=None, init=False)
    _schema: TableSchema | None = field(default=None, init=False)
    _version: int | None = field(default=None, init=False)
    _rows: int = field(default=0, init=False)
    _bytes: int = field(default=0, init=False)

    def started(self, position: Position) -> None:
        """A run starts. A loop that starts over within its life continues the run."""
        self._begin()

    def oldest_pending(self, version: Version) -> None:
        """A delivery begins: of another schema, perhaps."""
        self._note_schema(version)

    def committed(
        self, following: Position, versions: Sequence[Version], rows: Mapping[str, int], bytes_read: int
    ) -> None:
        """A delivery is committed."""
        self._rows += sum(rows.values())
        self._bytes += bytes_read
        for version in versions:
            self._version = version.plan.version
            self._note_schema(version)

    def failed(self, error: CdfdError, retry_in: float | None) -> None:
        """The run ends with an error. One that could not even start has both events."""
        self._begin()
        message = shorten(error.what)
        facet = _facet("ErrorMessageRunFacet", "1-0-1", message=message, programmingLanguage="python")
        self.end("FAIL", errorMessage=facet)

    def stopped(self) -> None:
        """The run ends on request."""
        self.end("COMPLETE")

    def tick(self) -> None:
        """Emit that the run goes on, if one is under way."""
        if self._run is not None:
            self._emit("RUNNING")

    def end(self, event: EventType, **facets: Any) -> None:
        """End the run, if one is under way, with an event of this type."""
        if self._run is not None:
            self._emit(event, **facets)
        self._run = None

    def _begin(self) -> None:
        """Start a run, unless one is under way."""
        if self._run is None:
            self._run = str(uuid4())
            self._rows = self._bytes = 0
            self._emit("START")

    def _note_schema(self, version: Version) -> None:
        schema = version.plan.schema
        if schema is self._schema or schema == self._schema:
            return
        self._schema = schema
        self.tick()

    def _emit(self, event: EventType, **facets: Any) -> None:
        moment = datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        engine = _facet("ProcessingEngineRunFacet", "1-1-1", name="cdfd", version=__version__)
        kind = _facet(
            "JobTypeJobFacet", "2-0-3", processingType="STREAMING", integration="CDFD", jobType="CHANGE_DATA_FEED"
        )
        written = _facet("OutputStatisticsOutputDatasetFacet", "1-0-2", rowCount=self._rows)
        read = _facet("InputStatisticsInputDatasetFacet", "1-0-0", size=self._bytes)
        self.send(
            {
                "eventType": event,
                "eventTime": moment,
                "producer": _PRODUCER,
                "schemaURL": _EVENT_SCHEMA,
                "run": {"runId": self._run, "facets": {"processing_engine": engine, **facets}},
                "job": {"namespace": self.job[0], "name": self.job[1], "facets": {"jobType": kind}},
                "inputs": [self._dataset(self.source, inputFacets={"inputStatistics": read})],
                "outputs": [self._dataset(self.target, outputFacets={"outputStatistics": written})],
            }
        )

    def _dataset(self, dataset: Dataset, **more: Any) -> dict[str, Any]:
        facets: dict[str, Any] = {}
        if self._schema is not None:
            fields = [{"name": each.name, "type": str(each.type)} for each in self._schema.struct.fields]
            facets["schema"] = _facet("SchemaDatasetFacet", "1-1-1", fields=fields)
        if self._version is not None and dataset is self.source:
            version = str(self._version)
            facets["version"] = _facet("DatasetVersionDatasetFacet", "1-0-1", datasetVersion=version)
        return {"namespace": dataset[0], "name": dataset[1], "facets": facets, **more}


@dataclass(eq=False)
class Sender:
    """Sends events one by one: RUNNING events after the others, and otherwise in order.

    Attributes:
        url: of the receiver.
        token: for bearer authentication; None: none.
    """

    url: str
    token: Secret | None
    clock: Clock
    _events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=QUEUE_EVENTS), init=False)
    _running: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    _more: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _failing: bool = field(default=False, init=False)

    def put(self, event: dict[str, Any]) -> None:
        """Take an event, in place of an earlier RUNNING event of its run, or of the oldest event if the queue is full."""
        run = event["run"]["runId"]
        if event["eventType"] == "RUNNING":
            self._running[run] = event
        else:
            self._running.pop(run, None)
            self._events.append(event)
        self._more.set()

    def next(self) -> dict[str, Any] | None:
        """The event to send next; None if all are sent."""
        return self._events[0] if self._events else next(iter(self._running.values()), None)

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Send events forever."""
        while True:
            await self._more.wait()
            self._more.clear()
            while (event := self.next()) is not None:
                if not await self._try(session, event):
                    await self.clock.sleep(RETRY_SECONDS)
                elif self._events and self._events[0] is event:
                    self._events.popleft()
                elif self._running.get(event["run"]["runId"]) is event:
                    del self._running[event["run"]["runId"]]

    async def _try(self, session: aiohttp.ClientSession, event: dict[str, Any]) -> bool:
        """Send an event. False if it is worth another attempt: an event that the receiver refuses is dropped."""
        headers = {"Content-Type": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token.reveal()}"
        try:
            async with session.post(self.url, data=json.dumps(event).encode(), headers=headers) as response:
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._log(str(error) or type(error).__name__)
            return False
        if 200 <= status < 300:
            if self._failing:
                logger.info("the receiver of run events answers again")
            self._failing = False
            return True
        self._log(f"status {status}")
        return status < 500 and status != 429

    def _log(self, reason: str) -> None:
        level = logging.DEBUG if self._failing else logging.WARNING
        self._failing = True
        logger.log(level, "cannot send run events to %s: %s; deliveries continue", self.url, reason)


@asynccontextmanager
async def lineage(
    config: Settings, target: Callable[[settings.Table], Dataset], clock: Clock
) -> AsyncIterator[Callable[[settings.Table], Monitor]]:
    """A function that returns the monitor of a table. Sends the last events at the end of the block, for a limited time.

    Args:
        target: the dataset that a table is delivered to.
    """
    chosen = config.telemetry.openlineage
    assert chosen.url is not None
    sender = Sender(chosen.url, chosen.token, clock)
    monitors = WeakValueDictionary[str, LineageMonitor]()

    def monitor(table: settings.Table) -> Monitor:
        job = (chosen.namespace, f"{config.pipeline}.{config.address(table.name)}")
        table_monitor = LineageMonitor(job, source_dataset(table.uri), target(table), sender.put, clock)
        monitors[table.name] = table_monitor
        return table_monitor

    async def tick() -> None:
        while True:
            await clock.sleep(chosen.interval)
            for each in tuple(monitors.values()):
                each.tick()

    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        background("run events", sender.run(session)),
        background("running events", tick()),
    ):
        try:
            yield monitor
        finally:
            for each in tuple(monitors.values()):
                each.end("ABORT")  # the process ends before the loop did
            deadline = clock.monotonic() + CLOSING_SECONDS
            while sender.next() is not None and clock.monotonic() < deadline:
                await clock.sleep(0.02)
