"""Topics: those that we need are created where they are missing, and looked at where they are there. They are never altered.

All methods block, each for a limited time.

Positions are in a topic per pipeline, `_cdfd_progress.<pipeline>`, of one partition. A reader of committed records sees a partition up to
the first transaction that is open; on a partition shared with other pipelines, any of them that hangs would hide our newest position for as
long as its transaction may take. A share of a common topic's partitions, by a hash, is no way out: two of ten pipelines on fifty
partitions meet more often than not, and a change of the number of partitions would lose all positions. A topic of its own can also be
given its own access rights, and goes away with its pipeline.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import KafkaError, RetriableError, TransactionalIdNotFoundError, for_code

from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.connection import network, reason_of
from cdfd.sinks.kafka.settings import Topics

log = logging.getLogger("cdfd.kafka")

PROGRESS_PREFIX = "_cdfd_progress."
PROGRESS_PARTITION = 0

_UNKNOWN_TOPIC, _LEADER_NOT_AVAILABLE, _ALREADY_EXISTS = 3, 5, 36
_TRANSACTIONS = "__transaction_state"

_PROGRESS_CONFIG = {
    "cleanup.policy": "compact",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    # A start reads all that is not compacted yet, and the newest segment never is. By default it has a gigabyte, or a week. These are the
    # smallest that managed clusters allow.
    "segment.bytes": str(50 << 20),
    "segment.ms": str(4 * 3_600_000),
    # How long the marks of transactions stay, which are more than half of the topic. They are of use to those who read at that time.
    "delete.retention.ms": str(600_000),
}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that we need.

    Attributes:
        name: of the topic.
        partitions: how many it is created with.
        replication_factor: what it is created with.
        config: what it is created with.
        keyed: whether all records that we write have keys.
        lasting: whether the newest record of each key must stay for ever; then it is also read.
    """

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = field(default_factory=dict)
    keyed: bool = True
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """A topic that is there.

    Attributes:
        name: of the topic.
        partitions: how many it has.
        config: all its settings; none where we may not see them.
        operations: what we may do, by Kafka's names (`WRITE`, `READ`, ...); none where the broker does not tell.
    """

    name: str
    partitions: int
    config: Mapping[str, str]
    operations: frozenset[str]

    @property
    def compacted(self) -> bool | None:
        """Whether records with keys that have a newer record go away; None where we may not see it."""
        policy = self.config.get("cleanup.policy")
        return None if policy is None else "compact" in policy.split(",")

    @property
    def lasting(self) -> bool | None:
        """Whether the newest record of each key stays for ever; None where we may not see it."""
        if self.compacted is None:
            return None
        deletes = "delete" in self.config["cleanup.policy"].split(",")
        unlimited = all(self.config.get(name) == "-1" for name in ("retention.ms", "retention.bytes"))
        return self.compacted and (unlimited or not deletes)

    @property
    def max_message_bytes(self) -> int | None:
        """What one record batch may have, compressed; None where we may not see it."""
        size = self.config.get("max.message.bytes")
        return None if size is None else int(size)


def progress_topic(pipeline: str, topics: Topics) -> Topic:
    """Where the positions of a pipeline's tables are, all in `PROGRESS_PARTITION`."""
    return Topic(PROGRESS_PREFIX + pipeline, 1, topics.replication_factor, _PROGRESS_CONFIG, lasting=True)


def data_topic(name: str, topics: Topics, *, keyed: bool) -> Topic:
    """Where a table's change rows go, with or without keys."""
    return Topic(name, topics.partitions, topics.replication_factor, dict(topics.config), keyed)


def side_topic(name: str, topics: Topics) -> Topic:
    """Where what goes with the rows goes: schema changes, transactions, what cannot be delivered. One partition: all of it in order."""
    config = {key: value for key, value in topics.config.items() if key != "cleanup.policy"}
    return Topic(name, 1, topics.replication_factor, config, keyed=False)


def tombstones(setting: Literal["auto", "always", "never"], found: Found) -> bool:
    """Whether a delete is followed by a record without value; `auto`: on compacted topics.

    Raises:
        SinkError: it depends on the topic, whose settings we may not see.
    """
    if setting != "auto":
        return setting == "always"
    if found.compacted is None:
        raise SinkError(
            f"whether topic {found.name} is compacted cannot be seen",
            hint="Give the user DescribeConfigs on it, or set sink.tombstones to always or never",
        )
    return found.compacted


