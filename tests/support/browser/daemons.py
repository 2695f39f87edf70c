"""Daemons to look at, in chosen situations: their status, and an hour of samples."""

import math
from collections.abc import Iterator
from dataclasses import replace

from cdfd.config.parser import parse
from cdfd.daemon.http.history import POINTS, SECONDS, History
from cdfd.daemon.http.status import Status
from cdfd.delta.retention import Retention
from cdfd.delta.types.datatypes import StructType
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import MissingFileError, SinkError
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.model.version import Version
from tests.support.manual_time import ManualClock
from tests.support.statuses import table_monitor

DAY_MS = 86_400_000
NAMES = ("customers", "inventory", "invoices", "orders", "payments", "returns", "shipments", "stores")


def status_of(names: list[str], clock: ManualClock) -> Status:
    tables = "".join(f"  - {{uri: 's3://lake/shop/{name}', topic: shop.{name}}}\n" for name in names)
    return Status(parse(f"pipeline: shop\ntables:\n{tables}sink: {{kind: files, path: out}}\n", {}), clock)


def version(number: int, committed_ms: int, snapshot: bool = False) -> Version:
    origin = "snapshot" if snapshot else "files"
    return Version(ChangePlan(number, committed_ms, TableSchema(StructType(())), (), origin), "id")


def at(number: int, part: int = 0) -> Position:
    return Position("id", number, part)


def hour(status: Status, history: History, clock: ManualClock) -> Iterator[int]:
    """An hour in which all tables but one deliver what comes; that one stops after 35 minutes."""
    monitors = status.tables()
    for monitor in monitors:
        monitor.retained(Retention(30 * DAY_MS, 7 * DAY_MS))
        monitor.started(at(1))
        monitor.at_tip()
    for sample in range(POINTS):
        for place, monitor in enumerate(monitors):
            if place >= 8 or (monitor.table.name == "orders" and sample > 210):
                continue
            number = sample + 1
            took = 0.05 + 0.03 * math.sin(sample / 17 + place) + (1.5 if 120 < sample < 135 and place == 3 else 0)
            monitor.committed(
                at(number + 1),
                [version(number, clock.now_ms() - round(took * 1000))],
                {"insert": round(2000 + 900 * math.sin(sample / 23 + place) + 40 * (sample * 7919 % 13))},
                1000,
            )
            monitor.at_tip()
            monitor.recorded(number)
            for stage, share in (("read", 0.3), ("encode", 0.25), ("send", 0.3), ("commit", 0.1)):
                monitor.stage(stage, share * took)
        yield sample
        clock.advance(SECONDS)
        history.sample()


def troubled(clock: ManualClock, names: list[str] | None = None) -> tuple[Status, History]:
    """Tables that deliver, one that is behind, one with an error, one in a snapshot, one that has not started."""
    status = status_of(list(NAMES if names is None else names), clock)
    history = History(status)
    orders, payments, stores = (table_monitor(status, name) for name in ("orders", "payments", "stores"))
    for sample in hour(status, history, clock):
        if sample > 210:
            orders.found_version(211 + (sample - 211) * 3)
            if sample % 20 == 0:
                orders.oldest_pending(version(212 + (sample - 211) // 2, clock.now_ms() - (sample - 211) * 7000))
                orders.committed(
                    at(213 + (sample - 211) // 2),
                    [version(212 + (sample - 211) // 2, clock.now_ms() - (sample - 211) * 7000)],
                    {"insert": 9000},
                    0,
                )
                orders.oldest_pending(version(213 + (sample - 211) // 2, clock.now_ms() - (sample - 211) * 7000))
            orders.stage("send", 9.0)
    away = SinkError(
        "the broker localhost:9092 does not answer",
        hint="Check `sink.bootstrap_servers` and the network",
        retriable=True,
    )
    payments.error(away)
    missing = MissingFileError(
        "the file is gone",
        version=POINTS + 1,
        path="part-00000-6c035f16-f030-4ca1-8631-e2f8c4128ee5.snappy.parquet",
        hint="VACUUM may have removed it: start from a newer version or a snapshot, or set `on_missing_file`",
    )
    payments.found_version(POINTS + 4)
    for _ in range(3):
        payments.failed(missing, 58.0)
    stores.started(replace(at(POINTS), phase="snapshot", part=3))
    stores.oldest_pending(version(POINTS, clock.now_ms() - 9_000_000, snapshot=True))
    stores.activity.files = 12
    clock.advance(SECONDS)
    return status, history


def calm(clock: ManualClock) -> tuple[Status, History]:
    """Tables that deliver everything."""
    status = status_of([name for name in NAMES if name != "orders"], clock)
    history = History(status)
    for _ in hour(status, history, clock):
        pass
    return status, history
