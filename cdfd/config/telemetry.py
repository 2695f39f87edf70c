"""The sections of what the daemon tells others about itself."""

from __future__ import annotations

from cdfd.config.fields import Name, Seconds, Section


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
