"""Traces for OpenTelemetry: one for each delivery, from the discovery of its first commit to the end of its transaction.

    deliver orders         from the discovery to the commit; versions, rows and bytes
      discover             from the discovery of the commit to the begin of its delivery
      read, encode, send   from the first to the last piece; `cdfd.busy_seconds` is the sum of the pieces, which may overlap
      commit

Spans are made when a delivery ends, from the times that were noted. The exporter sends them in a thread of its own, from a queue of bounded
size. If the collector does not answer, spans are dropped, and deliveries are not affected.
"""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context

from cdfd import __version__
from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.deliver.monitor import Monitor
from cdfd.errors import CdfdError
from cdfd.model.position import Position
from cdfd.model.version import Version

logger = logging.getLogger("cdfd.daemon")

QUEUE_SPANS = 4096
"""Spans that wait for the collector. Further ones are dropped."""
SCHEDULE_MS = 1000
"""Time between two requests to the collector."""
EXPORT_SECONDS = 5.0
"""Longest time for a request to the collector."""
CLOSING_SECONDS = 1.5
"""How long the end of the daemon waits for the last spans."""

Attributes = Mapping[str, str | int | float]


@dataclass(slots=True)
class _Stage:
    """The pieces of a stage: nanoseconds since the Unix epoch of the first begin and the last end, and the sum of their durations."""

    begin: int
    end: int
    busy: float = 0.0
    pieces: int = 0


