"""One monitor for several, and the monitors of a table as configured."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partialmethod
from typing import Any

from cdfd.config.settings import Settings
from cdfd.daemon.http.table_status import TableMonitor
from cdfd.deliver.monitor import Monitor
from cdfd.runtime.clock import Clock
from cdfd.sinks.base import connector


class Monitors(Monitor):
    """Passes all events on to several monitors, in order. The first one that has an urgency answers for all."""

    def __init__(self, *monitors: Monitor) -> None:
        self._monitors = monitors

    def tolerates(self) -> bool:
        """See `Monitor`."""
        return any(each.tolerates() for each in self._monitors)

    def urgency(self) -> float | None:
        """See `Monitor`."""
        return next((urgency for each in self._monitors if (urgency := each.urgency()) is not None), None)

    def _pass_on(self, event: str, /, *values: Any, **named: Any) -> None:
        for each in self._monitors:
            getattr(each, event)(*values, **named)


for _event in vars(Monitor).keys() - vars(Monitors).keys():
    if not _event.startswith("_"):
        setattr(Monitors, _event, partialmethod(Monitors._pass_on, _event))


@asynccontextmanager
async def telemetry_monitors(config: Settings, clock: Clock) -> AsyncIterator[Callable[[TableMonitor], Monitor] | None]:
    """A function that completes the monitor of a table with those of telemetry; None if there is no telemetry."""
    async with AsyncExitStack() as stack:
        makers: list[Callable[[TableMonitor], Monitor]] = []
        if config.telemetry.otel.endpoint is not None:
            from cdfd.daemon.telemetry.tracing import tracing  # imports OpenTelemetry, which is slow, and an extra

            traces = await stack.enter_async_context(tracing(config))

            def traced(monitor: TableMonitor) -> Monitor:
                trace_monitor = traces(monitor.table)
                monitor.exemplar = lambda: trace_monitor.exemplar
                return trace_monitor

            makers.append(traced)
        if config.telemetry.openlineage.url is not None:
            from cdfd.daemon.telemetry.lineage import lineage  # imports aiohttp, which is slow

            events = await stack.enter_async_context(lineage(config, connector(config).dataset, clock))
            makers.append(lambda monitor: events(monitor.table))

        def completed(monitor: TableMonitor) -> Monitor:
            # Traces come first: the histogram of deliveries names the trace of each.
            return Monitors(*(make(monitor) for make in makers), monitor)

        yield completed if makers else None
