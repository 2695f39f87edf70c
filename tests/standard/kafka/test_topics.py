"""Topics are created as configured, and looked at where they are there."""

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.connection import arguments
from cdfd.sinks.kafka.progress.topic_admin import TopicAdmin
from cdfd.sinks.kafka.progress.topics import (
    ExistingTopic,
    Topic,
    data_topic,
    own_topic,
    progress_topic,
    side_topic,
    tombstones,
)
from cdfd.sinks.kafka.settings import KafkaSettings, Topics
from cdfd.sinks.kafka.signals import signal_topic
from tests.support.kafka.broker import Broker
from tests.support.kafka.reading import Record
from tests.support.kafka.shared import SharedBroker


def open_admin(address: str, timeout: float = 20.0) -> closing[TopicAdmin]:
    return closing(TopicAdmin(arguments(KafkaSettings.model_validate({"bootstrap_servers": address})), timeout=timeout))


@pytest.fixture(scope="module")
def topics(broker: SharedBroker) -> Iterator[TopicAdmin]:
    with open_admin(broker.bootstrap_servers) as admin:
        yield admin


@pytest.fixture(scope="module")
def fresh(needs_broker: None) -> Iterator[Broker]:
    """A broker that never had a transaction."""
    with Broker() as broker:
        yield broker


def error_of(call: Callable[[], object]) -> SinkError:
    with pytest.raises(SinkError) as caught:
        call()
    return caught.value


class TestMissing:
    def test_created_as_configured(self, topics: TopicAdmin, name: str) -> None:
        told = Topics(partitions=3, config={"cleanup.policy": "compact", "max.message.bytes": "2000000"})
        actual = topics.ensure([data_topic(name, told, keyed=True)])[name]
        assert actual.name == name
        assert actual.partitions == 3
        assert actual.compacted
        assert actual.retained
        assert actual.max_message_bytes == 2_000_000
        assert actual.operations >= {"READ", "WRITE", "DESCRIBE"}
        assert topics.find([name, f"{name}-other"]) == {name: actual}

    def test_records_have_the_time_of_the_broker(self, topics: TopicAdmin, name: str) -> None:
        """A daemon's clock that is wrong by days must not make the retention delete new records."""
        own = Topics(config={"message.timestamp.type": "CreateTime"})
        wanted = [
            data_topic(name, Topics(), keyed=True),
            side_topic(f"{name}.side", Topics(), keyed=False),
            progress_topic(name, own),
            data_topic(f"{name}.own", own, keyed=True),
        ]
        times = {topic.config["message.timestamp.type"] for topic in topics.ensure(wanted[:3]).values()}
        assert times == {"LogAppendTime"}
        [actual] = topics.ensure(wanted[3:]).values()
        assert actual.config["message.timestamp.type"] == "CreateTime"

    def test_positions_are_as_safe_as_rows(self, topics: TopicAdmin, name: str) -> None:
        told = Topics(
            config={"min.insync.replicas": "2", "unclean.leader.election.enable": "true", "retention.ms": "1"}
        )
        wanted = [progress_topic(name, told), own_topic(f"{name}.own", told, compacted=True), signal_topic(name, told)]
        for topic in topics.ensure(wanted).values():
            assert topic.config["min.insync.replicas"] == "2"
            assert topic.config["unclean.leader.election.enable"] == "true"
            assert topic.config["retention.ms"] != "1"

    @pytest.mark.parametrize("answers", [1, None], ids=["at first", "until the timeout"])
    def test_a_broker_that_does_not_know_a_new_topic(
        self, broker: SharedBroker, name: str, monkeypatch: pytest.MonkeyPatch, answers: int | None
    ) -> None:
        """Of a cluster, any broker is asked for settings. Its answer is that for a topic which is not there."""
        with open_admin(broker.bootstrap_servers, timeout=20.0 if answers else 1.0) as admin:
            admin.ensure([data_topic(name, Topics(), keyed=True)])
            ask, absent = admin.client.describe_configs, [ConfigResource(ConfigResourceType.TOPIC, f"{name}-absent")]
            asked = iter(range(answers or 1_000))
            monkeypatch.setattr(
                admin.client,
                "describe_configs",
                lambda topics, **options: ask(topics if next(asked, None) is None else absent, **options),
            )
            if answers:
                assert admin.find([name])[name].compacted is False
            else:
                error = error_of(lambda: admin.find([name]))
                assert error.retriable
                assert "brokers do not agree" in str(error)

    def test_several_at_once(self, topics: TopicAdmin, name: str) -> None:
        wanted = [data_topic(f"{name}-{number}", Topics(partitions=number), keyed=False) for number in (1, 2, 3)]
        topics.ensure(wanted[:1])
        actual = topics.ensure(wanted)
        assert {topic.partitions for topic in actual.values()} == {1, 2, 3}
        assert not any(topic.compacted or topic.retained for topic in actual.values())

    def test_none(self, topics: TopicAdmin) -> None:
        assert topics.find([]) == topics.ensure([]) == topics.check([]) == {}

    def test_by_several_at_the_same_time(self, broker: SharedBroker, name: str) -> None:
        def create(_: int) -> ExistingTopic:
            with open_admin(broker.bootstrap_servers) as admin:
                return admin.ensure([progress_topic(name, Topics())])[f"_cdfd_progress.{name}"]

        with ThreadPoolExecutor(4) as pool:
            assert len(set(map(repr, pool.map(create, range(4))))) == 1

    def test_usable_at_once(
        self, topics: TopicAdmin, broker: SharedBroker, name: str, read: Callable[..., list[Record]]
    ) -> None:
        topics.ensure([data_topic(name, Topics(), keyed=False)])
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        producer.send(name, b"value", partition=3).get(timeout=20)
        producer.close()
        assert [record.partition for record in read(name)] == [3]

    @pytest.mark.parametrize(
        ("told", "what"),
        [
            ({"replication_factor": 3}, "replication_factor"),
            ({"config": {"cleanup.policy": "sometimes"}}, "sink.topics.config"),
            ({"config": {"no.such.setting": "1"}}, "sink.topics.config"),
        ],
    )
    def test_what_the_broker_refuses(self, topics: TopicAdmin, name: str, told: dict[str, Any], what: str) -> None:
        wanted = [data_topic(name, Topics(**told), keyed=True)]
        for attempt in (topics.check, topics.ensure):
            error = error_of(lambda attempt=attempt: attempt(wanted))
            assert f"cannot create topic {name}: " in error.what
            assert what in str(error.hint)
            assert not error.retriable
        assert topics.find([name]) == {}

    def test_a_name_that_is_too_much_like_another(self, topics: TopicAdmin, name: str) -> None:
        topics.ensure([Topic(f"{name}.x", 1, 1)])
        error = error_of(lambda: topics.ensure([Topic(f"{name}_x", 1, 1)]))
        assert f"{name}.x" in error.what
        assert "'.' and '_'" in str(error.hint)

    def test_checked_and_not_created(self, topics: TopicAdmin, name: str) -> None:
        there, missing = Topic(f"{name}-there", 1, 1), Topic(f"{name}-missing", 1, 1)
        topics.ensure([there])
        assert set(topics.check([there, missing])) == {there.name}
        assert topics.find([missing.name]) == {}


