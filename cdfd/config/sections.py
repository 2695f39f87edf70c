"""The sections of a configuration file, but for those of tables, of sinks, and of stores and catalogs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, PlainValidator, ValidationInfo, model_validator

from cdfd.config import values
from cdfd.config.fields import (
    AS_TEXT,
    Count,
    Flag,
    LocalPath,
    Name,
    Seconds,
    SecretText,
    Section,
    Size,
    Text,
    UserText,
    WebAddress,
    in_folder,
    registry_name,
)
from cdfd.config.problems import Conflicts
from cdfd.config.values import Ledger, Listen
from cdfd.runtime.registry import ENGINES


def _ledger_in_folder(ledger: Ledger, info: ValidationInfo) -> Ledger:
    return replace(ledger, uri=in_folder(ledger.uri, info)) if ledger.kind == "table" else ledger


STATE_FOLDER = "/var/lib/cdfd"
"""The folder of the image and of packages for what must outlive the process."""


def default_ledger() -> Ledger:
    """The ledger's default: in the folder of the image, where it is there, otherwise in that of the user's state."""
    if os.path.isdir(STATE_FOLDER):
        return Ledger("table", f"{STATE_FOLDER}/ledger")
    state = os.environ.get("XDG_STATE_HOME", "")
    home = state if os.path.isabs(state) else os.path.expanduser("~/.local/state")
    return Ledger("table", os.path.join(home, "cdfd", "ledger"))


class Progress(Section):
    """The ledger: a second record of positions, in case the sink loses its own."""

    ledger: Annotated[Ledger, PlainValidator(Ledger.parse), AfterValidator(_ledger_in_folder), AS_TEXT] = Field(
        default_factory=default_ledger
    )
    """Place of the ledger.

    Default: with a Kafka sink `/var/lib/cdfd/ledger` if `/var/lib/cdfd` exists, and `~/.local/state/cdfd/ledger` if not; otherwise `none`.
    """

    interval: Seconds = 10.0
    """Shortest time between two updates of the ledger."""


class Poll(Section):
    """Polling for the next commit, if no event announces it."""

    interval: Seconds = 1.0
    """Shortest time between two polls of a table for its next commit, if no event announces it."""

    max_interval: Seconds = 5.0
    """Longest time between two polls of a table."""

    max_requests_per_hour: Count | None = None
    """Requests for polling tables in stores, in any hour and for all tables of the process. The daemon polls a table when its next commit is
    likely, by the times of its last commits.

    Default: 25 % more requests than polling every table at `max_interval` takes.
    """

    notifications: Annotated[str, PlainValidator(values.queue)] | None = None
    """A queue with the events of a store: of Amazon SQS (`sqs://region/name`, or its URL), which the daemon reads with the credentials of
    `storage.s3`; a subscription of Google Pub/Sub (`pubsub://project/subscription`); or an Azure storage queue
    (`azure-queue://account/name`).
    """

    @model_validator(mode="after")
    def _check_order(self) -> Poll:
        if self.max_interval < self.interval:
            raise Conflicts((("max_interval",), "expected no less than poll.interval"))
        return self


class Spill(Section):
    """Local disk space for versions that are refined and do not fit into memory. Its files vanish with the process."""

    path: LocalPath | None = None
    """A folder on a local disk.

    Default: the system's folder for temporary files.
    """

    max_bytes: Size = 64 << 30
    """Bytes that all tables together may use."""


class CatchUp(Section):
    """Limits of a transaction with several versions, when there is a backlog. A single version may exceed them."""

    max_rows: Count | None = None
    """Rows after which a transaction begins no further version.

    Default: 100,000. With the sink `delta`, there is no limit.
    """

    max_bytes: Size = 64 << 20
    """Bytes of the files of these versions."""

    max_seconds: Seconds = 10.0
    """Longest time to fill such a transaction."""


_OF_SPARK_PROCESSES = (
    "spark.archives",
    "spark.cores.",
    "spark.deploy.",
    "spark.driver.",
    "spark.dynamicAllocation.",
    "spark.executor.",
    "spark.files",
    "spark.jars",
    "spark.kubernetes.",
    "spark.master",
    "spark.pyspark.",
    "spark.speculation",
    "spark.submit.",
    "spark.task.",
    "spark.yarn.",
)
"""Beginnings of Spark's settings that are fixed once its driver runs."""


