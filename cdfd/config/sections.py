"""The sections of a configuration file, but for those of sinks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

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
    WebAddress,
    in_folder,
    registry_name,
)
from cdfd.config.problems import Conflicts
from cdfd.config.values import Ledger, Secret
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
    """Positions that are kept besides the sink: the ledger."""

    ledger: Annotated[Ledger, PlainValidator(Ledger.parse), AfterValidator(_ledger_in_folder), AS_TEXT] = Field(
        default_factory=default_ledger
    )
    """Where positions are kept besides the sink.

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

    Default: a quarter more than polls of every table at `max_interval` take.
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
    """Local disk space for versions that are refined and do not fit into memory. Its files have no names."""

    path: LocalPath | None = None
    """A folder on a local disk.

    Default: the system's folder for temporary files.
    """

    max_bytes: Size = 64 << 30
    """Bytes that all tables together may use."""


class CatchUp(Section):
    """Limits of a transaction with several versions, when there is a backlog. A single version may exceed them."""

    max_rows: Count | None = None
    """Rows of several versions in one transaction.

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


class S3(Section):
    """Access to S3 and compatible stores. cdfd takes keys that you do not set from `AWS_*` variables, profiles and roles."""

    endpoint_url: WebAddress | None = None
    """Address of an S3-compatible store.

    Default: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, or AWS.
    """

    region: Text | None = None
    """Region of the bucket.

    Default: `AWS_REGION`, `AWS_DEFAULT_REGION`.
    """

    access_key_id: SecretText | None = None
    """Id of the access key. The three credentials go together: if you set one, cdfd ignores those of the environment.

    Default: `AWS_ACCESS_KEY_ID`.
    """

    secret_access_key: SecretText | None = None
    """Secret of the access key.

    Default: `AWS_SECRET_ACCESS_KEY`.
    """

    session_token: SecretText | None = None
    """Token of temporary credentials.

    Default: `AWS_SESSION_TOKEN`.
    """

    profile: Text | None = None
    """A profile of the AWS configuration files. Without credentials, cdfd tries web identity, container and instance.

    Default: `AWS_PROFILE`.
    """

    path_style: Flag | None = None
    """Whether URLs are `endpoint/bucket/key` instead of `bucket.endpoint/key`.

    Default: `true` with `endpoint_url`.
    """

    request_payer: Flag = False
    """Whether you agree to pay for requests."""

    server_side_encryption: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = None
    """Encryption of the objects that cdfd writes: the ledger."""

    kms_key_id: Text | None = None
    """Key for the encryption."""

    connect_timeout: Seconds = 5.0
    """Longest time to connect."""

    read_timeout: Seconds = 15.0
    """Longest wait for the next bytes of a response."""

    deadline: Seconds = 60.0
    """Longest time for a request with all its retries. After it, the request is an error."""

    @model_validator(mode="after")
    def _check_credentials(self) -> S3:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise Conflicts(((), "access_key_id and secret_access_key go together"))
        return self

    def options(self) -> dict[str, object]:
        """The options for `open_storage`, with revealed secrets. Never show them."""
        fields = self.set_fields()
        return {name: value.reveal() if isinstance(value, Secret) else value for name, value in fields.items()}


class Storage(Section):
    """Access to the places of tables and ledgers."""

    s3: S3 = S3()

    def options(self, uri: str) -> dict[str, object]:
        """The options for `open_storage` at a location, with revealed secrets. Stores other than S3 have their own configuration."""
        return self.s3.options() if uri.lower().startswith(("s3:", "s3a:")) else {}


class UnityCatalog(Section):
    """Unity Catalog, for tables named `uc://catalog.schema.table`. cdfd takes what you do not set from `UC_ENDPOINT`, `UC_TOKEN` and the
    variables of Databricks, such as `DATABRICKS_HOST` and `DATABRICKS_CLIENT_SECRET`.
    """

    endpoint: WebAddress | None = None
    """Address of the server or workspace, such as `https://catalog.example`.

    Default: `UC_ENDPOINT`, `DATABRICKS_HOST`.
    """

    token: SecretText | None = None
    """A bearer token. A file is read again when it changes.

    Default: `UC_TOKEN`, `DATABRICKS_TOKEN`.
    """

    client_id: Text | None = None
    """Id of an OAuth client, or of a service principal. cdfd gets its tokens and renews them.

    Default: `DATABRICKS_CLIENT_ID`.
    """

    client_secret: SecretText | None = None
    """Secret of the OAuth client.

    Default: `DATABRICKS_CLIENT_SECRET`.
    """

    token_url: WebAddress | None = None
    """Address that gives tokens to the OAuth client.

    Default: `/oidc/v1/token` of the endpoint.
    """

    scope: Text = "all-apis"
    """Scope of the OAuth client's tokens."""

    ca_file: LocalPath | None = None
    """Certificates of authorities that sign the server's.

    Default: those of the system.
    """

    credentials: Literal["vended", "own"] = "vended"
    """Credentials for the tables' files. `vended`: temporary ones of the catalog. `own`: those of `storage.s3`, or of the environment."""

    local_locations: Flag | None = None
    """Whether the catalog's tables may be on the daemon's machine. The daemon can then be made to read every local file that it may read.

    Default: `true` if the catalog is on the same machine.
    """

    requests_per_second: Count = 50
    """Requests a second to the catalog, of all tables together."""

    timeout: Seconds = 15.0
    """Longest time for one request."""

    deadline: Seconds = 30.0
    """Longest time for a request with all its retries. After it, the request is an error, and the table is tried again later."""

    def options(self, s3: S3) -> dict[str, object]:
        """The options for `open_storage`, with revealed secrets. Never show them."""
        options: dict[str, object] = {}
        for name, value in self.set_fields().items():
            if isinstance(value, Secret):
                options[name] = value.reveal()
                if value.file is not None:
                    options[f"{name}_file"] = value.file
            else:
                options[name] = value
        own = s3.options()
        if self.credentials == "vended":
            own = {name: value for name, value in own.items() if name not in _OWN_KEYS}
        return options | {f"s3.{name}": value for name, value in own.items()}


_OWN_KEYS = frozenset({"access_key_id", "secret_access_key", "session_token", "profile"})


class Glue(Section):
    """AWS Glue, for tables named `glue://database.table`. Its credentials are those of `storage.s3`."""

    region: Text | None = None
    """Region of the catalog.

    Default: that of `storage.s3`.
    """

    catalog_id: Text | None = None
    """Account of the catalog.

    Default: your own.
    """

    endpoint_url: WebAddress | None = None
    """Address of the service.

    Default: that of AWS.
    """

    def options(self, s3: S3) -> dict[str, object]:
        """The options for `open_storage`, with revealed secrets. Never show them."""
        own = s3.options()
        shared = {name: value for name, value in own.items() if name in _OWN_KEYS or name == "region"}
        return shared | self.set_fields() | {f"s3.{name}": value for name, value in own.items()}


class Catalogs(Section):
    """Catalogs that name tables."""

    uc: UnityCatalog = UnityCatalog()
    glue: Glue = Glue()


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
    """Regular records about each table, also about those in which nothing happens."""

    interval: Seconds | None = None
    """Time between two heartbeats. Each one writes a record per table to `topic`, and renews the positions of idle
    tables in a ledger of its own. Needs a Kafka sink.

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
    """How often a standby looks whether the leader has ended in good order, and hands over."""

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
    """Run events of the tables' loops, for a receiver of OpenLineage."""

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
