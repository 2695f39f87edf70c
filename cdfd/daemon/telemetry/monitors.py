"""One monitor for several, and the monitors of a table as configured."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from cdfd.config.settings import Settings
from cdfd.daemon.http.status import Status
from cdfd.daemon.http.table_status import TableMonitor
from cdfd.daemon.telemetry.lineage import lineage
from cdfd.deliver.monitor import Monitor, ResnapshotProgress
from cdfd.delta.retention import Retention
from cdfd.errors import CdfdError
from cdfd.model.control import Pause
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.runtime.clock import Clock
from cdfd.sinks.configured import connector


class Monitors(Monitor):
    """Passes all events on to several monitors, in order. The first one that has an urgency answers for all."""

    def __init__(self, *monitors: Monitor) -> None:
        self._monitors = monitors

    def started(self, position: Position) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.started(position)

    def found_version(self, newest: int) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.found_version(newest)

    def at_tip(self, listed: int = -1) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.at_tip(listed)

    def retained(self, retention: Retention) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.retained(retention)

    def undelivered_since(self, ms: int) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.undelivered_since(ms)

    def oldest_pending(self, version: Version) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.oldest_pending(version)

    def waiting(self, waits: bool) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.waiting(waits)

    def stage(self, name: str, seconds: float) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.stage(name, seconds)

    def committed(
        self, following: Position, versions: Sequence[Version], rows: Mapping[str, int], bytes_read: int
    ) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.committed(following, versions, rows, bytes_read)

    def aborted(self) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.aborted()

    def recorded(self, version: int) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.recorded(version)

    def error(self, error: CdfdError) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.error(error)

    def failed(self, error: CdfdError, retry_in: float | None) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.failed(error, retry_in)

    def tolerates(self) -> bool:
        """See `Monitor`."""
        return any(each.tolerates() for each in self._monitors)

    def paused(self, pause: Pause | None) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.paused(pause)

    def resnapshot(self, progress: ResnapshotProgress | None) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.resnapshot(progress)

    def stopped(self) -> None:
        """See `Monitor`."""
        for each in self._monitors:
            each.stopped()

    def urgency(self) -> float | None:
        """See `Monitor`."""
        return next((urgency for each in self._monitors if (urgency := each.urgency()) is not None), None)


@asynccontextmanager
async def telemetry_monitors(
    config: Settings, status: Status, clock: Clock
) -> AsyncIterator[Callable[[TableMonitor], Monitor] | None]:
    """A function that completes the monitor of a table with those of telemetry; None if there is no telemetry."""
    async with AsyncExitStack() as stack:
        makers: list[Callable[[TableMonitor], Monitor]] = []
        if config.telemetry.otel.endpoint is not None:
            from cdfd.daemon.telemetry.tracing import tracing  # imports OpenTelemetry, which is slow, and an extra

            traces = await stack.enter_async_context(tracing(config))
            status.exemplars = True

            def traced(monitor: TableMonitor) -> Monitor:
                made = traces(monitor.table)
                monitor.exemplar = made.exemplar
                return made

            makers.append(traced)
        if config.telemetry.openlineage.url is not None:
            events = await stack.enter_async_context(lineage(config, connector(config).dataset, clock))
            makers.append(lambda monitor: events(monitor.table))

        def completed(monitor: TableMonitor) -> Monitor:
            # Traces come first: the histogram of deliveries names the trace of each.
            return Monitors(*(make(monitor) for make in makers), monitor)

        yield completed if makers else None