class SparkEngine(Section):
    """Spark, for `engine.kind` `auto` and `spark`. Without `master` and `remote`, Spark's own configuration holds, or this machine."""

    threshold: Size = 8 << 30
    """With `auto`: versions and first snapshots of more bytes run on Spark."""

    part_size: Size = 128 << 20
    """With `auto`: bytes of files that one Spark task delivers; with Kafka, in one transaction."""

    snapshot_planning: Literal["auto", "driver", "executors"] = "auto"
    """Which processes list the files of a first snapshot. `driver`: the daemon, or Spark's driver with `spark`.
    `executors`: Spark's tasks, from the checkpoint. `auto`: Spark's tasks if the checkpoint has more than 128 MiB,
    which are one to two million files.
    """

    master: Text | None = None
    """Spark's master, such as `yarn`, `k8s://…`, `spark://host:7077` or `local[4]`.

    Default: `spark-defaults.conf`, otherwise `local[*]`.
    """

    remote: SecretText | None = None
    """A Spark Connect server, such as `sc://host:15002`, instead of `master`."""

    conf: Mapping[str, SecretText] = {}
    """Spark's own settings, such as `spark.executor.memory: 4g`. cdfd never prints them."""

    checkpoint: Annotated[str, PlainValidator(values.uri)] | None = None  # relative ones are Spark's to resolve
    """With `spark`: folder for the checkpoints, one folder per table. Any place to which Spark can write.
    Required with `engine.kind: spark`.
    """

    batch_size: Size = 1 << 30
    """With `spark`: bytes of files in a micro-batch. Each partition must fit into one transaction within
    `sink.transaction_timeout`.
    """

    order: Literal["key", "none"] = "key"
    """With `spark`. `key`: one task at a time writes a table with a key, so changes of a key arrive in order. `none`:
    all tasks write, and readers must sort.
    """

    @model_validator(mode="after")
    def _check_place(self) -> SparkEngine:
        if self.master is not None and self.remote is not None:
            raise Conflicts((("remote",), "has no use with engine.spark.master; leave one of them out"))
        if self.remote is not None:
            # Spark Connect ignores them without an error.
            fixed = [name for name in self.conf if name.startswith(_OF_SPARK_PROCESSES)]
            if fixed:
                what = "a Spark Connect server does not take this from its clients; set it where the server starts"
                raise Conflicts(*((("conf", name), what) for name in fixed))
        return self


class Engine(Section):
    """The engine, which reads the rows."""

    kind: Annotated[str, registry_name(ENGINES)] = "embedded"
    """Which process reads the rows. `embedded`: the daemon. `spark`: Spark. `auto`: Spark for large versions and first
    snapshots, otherwise the daemon.
    """

    spark: SparkEngine = SparkEngine()

    @model_validator(mode="after")
    def _check_checkpoint(self) -> Engine:
        if self.kind == "spark" and self.spark.checkpoint is None:
            raise Conflicts((("spark", "checkpoint"), "required with engine.kind spark"))
        return self


class HttpTls(Section):
    """TLS of the server. The daemon reads the files again when they change."""

    certificate: LocalPath
    """PEM file of the server's certificate, with its chain."""

    key: LocalPath
    """PEM file of the certificate's private key."""

    client_ca: LocalPath | None = None
    """PEM file of certificate authorities. With it, every request needs a client certificate, except for `/healthz` and
    `/readyz`.
    """


class HttpAuthentication(Section):
    """Authentication of every request except for `/healthz` and `/readyz`: by user and password, by token, or by either."""

    username: UserText | None = None
    """User name, for basic authentication."""

    password: SecretText | None = None
    """Password, for basic authentication."""

    token: SecretText | None = None
    """Token, for bearer authentication."""

    @model_validator(mode="after")
    def _check_ways(self) -> HttpAuthentication:
        if (self.username is None) != (self.password is None):
            raise Conflicts(((), "username and password go together"))
        if self.username is None and self.token is None:
            raise Conflicts(((), "username and password, or token, are required"))
        return self