class TracingMonitor(Monitor):
    """The `Monitor` that makes the traces of one table.

    Args:
        attributes: of each trace.

    Attributes:
        exemplar: the trace of the last delivery, as labels of an exemplar; None if it is not sampled.
    """

    def __init__(self, tracer: Tracer, name: str, attributes: Attributes) -> None:
        self._tracer = tracer
        self._name = name
        self._attributes = dict(attributes)
        self._lock = threading.Lock()  # stages come from any thread
        self._stages: dict[str, _Stage] = {}
        self._discovered: int | None = None
        self._began: int | None = None
        self.exemplar: Mapping[str, str] | None = None

    def found_version(self, newest: int) -> None:
        """A commit is discovered."""
        if self._discovered is None:
            self._discovered = time.time_ns()

    def at_tip(self, listed: int = -1) -> None:
        """Nothing is pending."""
        self._discovered = None

    def oldest_pending(self, version: Version) -> None:
        """A delivery begins."""
        self._begin()

    def stage(self, name: str, seconds: float) -> None:
        """A piece of a stage ended now."""
        end = time.time_ns()
        begin = end - int(seconds * 1e9)
        with self._lock:
            stage = self._stages.setdefault(name, _Stage(begin, end))
            stage.begin, stage.end = min(stage.begin, begin), max(stage.end, end)
            stage.busy += seconds
            stage.pieces += 1

    def committed(
        self, following: Position, versions: Sequence[Version], rows: Mapping[str, int], bytes_read: int
    ) -> None:
        """A delivery is committed."""
        count = sum(rows.values())
        if not versions and not count:
            return  # the first position, without a delivery
        last = versions[-1].plan.version if versions else following.version
        facts: dict[str, str | int | float] = {
            "cdfd.version.first": versions[0].plan.version if versions else last,
            "cdfd.version.last": last,
            "cdfd.versions": len(versions),
            "cdfd.rows": count,
            "cdfd.bytes_read": bytes_read,
        }
        if versions:
            facts["cdfd.commit_timestamp_ms"] = versions[0].plan.timestamp_ms
        self._record(facts, None)
        self._begin()  # the next part of the same version, if there is one

    def failed(self, error: CdfdError, retry_in: float | None) -> None:
        """An error ended the loop."""
        self._record({} if error.version is None else {"cdfd.version.first": error.version}, error)
        self._discovered = self._began = None

    def _begin(self) -> None:
        self._began = time.time_ns()
        with self._lock:
            self._stages = {}

    def _record(self, facts: Attributes, error: CdfdError | None) -> None:
        """Make the spans of a delivery that ended now."""
        end = time.time_ns()
        began = end if self._began is None else self._began
        discovered = began if self._discovered is None else min(self._discovered, began)
        with self._lock:
            stages, self._stages = self._stages, {}
        span = self._tracer.start_span(
            f"deliver {self._name}",
            kind=SpanKind.PRODUCER,
            start_time=discovered,
            attributes={**self._attributes, **facts},
        )
        if span.is_recording():
            parent = set_span_in_context(span)
            if discovered < began:
                self._tracer.start_span("discover", parent, start_time=discovered).end(began)
            for name, stage in stages.items():
                busy = {"cdfd.busy_seconds": stage.busy, "cdfd.pieces": stage.pieces}
                self._tracer.start_span(name, parent, start_time=stage.begin, attributes=busy).end(stage.end)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error.what))
            span.set_attribute("error.type", error.family)
        span.end(end)
        context = span.get_span_context()
        sampled = error is None and context.trace_flags.sampled
        ids = {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
        self.exemplar = ids if sampled else None
        self._discovered = None


class QuietExporter(SpanExporter):
    """Sends spans, and logs once that the collector does not take them, instead of at each attempt.

    Args:
        place: of the collector, for messages.
    """

    def __init__(self, exporter: SpanExporter, place: str) -> None:
        self._exporter = exporter
        self._place = place
        self._failing = False
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans. They are lost if that fails."""
        result = self._exporter.export(spans)
        failing = result is not SpanExportResult.SUCCESS
        if failing and not self._failing:
            logger.warning("cannot send traces to %s; deliveries continue", self._place)
        elif self._failing and not failing:
            logger.info("the collector of traces answers again")
        self._failing = failing
        return result

    def shutdown(self) -> None:
        """End an attempt that is under way."""
        self._exporter.shutdown()


@asynccontextmanager
async def tracing(config: Settings) -> AsyncIterator[Callable[[settings.Table], TracingMonitor]]:
    """A function that returns the monitor of a table. Sends the last spans at the end of the block, for a limited time."""
    otel = config.telemetry.otel
    resource = Resource.create(
        {
            "service.name": "cdfd",
            "service.version": __version__,
            "service.namespace": config.pipeline,
            "service.instance.id": socket.gethostname(),
        }
    )
    assert otel.endpoint is not None
    headers = {name: value.reveal() for name, value in otel.headers.items()}
    exporter = OTLPSpanExporter(f"{otel.endpoint}/v1/traces", headers=headers, timeout=EXPORT_SECONDS)
    provider = TracerProvider(
        resource=resource, sampler=ParentBased(TraceIdRatioBased(otel.sample)), shutdown_on_exit=False
    )
    quiet = QuietExporter(exporter, otel.endpoint)
    provider.add_span_processor(
        BatchSpanProcessor(quiet, max_queue_size=QUEUE_SPANS, schedule_delay_millis=SCHEDULE_MS)
    )
    tracer = provider.get_tracer("cdfd", __version__)
    logger.info("traces go to %s", otel.endpoint)

    def monitor(table: settings.Table) -> TracingMonitor:
        attributes = {
            "cdfd.pipeline": config.pipeline,
            "cdfd.table": table.name,
            "cdfd.table.uri": table.uri,
            "messaging.destination.name": table.topic,
            "messaging.system": config.sink.kind,
            "messaging.operation.type": "send",
        }
        if config.sink_name:
            attributes["cdfd.sink"] = config.sink_name
        return TracingMonitor(tracer, table.name, attributes)

    try:
        yield monitor
    finally:
        # In a daemon thread: a collector that hangs must not block the end of the process.
        ending = threading.Thread(target=provider.shutdown, name="cdfd-traces-end", daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, CLOSING_SECONDS)