class TopicAdmin:
    """Looks at topics and creates them.

    Args:
        arguments: of `connection.arguments`.
        timeout: seconds to connect in, and seconds for each request.

    Raises:
        SinkError: there is no broker, or it does not let us in.
    """

    def __init__(self, arguments: Mapping[str, Any], *, timeout: float = 20.0) -> None:
        self._timeout_ms = int(timeout * 1000)
        with network(arguments) as options:
            self._client = KafkaAdminClient(
                **options, bootstrap_timeout_ms=self._timeout_ms, request_timeout_ms=self._timeout_ms
            )

    def close(self) -> None:
        """Let go of connections and threads."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def find(self, names: Iterable[str]) -> dict[str, Found]:
        """Those of the topics that are there.

        Raises:
            SinkError: the broker does not tell; a partition has no leader.
        """
        names = sorted(set(names))
        with _translated("look at topics"):
            described = {topic["name"]: topic for topic in self._client.describe_topics(names)}
        present = [name for name in names if _is_there(name, described[name])]
        configs = self._configs(present)
        return {name: _found(name, described[name], configs.get(name, {})) for name in present}

    def ensure(self, topics: Sequence[Topic]) -> dict[str, Found]:
        """All the topics, those created that were missing.

        Raises:
            SinkError: one is not as we need it, or cannot be created.
        """
        found = self.find(topic.name for topic in topics)
        absent = [topic for topic in topics if topic.name not in found]
        if absent:
            self._create(absent, only_validate=False)
            found |= self._await([topic.name for topic in absent])
        for topic in topics:
            _verify(topic, found[topic.name])
        return found

    def check(self, topics: Sequence[Topic]) -> dict[str, Found]:
        """Like `ensure`, without creating any: those that are there. For the others the broker is asked whether it would create them.

        Raises:
            SinkError: one is not as we need it, or could not be created.
        """
        found = self.find(topic.name for topic in topics)
        for topic in topics:
            if topic.name in found:
                _verify(topic, found[topic.name])
        self._create([topic for topic in topics if topic.name not in found], only_validate=True)
        return found

    def bounds(self, topic: str, partition: int, *, committed: bool) -> tuple[int, int]:
        """The first offset of a partition and the one after the last.

        Args:
            topic: an existing one.
            partition: of it.
            committed: only up to the first transaction that is open.
        """
        place = TopicPartition(topic, partition)
        level = "read_committed" if committed else "read_uncommitted"
        with _translated(f"look at the ends of topic {topic}"):
            first, last = (
                self._client.list_partition_offsets({place: spec}, level)[place].offset
                for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
            )
        return first, last

    def check_transactions(self, transactional_id: str) -> None:
        """Whether we may use transactions of that id, as far as this can be seen without using them.

        Raises:
            SinkError: we may not.
        """
        with _translated(f"use transactional id {transactional_id}"):
            internal = self._client.describe_topics([_TRANSACTIONS])[0]
            if internal["error_code"] == _UNKNOWN_TOPIC:
                return  # Nobody ever used transactions here, and asking would create the topic.
            try:
                self._client.describe_transactions([transactional_id])
            except TransactionalIdNotFoundError:
                return

    def _configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """All settings by topic. Topics whose settings we may not see have none: kafka-python leaves the error out."""
        if not names:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        with _translated("look at settings of topics"):
            answer = self._client.describe_configs(resources, config_filter="all")
        return {
            name: {key: told["value"] for key, told in config.items() if told["value"] is not None}
            for name, config in answer.get("topic", {}).items()
        }

    def _create(self, topics: Sequence[Topic], *, only_validate: bool) -> None:
        if not topics:
            return
        wanted = {
            topic.name: {
                "num_partitions": topic.partitions,
                "replication_factor": topic.replication_factor,
                "configs": dict(topic.config),
            }
            for topic in topics
        }
        with _translated("create topics"):
            answer = self._client.create_topics(
                wanted, timeout_ms=self._timeout_ms, validate_only=only_validate, raise_errors=False
            )
        for told in answer["topics"]:
            # Another daemon, or another table of this one, may have been faster.
            if told["error_code"] not in (0, _ALREADY_EXISTS):
                raise _refused(f"create topic {told['name']}", told["error_code"], told.get("error_message"))
            if told["error_code"] == 0 and not only_validate:
                partitions = wanted[told["name"]]["num_partitions"]
                log.info("topic %s was missing and is created", told["name"], extra={"partitions": partitions})

    def _await(self, names: Sequence[str]) -> dict[str, Found]:
        """Topics just created, as soon as they can be used."""
        deadline = time.monotonic() + self._timeout_ms / 1000
        pause = 0.01
        while True:
            try:
                found = self.find(names)
            except SinkError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
            else:
                if len(found) == len(set(names)):
                    return found
                if time.monotonic() > deadline:
                    raise SinkError("topics that were created cannot be seen", retriable=True)
            time.sleep(pause)
            pause = min(2 * pause, 0.2)


def _is_there(name: str, told: Mapping[str, Any]) -> bool:
    """What metadata says of a topic. `SinkError` where it cannot be told, or used."""
    code = told["error_code"]
    if code == _UNKNOWN_TOPIC:
        return False
    if code != 0:
        raise _refused(f"look at topic {name}", code, None)
    for partition in told["partitions"]:
        if partition["error_code"] == _LEADER_NOT_AVAILABLE or partition["leader_id"] < 0:
            what = f"partition {partition['partition_index']} of topic {name} has no leader"
            raise SinkError(what, hint="Do all brokers run?", retriable=True)
    return True


def _found(name: str, told: Mapping[str, Any], config: Mapping[str, str]) -> Found:
    operations = told.get("authorized_operations")
    return Found(name, len(told["partitions"]), config, frozenset(operations or ()))


def _verify(topic: Topic, found: Found) -> None:
    """`SinkError` where a topic that is there is not as we need it. What cannot be seen is taken for right."""
    needed = {"WRITE", "READ"} if topic.lasting else {"WRITE"}
    lacking = sorted(needed - found.operations) if found.operations else []
    if lacking:
        allowed = " and ".join(name.title() for name in lacking)
        raise SinkError(f"no right to {allowed} topic {found.name}", hint="Give the user of sink.security that right")
    if topic.lasting and found.lasting is False:
        raise SinkError(
            f"topic {found.name} would lose positions: its cleanup.policy is {found.config['cleanup.policy']}",
            hint="Set its cleanup.policy to compact",
        )
    if found.compacted and not topic.keyed:
        raise SinkError(
            f"topic {found.name} is compacted, and takes only records with keys",
            hint="Give the table a key, or the topic another cleanup.policy",
        )


_HINTS = {
    17: "Kafka takes letters, digits, '.', '_' and '-' in names of topics, and no two that differ only in '.' and '_'",
    29: "Give the user of sink.security Describe and Write on the topic, and Create where it is missing; or create it beforehand",
    31: "Give the user of sink.security Create on the cluster or on the topic, or create the topic beforehand",
    37: "Check sink.topics.partitions",
    38: "There may be fewer brokers than sink.topics.replication_factor",
    40: "Check sink.topics.config",
    44: "The cluster has a policy for topics: create the topic beforehand, or change sink.topics",
    53: "Give the user of sink.security Write and Describe on the transactional id",
    65: "Give the user of sink.security Describe on the topic",
}


def _refused(doing: str, code: int, message: str | None) -> SinkError:
    error = for_code(code)
    reason = message or error.message or f"error {code}"
    return SinkError(
        f"cannot {doing}: {reason.rstrip('.')}", hint=_HINTS.get(code), retriable=issubclass(error, RetriableError)
    )


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        code = getattr(error, "errno", None)
        if code is not None and code > 0:
            raise _refused(doing, code, None) from error
        reason, hint = reason_of(error)
        raise SinkError(f"cannot {doing}: {reason}", hint=hint, retriable=isinstance(error, RetriableError)) from error
    except RuntimeError as error:
        # No controller was found, twice. It has no error of its own for that.
        raise SinkError(f"cannot {doing}: {error}", retriable=True) from error
