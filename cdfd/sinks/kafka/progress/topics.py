"""Topics of a pipeline: their names and settings, and what makes an existing one unsuitable.

Each pipeline has a topic for positions, `_cdfd_progress.<pipeline>`, with one partition. A reader of committed records cannot see beyond the
first open transaction of a partition. If pipelines shared a partition, one that hangs would hide the positions of the others until its
transaction times out. Hashing pipelines to the partitions of a common topic does not help: of ten pipelines on fifty partitions, two probably
share one, and adding partitions would lose all positions. A topic per pipeline can also have its own access rights, and can be deleted with
its pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cdfd.errors import SinkError
from cdfd.sinks.kafka.settings import Topics

PROGRESS_PREFIX = "_cdfd_progress."
PROGRESS_PARTITION = 0


_COMMON_CONFIG = {
    # The broker's clock. If our clock were behind by days, the topic's retention would delete new rows; if it were ahead, the broker would
    # refuse them.
    "message.timestamp.type": "LogAppendTime",
}
_PROGRESS_CONFIG = _COMMON_CONFIG | {
    "cleanup.policy": "compact",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    # A start reads everything that is not compacted, which includes the newest segment. Its default is a gigabyte or a week. These are the
    # smallest values that managed clusters allow.
    "segment.bytes": str(50 << 20),
    "segment.ms": str(4 * 3_600_000),
    # How long markers of transactions stay, which are more than half of the topic. Only current readers need them.
    "delete.retention.ms": str(600_000),
}
_DURABILITY = ("min.insync.replicas", "unclean.leader.election.enable")


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that the sink needs.

    Attributes:
        name: of the topic.
        partitions: number of partitions, if it is created.
        replication_factor: replication factor, if it is created.
        config: settings, if it is created.
        keyed: whether all of our records have keys.
        retained: whether the topic must keep the newest record of each key forever. Such a topic is also read.
        verify: raises a `SinkError` if the existing topic is unsuitable for another reason.
    """

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(default_factory=dict)
    keyed: bool = True
    retained: bool = False
    verify: Callable[[ExistingTopic], None] | None = None


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """An existing topic.

    Attributes:
        name: of the topic.
        partitions: number of partitions.
        config: all settings; empty if the user may not read them.
        operations: the allowed operations, by Kafka's names (`WRITE`, `READ`, ...); empty if the broker does not report them.
        id: no other topic ever has it, also none of the same name; None if the broker does not report it.
    """

    name: str
    partitions: int
    config: Mapping[str, str]
    operations: frozenset[str]
    id: str | None = None

    @property
    def compacted(self) -> bool | None:
        """Whether the topic is compacted; None if the user may not read its settings."""
        policy = self.config.get("cleanup.policy")
        return None if policy is None else "compact" in policy.split(",")

    @property
    def retained(self) -> bool | None:
        """Whether the topic keeps the newest record of each key forever; None if the user may not read its settings."""
        if self.compacted is None:
            return None
        deletes = "delete" in self.config["cleanup.policy"].split(",")
        unlimited = all(self.config.get(name) == "-1" for name in ("retention.ms", "retention.bytes"))
        return self.compacted and (unlimited or not deletes)

    @property
    def max_message_bytes(self) -> int | None:
        """Size limit of a compressed record batch in bytes; None if the user may not read the settings."""
        size = self.config.get("max.message.bytes")
        return None if size is None else int(size)


def durability(topics: Topics) -> Mapping[str, str]:
    """The settings of created topics by which no acknowledged record is lost: a position must be as safe as its rows."""
    return {key: topics.config[key] for key in _DURABILITY if key in topics.config}


def progress_topic(pipeline: str, topics: Topics) -> Topic:
    """The topic with the positions of a pipeline's tables, all in `PROGRESS_PARTITION`."""
    config = {**_PROGRESS_CONFIG, **durability(topics)}
    return Topic(PROGRESS_PREFIX + pipeline, 1, topics.replication_factor, config, retained=True)


def data_topic(name: str, topics: Topics, *, keyed: bool) -> Topic:
    """The topic of a table's change rows, with or without keys."""
    return Topic(name, topics.partitions, topics.replication_factor, {**_COMMON_CONFIG, **topics.config}, keyed)


def side_topic(name: str, topics: Topics, *, keyed: bool) -> Topic:
    """A topic for schema changes, versions or oversized records. It has one partition, to keep their order."""
    config = {key: value for key, value in topics.config.items() if key != "cleanup.policy"}
    return Topic(name, 1, topics.replication_factor, _COMMON_CONFIG | config, keyed)


def own_topic(name: str, topics: Topics, *, compacted: bool) -> Topic:
    """A topic for records of the daemon itself, which have keys. If it is compacted, the newest record of each key stays."""
    if not compacted:
        return side_topic(name, topics, keyed=True)
    config = {**_COMMON_CONFIG, "cleanup.policy": "compact", **durability(topics)}
    return Topic(name, 1, topics.replication_factor, config)


def tombstones(setting: Literal["auto", "always", "never"], existing: ExistingTopic) -> bool:
    """Whether a record without value follows a delete; `auto`: on compacted topics.

    Raises:
        SinkError: it depends on the topic's settings, which the user may not read.
    """
    if setting != "auto":
        return setting == "always"
    if existing.compacted is None:
        raise SinkError(
            f"cannot read whether topic {existing.name} is compacted",
            hint="Give the user DescribeConfigs on it, or set sink.tombstones to always or never",
        )
    return existing.compacted


def verify(topic: Topic, existing: ExistingTopic) -> None:
    """`SinkError` if an existing topic is unsuitable. Settings that the user may not read count as suitable."""
    needed = {"WRITE", "READ"} if topic.retained else {"WRITE"}
    lacking = sorted(needed - existing.operations) if existing.operations else []
    if lacking:
        allowed = " and ".join(name.title() for name in lacking)
        raise SinkError(
            f"no right to {allowed} topic {existing.name}", hint="Give the user of sink.security that right"
        )
    if topic.retained and existing.retained is False:
        raise SinkError(
            f"topic {existing.name} would lose positions: its cleanup.policy is {existing.config['cleanup.policy']}",
            hint="Set its cleanup.policy to compact",
        )
    if existing.compacted and not topic.keyed:
        raise SinkError(
            f"topic {existing.name} is compacted, and accepts only records with keys",
            hint="Give the table a key, or the topic another cleanup.policy",
        )
    if topic.verify is not None:
        topic.verify(existing)