class TestExistingTopic:
    def test_other_numbers_are_no_fault(self, topics: TopicAdmin, topic: str, create: Callable[..., str]) -> None:
        create(topic, partitions=2)
        wanted = [data_topic(topic, Topics(partitions=7, config={"retention.ms": "1000000"}), keyed=True)]
        assert topics.ensure(wanted) == topics.check(wanted)
        assert topics.find([topic])[topic].partitions == 2

    @pytest.mark.parametrize(
        ("policy", "retention", "fits"),
        [
            ("compact", {}, True),
            ("compact,delete", {"retention_ms": "-1", "retention_bytes": "-1"}, True),
            ("compact,delete", {"retention_ms": "-1", "retention_bytes": "1000000"}, False),
            ("compact,delete", {"retention_ms": "604800000"}, False),
            ("delete", {"retention_ms": "-1", "retention_bytes": "-1"}, False),
        ],
    )
    def test_positions_must_last(
        self,
        topics: TopicAdmin,
        name: str,
        create: Callable[..., str],
        policy: str,
        retention: dict[str, str],
        fits: bool,
    ) -> None:
        wanted = [progress_topic(name, Topics())]
        create(wanted[0].name, cleanup_policy=policy, **retention)
        for attempt in (topics.check, topics.ensure):
            if fits:
                assert attempt(wanted)[wanted[0].name].retained
            else:
                error = error_of(lambda attempt=attempt: attempt(wanted))
                assert f"would lose positions: its cleanup.policy is {policy}" in error.what

    def test_no_compaction_without_keys(self, topics: TopicAdmin, topic: str, create: Callable[..., str]) -> None:
        create(topic, cleanup_policy="compact")
        assert topics.ensure([data_topic(topic, Topics(), keyed=True)])
        error = error_of(lambda: topics.ensure([data_topic(topic, Topics(), keyed=False)]))
        assert "accepts only records with keys" in error.what

    def test_tombstones(self, topics: TopicAdmin, name: str) -> None:
        wanted = [Topic(f"{name}-{policy}", 1, 1, {"cleanup.policy": policy}) for policy in ("compact", "delete")]
        compacted, deleted = topics.ensure(wanted).values()
        assert tombstones("auto", compacted)
        assert not tombstones("auto", deleted)
        hidden = ExistingTopic(name, 1, {}, frozenset())
        for topic in (compacted, deleted, hidden):
            assert tombstones("always", topic)
            assert not tombstones("never", topic)
        assert "DescribeConfigs" in str(error_of(lambda: tombstones("auto", hidden)).hint)