class Http(Section):
    """Metrics, health and status over HTTP."""

    nullable: ClassVar[frozenset[str]] = frozenset({"listen"})

    listen: Annotated[Listen, PlainValidator(Listen.parse), AS_TEXT] | None = Listen("127.0.0.1", 9464)
    """Address of metrics, health and status. `null` turns the server off."""

    hosts: tuple[Annotated[str, PlainValidator(values.host_name)], ...] = ()
    """Additional host names in URLs. `*.example.com` stands for all names below a domain, `*` for any name."""

    tls: HttpTls | None = None
    authentication: HttpAuthentication | None = None


class Controls(Section):
    """Requests of operators to the running daemon: pause, resume, publish again, move, change the log level."""

    token: Annotated[SecretText, AfterValidator(values.long_secret)] | None = None
    """Token of requests over HTTP, at least 16 characters. Senders give it as `Authorization: Bearer`.

    Default: none, and no requests over HTTP.
    """

    socket: LocalPath | None = None
    """Unix socket for requests without a token. Only the daemon's user can open it.

    Default: none.
    """

    signals: tuple[Literal["pause", "resume", "snapshot", "stop-snapshot", "move", "log-level"], ...] = ()
    """Requests that the daemon takes from the topic `_cdfd_signals.<pipeline>`. Without any, it does not read the
    topic. Needs a Kafka sink.
    """

    notifications: Flag = False
    """Whether `<prefix>.notifications` gets a record for each answer. Without a prefix, the topic is
    `<pipeline>.notifications`. Needs a Kafka sink.
    """


class Heartbeat(Section):
    """Regular records about each table, also about tables without commits."""

    interval: Seconds | None = None
    """Time between two heartbeats. Each one writes a record per table to `topic`. It also renews the positions of idle
    tables in the ledger, unless the ledger is `source`. Needs a Kafka sink.

    Default: no heartbeats.
    """

    topic: Name = ""
    """Topic of the heartbeats. If it is missing, the daemon creates it, compacted and with one partition.

    Default: `_cdfd_heartbeat.<pipeline>`.
    """


class Standby(Section):
    """Several processes of one pipeline, of which one delivers: `cdfd run --standby`. All of them need the same values."""

    takeover_after: Annotated[Seconds, Field(ge=1, le=600)] = 2.5
    """How long a standby waits without a sign of life from the leader before it takes over. The leader gives five signs in this time."""

    poll: Annotated[Seconds, Field(ge=0.02, le=60)] = 0.1
    """How often a standby checks whether the leader hands over."""

    @model_validator(mode="after")
    def _check_order(self) -> Standby:
        if self.poll > self.takeover_after / 2:
            raise Conflicts((("poll",), "expected at most half of standby.takeover_after"))
        return self


class OpenTelemetry(Section):
    """Traces of deliveries, for an OpenTelemetry collector. They need `pip install 'cdfd[otel]'`."""

    endpoint: WebAddress | None = None
    """Address of a collector that takes OTLP over HTTP, such as `http://collector:4318`. The daemon adds `/v1/traces`.

    Default: no traces.
    """

    headers: Mapping[str, SecretText] = {}
    """Headers of each request, such as `authorization`."""

    sample: Annotated[float, PlainValidator(values.share)] = 1.0
    """Share of the deliveries that have a trace."""


class OpenLineage(Section):
    """Run events of the tables, for a receiver of OpenLineage."""

    url: WebAddress | None = None
    """Address of the receiver, such as `http://marquez:5000/api/v1/lineage`.

    Default: no run events.
    """

    token: SecretText | None = None
    """Token, for bearer authentication."""

    namespace: Text = "cdfd"
    """Namespace of the jobs. A job is called `<pipeline>.<table>`."""

    interval: Seconds = 60.0
    """Time between two `RUNNING` events of a table."""


class Telemetry(Section):
    """Events for other systems."""

    otel: OpenTelemetry = OpenTelemetry()
    openlineage: OpenLineage = OpenLineage()
