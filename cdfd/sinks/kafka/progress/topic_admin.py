"""An administrator of a cluster: creates missing topics and checks existing ones. It never alters a topic.

All methods block, each for a limited time.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import KafkaError, RetriableError, TransactionalIdNotFoundError, UnknownError, for_code

from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.connection import network
from cdfd.sinks.kafka.client.failures import TRANSIENT
from cdfd.sinks.kafka.client.producer import known_id
from cdfd.sinks.kafka.client.reasons import reason_of
from cdfd.sinks.kafka.progress.topics import ExistingTopic, Topic, verify

log = logging.getLogger("cdfd.kafka")

CONNECT_SECONDS = 10.0
"""Timeout of the first connection. It is short, because a mistyped address takes this long to report."""

_UNKNOWN_TOPIC, _LEADER_NOT_AVAILABLE, _ALREADY_EXISTS = 3, 5, 36
_TRANSACTIONS = "__transaction_state"
_TRANSACTION_REPLICAS = "transaction.state.log.replication.factor"


class _Admin(KafkaAdminClient):  # type: ignore[misc]  # kafka-python has no types
    """A client whose `describe_configs` leaves out topics that the broker does not know.

    kafka-python drops the error: the settings are empty, as for a topic whose settings the user may not read. Any broker answers. After a
    topic is created, it takes a moment until each of them knows it.
    """

    @classmethod
    def _describe_configs_process_responses(cls, responses: Sequence[Any], *options: Any) -> Any:
        for response in responses:
            response.results = [result for result in response.results if result.error_code != _UNKNOWN_TOPIC]
        return super()._describe_configs_process_responses(responses, *options)


class TopicAdmin:
    """Describes topics and creates them.

    Args:
        arguments: of `connection.arguments`.
        timeout: seconds for the connection, and for each request.
        request_timeout: seconds for each request; None: `timeout`.

    Raises:
        SinkError: the cluster cannot be reached, or refuses access.

    Attributes:
        client: of kafka-python.
    """

    def __init__(
        self, arguments: Mapping[str, Any], *, timeout: float = 20.0, request_timeout: float | None = None
    ) -> None:
        self._timeout_ms = int((request_timeout or timeout) * 1000)
        with network(arguments) as options:
            bootstrap_ms = int(timeout * 1000)
            self.client = _Admin(**options, bootstrap_timeout_ms=bootstrap_ms, request_timeout_ms=self._timeout_ms)

    def close(self) -> None:
        """Release connections and threads."""
        self.client.close()

    def find(self, names: Iterable[str]) -> dict[str, ExistingTopic]:
        """The existing topics among `names`.

        Raises:
            SinkError: the broker refuses the request, a partition has no leader, or brokers do not agree on whether a topic exists.
        """
        names = sorted(set(names))
        pauses = self._pauses()
        while True:
            with _translate_errors("describe topics"):
                described = {topic["name"]: topic for topic in self.client.describe_topics(names)}
            present = [name for name in names if _exists(name, described[name])]
            if not present:
                configs = {}
            else:
                resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in present]
                # Without settings of topics whose settings the user may not read, and without topics that the broker does not know.
                with _translate_errors("read settings of topics"):
                    answer = self.client.describe_configs(resources, config_filter="all")
                configs = {
                    name: {
                        key: described["value"] for key, described in config.items() if described["value"] is not None
                    }
                    for name, config in answer.get("topic", {}).items()
                }
            unknown = [name for name in present if name not in configs]
            if not unknown:
                return {
                    name: ExistingTopic(
                        name,
                        len(described[name]["partitions"]),
                        configs[name],
                        frozenset(described[name].get("authorized_operations") or ()),
                        known_id(described[name].get("topic_id")),
                    )
                    for name in present
                }
            if not next(pauses):
                raise SinkError(f"brokers do not agree on whether topic {unknown[0]} exists", retriable=True)

    def topic_id(self, name: str) -> str | None:
        """The id of a topic; None if it is missing, or the broker reports none. `SinkError` if the broker cannot be asked."""
        with _translate_errors(f"describe topic {name}"):
            (described,) = self.client.describe_topics([name])
        return known_id(described.get("topic_id"))

    def ensure(
        self, topics: Sequence[Topic], existing: Mapping[str, ExistingTopic] | None = None
    ) -> dict[str, ExistingTopic]:
        """All the topics, after creating the missing ones.

        Args:
            topics: the topics.
            existing: what `find` returned for them just now; None: not asked yet.

        Raises:
            SinkError: a topic is unsuitable, or cannot be created.
        """
        present = self.find(topic.name for topic in topics) if existing is None else dict(existing)
        absent = [topic for topic in topics if topic.name not in present]
        if absent:
            self._create(absent, only_validate=False)
            present |= self._wait_for([topic.name for topic in absent])
        for topic in topics:
            verify(topic, present[topic.name])
        return present

    def check(self, topics: Sequence[Topic]) -> dict[str, ExistingTopic]:
        """The existing topics, without creating any. Asks the broker whether it would create the others.

        Raises:
            SinkError: a topic is unsuitable, or could not be created.
        """
        present = self.find(topic.name for topic in topics)
        for topic in topics:
            if topic.name in present:
                verify(topic, present[topic.name])
        self._create([topic for topic in topics if topic.name not in present], only_validate=True)
        return present

    def bounds(self, topic: str, partition: int, *, committed: bool, first: int | None = None) -> tuple[int, int]:
        """The first offset of a partition and the one after the last.

        Args:
            topic: an existing one.
            partition: one of its partitions.
            committed: whether to end at the first open transaction.
            first: the first offset, where it is known.
        """
        partition_of = TopicPartition(topic, partition)
        level = "read_committed" if committed else "read_uncommitted"
        with _translate_errors(f"read the offsets of topic {topic}"):
            if first is None:
                earliest = self.client.list_partition_offsets({partition_of: OffsetSpec.EARLIEST}, level)
                first = int(earliest[partition_of].offset)
            return first, int(
                self.client.list_partition_offsets({partition_of: OffsetSpec.LATEST}, level)[partition_of].offset
            )

    def has_records(self, topic: str, partitions: int) -> bool:
        """Whether a topic has ever had a record, also one that has expired."""
        ends = {TopicPartition(topic, number): OffsetSpec.LATEST for number in range(partitions)}
        with _translate_errors(f"read the offsets of topic {topic}"):
            return any(each.offset > 0 for each in self.client.list_partition_offsets(ends).values())

    def check_transactions(self, transactional_id: str) -> None:
        """Check the right to use a transactional id, as far as possible without a transaction.

        Raises:
            SinkError: the user has no right, or the cluster cannot have transactions.
        """
        with _translate_errors(f"use transactional id {transactional_id}"):
            if not self.has_transaction_log():
                return  # The cluster has never had a transaction, and the request would create the topic.
            try:
                self.client.describe_transactions([transactional_id])
            except TransactionalIdNotFoundError:
                return

    def has_transaction_log(self) -> bool:
        """Whether the cluster has the topic of its transactions, which it creates for the first one.

        Raises:
            SinkError: the cluster cannot create it. Brokers log this, and leave clients waiting.
        """
        with _translate_errors("describe the topic of transactions"):
            if self.client.describe_topics([_TRANSACTIONS])[0]["error_code"] != _UNKNOWN_TOPIC:
                return True
            brokers = [str(broker["broker_id"]) for broker in self.client.describe_cluster()["brokers"]]
            resource = ConfigResource(ConfigResourceType.BROKER, brokers[0])
            answer = self.client.describe_configs([resource], config_filter="all")
        # No settings: the user may not read them.
        replicas = int(answer.get("broker", {}).get(brokers[0], {}).get(_TRANSACTION_REPLICAS, {"value": 1})["value"])
        if replicas > len(brokers):
            raise SinkError(
                f"the cluster cannot create its topic {_TRANSACTIONS}: {_TRANSACTION_REPLICAS} is {replicas}, and the number of "
                f"brokers {len(brokers)}",
                hint=f"Start more brokers, or set {_TRANSACTION_REPLICAS} to {len(brokers)} in the brokers' configuration",
                retriable=True,
            )
        return False

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
        with _translate_errors("create topics"):
            answer = self.client.create_topics(
                wanted, timeout_ms=self._timeout_ms, validate_only=only_validate, raise_errors=False
            )
        for described in answer["topics"]:
            # Another daemon or table may have created it at the same time.
            if described["error_code"] not in (0, _ALREADY_EXISTS):
                raise _refusal(
                    f"create topic {described['name']}", described["error_code"], described.get("error_message")
                )
            if described["error_code"] == 0 and not only_validate:
                partitions = wanted[described["name"]]["num_partitions"]
                log.info("topic %s was missing and is created", described["name"], extra={"partitions": partitions})

    def _wait_for(self, names: Sequence[str]) -> dict[str, ExistingTopic]:
        """Wait until new topics can be used."""
        pauses = self._pauses()
        while True:
            try:
                topics = self.find(names)
            except SinkError as error:
                if not error.retriable or not next(pauses):
                    raise
            else:
                if len(topics) == len(set(names)):
                    return topics
                if not next(pauses):
                    raise SinkError("the new topics are not visible yet", retriable=True)

    def _pauses(self) -> Iterator[bool]:
        """Sleeps between attempts, longer each time, and yields True; False without a sleep, once the timeout is over."""
        deadline = time.monotonic() + self._timeout_ms / 1000
        pause = 0.01
        while time.monotonic() < deadline:
            time.sleep(pause)
            yield True
            pause = min(2 * pause, 0.2)
        yield False


def _exists(name: str, described: Mapping[str, Any]) -> bool:
    """Whether a topic exists, from its metadata. `SinkError` if it cannot be described or used."""
    code = described["error_code"]
    if code == _UNKNOWN_TOPIC:
        return False
    if code != 0:
        raise _refusal(f"describe topic {name}", code, None)
    for partition in described["partitions"]:
        if partition["error_code"] == _LEADER_NOT_AVAILABLE or partition["leader_id"] < 0:
            what = f"partition {partition['partition_index']} of topic {name} has no leader"
            raise SinkError(what, hint="Check that all brokers run", retriable=True)
    return True


_HINTS = {
    17: "Topic names have letters, digits, '.', '_' and '-'; two names may not differ only in '.' and '_'",
    29: "Give the user of sink.security Describe and Write on the topic, and Create if it is missing; or create it beforehand",
    31: "Give the user of sink.security Create on the cluster or on the topic, or create the topic beforehand",
    37: "Check sink.topics.partitions",
    38: "There may be fewer brokers than sink.topics.replication_factor",
    40: "Check sink.topics.config",
    44: "The cluster has a policy for topics: create the topic beforehand, or change sink.topics",
    53: "Give the user of sink.security Write and Describe on the transactional id",
    65: "Give the user of sink.security Describe on the topic",
}


def _refusal(doing: str, code: int, message: str | None) -> SinkError:
    error = for_code(code)
    reason = message or error.message or f"error {code}"
    return SinkError(
        f"cannot {doing}: {reason.rstrip('.')}", hint=_HINTS.get(code), retriable=issubclass(error, RetriableError)
    )


@contextmanager
def _translate_errors(doing: str) -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        code = getattr(error, "errno", None)
        if code is not None and code > 0:
            raise _refusal(doing, code, None) from error
        reason, hint = reason_of(error)
        retriable = isinstance(error, TRANSIENT) or code == UnknownError.errno  # which a broker that stops may answer
        raise SinkError(f"cannot {doing}: {reason}", hint=hint, retriable=retriable) from error
    except RuntimeError as error:
        # kafka-python found no controller in two attempts, for which it has no error class.
        raise SinkError(f"cannot {doing}: {error}", retriable=True) from error