class TestKinds:
    def test_progress(self, topics: TopicAdmin, name: str, admin: KafkaAdminClient) -> None:
        wanted = progress_topic(name, Topics(partitions=9, config={"cleanup.policy": "delete"}))
        assert wanted.name == f"_cdfd_progress.{name}"
        actual = topics.ensure([wanted])[wanted.name]
        assert actual.partitions == 1
        assert actual.retained
        assert actual.config["retention.ms"] == "-1"

    def test_beside_the_rows(self, topics: TopicAdmin, name: str) -> None:
        told = Topics(partitions=9, config={"cleanup.policy": "compact", "max.message.bytes": "2000000"})
        actual = topics.ensure([side_topic(name, told, keyed=False)])[name]
        assert actual.partitions == 1
        assert not actual.compacted
        assert actual.max_message_bytes == 2_000_000


class TestTransactions:
    def test_looking_writes_nothing(self, fresh: Broker, name: str) -> None:
        with open_admin(fresh.bootstrap_servers) as admin:
            admin.check_transactions(name)
            assert admin.find(["__transaction_state"]) == {}

    def test_known_and_unknown_ids(self, fresh: Broker, name: str) -> None:
        producer = KafkaProducer(bootstrap_servers=fresh.bootstrap_servers, transactional_id=name)
        producer.init_transactions()
        with open_admin(fresh.bootstrap_servers) as admin:
            admin.check_transactions(name)
            admin.check_transactions(f"{name}-other")
        producer.begin_transaction()
        producer.abort_transaction()
        producer.close()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
class TestTrouble:
    @pytest.fixture(autouse=True)
    def collected(self) -> Iterator[None]:
        """kafka-python leaves sockets whose connection is refused to the collector."""
        yield
        gc.collect()

    def test_a_broker_that_went_away(self, needs_broker: None, name: str) -> None:
        with Broker() as own, open_admin(own.bootstrap_servers) as admin:
            own.kill()
            for _ in range(2):
                error = error_of(lambda: admin.ensure([Topic(name, 1, 1)]))
                assert error.what.startswith("cannot describe topics: ")
                assert error.hint
                assert error.retriable

    def test_a_broker_that_hangs(self, needs_broker: None, name: str) -> None:
        with Broker() as own, open_admin(own.bootstrap_servers, timeout=1) as admin:
            own.pause()
            error = error_of(lambda: admin.find([name]))
            assert "REQUEST_TIMED_OUT" in error.what
            assert error.retriable

    def test_a_broker_with_a_wrong_idea_of_its_address(self, needs_broker: None, name: str) -> None:
        wrong = {"advertised.listeners": "PLAINTEXT://no-such-host.invalid:9092"}
        with Broker(properties=wrong) as own, open_admin(own.bootstrap_servers) as admin:
            error = error_of(lambda: admin.find([name]))
            assert "the host does not exist" in error.what
            assert "advertised.listeners" in str(error.hint)


def test_a_partition_that_loses_its_leader_meanwhile_is_transient(
    broker: SharedBroker, create: Callable[..., str], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(topic)
    with open_admin(broker.bootstrap_servers) as admin:
        described = admin.client._get_cluster_metadata

        async def without_leaders(*arguments: Any, **options: Any) -> Any:
            answer = await described(*arguments, **options)
            for partition in answer["topics"][0]["partitions"]:
                partition["leader_id"] = -1
            return answer

        monkeypatch.setattr(admin.client, "_get_cluster_metadata", without_leaders)
        error = error_of(lambda: admin.bounds(topic, 0, committed=True))
    assert error.what == f"cannot read the offsets of topic {topic}: a partition has no leader"
    assert error.hint == "Check that all brokers run"
    assert error.retriable
