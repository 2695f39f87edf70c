"""The sections of what the daemon tells others about itself."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import PlainValidator

from cdfd.config import values
from cdfd.config.fields import Name, Seconds, SecretText, Section, Text, WebAddress


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
