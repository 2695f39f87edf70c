"""A daemon's status to look at: its configuration, and the versions that its loops would tell of."""

from contextlib import AbstractAsyncContextManager

from prometheus_client.parser import text_string_to_metric_families

from cdfd.config.parser import parse
from cdfd.config.sections import Http
from cdfd.config.settings import Settings
from cdfd.config.values import Listen
from cdfd.daemon.controls.controller import Controller
from cdfd.daemon.http.controls import ControlRoutes
from cdfd.daemon.http.history import History
from cdfd.daemon.http.server import serve
from cdfd.daemon.http.status import Status
from cdfd.daemon.http.table_status import TableMonitor
from cdfd.delta.types.datatypes import StructType
from cdfd.delta.types.schema import TableSchema
from cdfd.model.plan import ChangePlan, Origin
from cdfd.model.position import Position
from cdfd.model.version import Version
from tests.support.manual_time import ManualClock

NOW_MS = 1_700_000_000_000
PASSWORD = "correct-horse-battery"

CONFIGURATION = """
pipeline: shop
tables:
  - {uri: s3://lake/orders}
  - {uri: /data/customers, topic: people}
sink:
  kind: kafka
  bootstrap_servers: localhost:9092
  security: {protocol: SASL_SSL, mechanism: PLAIN, username: u, password: "${KAFKA_PASSWORD}"}
storage:
  s3: {access_key_id: id-in-the-open, secret_access_key: "${KAFKA_PASSWORD}"}
progress: {ledger: none}
"""


def configuration() -> Settings:
    return parse(CONFIGURATION, {"KAFKA_PASSWORD": PASSWORD})


def serve_status(settings: Http, status: Status, history: History | None = None) -> AbstractAsyncContextManager[Listen]:
    """The server of a daemon that has no token for controls."""
    controls = ControlRoutes(Controller("shop", ManualClock()), None, ManualClock())
    return serve(settings, status, history or History(status), controls)


def table_monitor(status: Status, name: str) -> TableMonitor:
    return next(monitor for monitor in status.tables() if monitor.table.name == name)


def version(number: int, committed_ms: int = NOW_MS, origin: Origin = "files") -> Version:
    return Version(ChangePlan(number, committed_ms, TableSchema(StructType(())), (), origin), "id")


def at(number: int, part: int = 0) -> Position:
    return Position("id", number, part)


def snapshot_at(number: int, part: int = 0) -> Position:
    return Position("id", number, part, "snapshot")


def samples(text: bytes, table: str | None = None) -> dict[str, float]:
    """Every sample as it is written, less the table: `cdfd_rows_total{change_type="insert"}`. None: those of no table."""
    by_name = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            if labels.pop("table", None) == table:
                shown = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
                by_name[f"{sample.name}{{{shown}}}" if shown else sample.name] = sample.value
    return by_name


def measured(status: Status, table: str | None = "orders") -> dict[str, float]:
    return samples(status.metrics()(), table)
