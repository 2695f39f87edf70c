"""A Kafka sink whose producer is fenced, killed, cut off or given up: what counts is there once, and the next sink knows where it stands."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from cdfd.errors import FencedError, SinkError
from cdfd.model.control import Control, Pause
from cdfd.sinks.kafka.client.kafka_python import KafkaPythonProducer
from cdfd.sinks.kafka.client.producer import Producer, ProducerSettings, send_record
from cdfd.sinks.kafka.destination import MakeProducer
from cdfd.sinks.kafka.progress import records as progress_records
from cdfd.sinks.kafka.progress.positions import check, move_position
from cdfd.sinks.kafka.progress.records import Progress, key_of, progress_of, value_of
from cdfd.sinks.kafka.transactions.sink import KafkaSink
from tests.support.axes import under_test
from tests.support.cache import ROOT
from tests.support.kafka.broker import Broker
from tests.support.kafka.encoders import encoders
from tests.support.kafka.proxy import END_TXN, Fate, Proxy
from tests.support.kafka.reading import read_topic
from tests.support.kafka.shared import SharedBroker
from tests.support.kafka.sinking import PRODUCERS, Place, Read, at, deliver, ids, rows


@pytest.fixture(params=under_test("producer", PRODUCERS))
def producer(request: pytest.FixtureRequest) -> MakeProducer:
    return PRODUCERS[request.param]


@pytest.fixture
def servers(broker: SharedBroker) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def another(servers: str, name: str) -> Iterator[KafkaProducer]:
    """Another table's producer."""
    with closing(KafkaProducer(bootstrap_servers=servers, transactional_id=f"other.{name}")) as other:
        other.init_transactions()
        yield other


async def failure_of(sink: KafkaSink, *batches: Any) -> SinkError:
    with pytest.raises(SinkError) as raised:
        await deliver(sink, *batches)
    return raised.value


class TestTakenOver:
    async def test_the_first_of_two_is_fenced(
        self, producer: MakeProducer, servers: str, name: str, read: Read
    ) -> None:
        place = Place(servers, name)
        async with place.sink(producer=producer) as first:
            await deliver(first, rows(0))
            delivery = await first.begin(at(1))
            await delivery.write(rows(*range(1000, 6000)))
            async with place.sink(producer=producer) as second:
                assert await second.last_position() == at(1)
                await deliver(second, rows(1))
                with pytest.raises(FencedError) as raised:
                    await delivery.commit(at(2))
                assert raised.value.table == "orders"
                with pytest.raises(SinkError):
                    await first.last_position()
                await delivery.abort()
                await deliver(second, rows(2))
        assert ids(read(place.topic, at_least=3)) == [0, 1, 2]
        assert await place.stored_position() == at(3)

    async def test_a_commit_just_before_the_other_is_fenced_counts(
        self, producer: MakeProducer, servers: str, name: str, read: Read
    ) -> None:
        """The newer process reads the position after it has fenced the older one."""
        place, loop = Place(servers, name), asyncio.get_running_loop()
        async with place.sink(producer=producer) as first:
            await deliver(first, rows(0))

            def made(settings: ProducerSettings) -> Producer:
                second = producer(settings)
                fence = second.init_transactions

                def init_transactions() -> None:
                    asyncio.run_coroutine_threadsafe(deliver(first, rows(1)), loop).result(30)
                    fence()

                vars(second)["init_transactions"] = init_transactions
                return second

            async with place.sink(producer=made) as sink:
                assert await sink.last_position() == at(2)
                await deliver(sink, rows(2))
                assert isinstance(await failure_of(first, rows(3)), FencedError)
        assert ids(read(place.topic, at_least=3)) == [0, 1, 2]

    async def test_one_that_waited_at_the_tip_is_fenced(self, producer: MakeProducer, servers: str, name: str) -> None:
        place = Place(servers, name)
        async with place.sink(producer=producer) as first:
            await deliver(first, rows(0))
            async with place.sink(producer=producer):
                assert isinstance(await failure_of(first, rows(1)), FencedError)

    async def test_tables_of_a_pipeline_do_not_disturb_each_other(self, servers: str, name: str, read: Read) -> None:
        places = [Place(servers, name, table=table) for table in ("orders", "customers")]
        async with places[0].sink() as orders, places[1].sink() as customers:
            for number in range(5):
                await asyncio.gather(deliver(orders, rows(number)), deliver(customers, rows(number), rows(9)))
        async with places[0].sink() as orders, places[1].sink() as customers:
            assert await orders.last_position() == await customers.last_position() == at(5)
        assert ids(read(places[0].topic, at_least=5)) == list(range(5))


KILLED = """
import asyncio, sys
from tests.support.kafka.sinking import PRODUCERS, Place, at, deliver, rows
from tests.support.cache import ROOT

async def main(servers, name, producer):
    place = Place(servers, name)
    sink = await place.open(producer=PRODUCERS[producer])
    await deliver(sink, rows(0))
    delivery = await sink.begin(at(1))
    for _ in range(8):
        await delivery.write(rows(*range(1000, 6000)))
    print("sending", flush=True)
    while True:
        await delivery.write(rows(*range(1000, 6000)))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", under_test("producer", PRODUCERS))
async def test_what_a_killed_process_left_open_never_was(servers: str, name: str, kind: str, read: Read) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, servers, name, kind],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"sending\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    place = Place(servers, name)
    assert len(read_topic(servers, place.topic, at_least=2, committed=False)) > 1, "nothing was under way"

    async with place.sink(producer=PRODUCERS[kind]) as sink:
        assert await sink.last_position() == at(1)
        await deliver(sink, rows(1))
    assert ids(read(place.topic, at_least=2)) == [0, 1]


@pytest.mark.parametrize("fate", ["unanswered", "lost"])
def test_a_commit_without_an_answer(
    producer: MakeProducer, proxy: Proxy, broker_behind: tuple[Proxy, Broker], name: str, fate: Fate
) -> None:
    """The client asks again, or gives up: either way the next sink knows, and nothing is lost or doubled."""

    async def scenario() -> list[int]:
        place = Place(proxy.address, name, timeout=6.0, closing_timeout=1.0)
        expected = []
        for number in range(3):
            async with place.sink(producer=producer) as sink:
                position = await sink.last_position() or at(0)
                assert position == at(number)
                fault = proxy.next(END_TXN, fate)
                outcome = await asyncio.gather(deliver(sink, rows(number)), return_exceptions=True)
                assert outcome == [None] or (type(outcome[0]) is SinkError and outcome[0].retriable)
                assert fault.happened
            async with place.sink(producer=producer) as sink:
                if await sink.last_position() == position:
                    await deliver(sink, rows(number))
            expected.append(number)
        return expected

    expected = asyncio.run(scenario())
    direct = broker_behind[1].bootstrap_servers
    assert ids(read_topic(direct, f"{name}.orders", at_least=len(expected))) == expected


class TestACoordinatorThatFails:
    """It does so where a transaction ends while another producer fences this one. Only its next answer says whether that is so."""

    @pytest.fixture
    def settings(self, proxy: Proxy, broker_behind: tuple[Proxy, Broker], name: str) -> ProducerSettings:
        with KafkaAdminClient(bootstrap_servers=broker_behind[1].bootstrap_servers) as admin:
            admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        return ProducerSettings({"bootstrap_servers": [proxy.address]}, f"cdfd.{name}", timeout=20)

    def test_once(self, settings: ProducerSettings, proxy: Proxy, name: str) -> None:
        with closing(KafkaPythonProducer(settings)) as producer:
            producer.init_transactions()
            producer.begin()
            send_record(producer, name, 0, None, b"a")
            fault = proxy.next(END_TXN, "failed")
            producer.commit()
        assert fault.happened
        assert [record.value for record in read_topic(proxy.address, name, at_least=1)] == [b"a"]

    def test_and_another_producer_has_taken_over(self, settings: ProducerSettings, proxy: Proxy, name: str) -> None:
        with closing(KafkaPythonProducer(settings)) as producer, closing(KafkaPythonProducer(settings)) as successor:
            producer.init_transactions()
            producer.begin()
            send_record(producer, name, 0, None, b"a")
            producer.flush()
            successor.init_transactions()
            fault = proxy.next(END_TXN, "failed")
            with pytest.raises(FencedError):
                producer.commit()
            assert fault.happened
            successor.begin()
            send_record(successor, name, 0, None, b"b")
            successor.commit()
        assert [record.value for record in read_topic(proxy.address, name, at_least=1)] == [b"b"]

    def test_always(self, settings: ProducerSettings, proxy: Proxy, name: str) -> None:
        with closing(KafkaPythonProducer(settings)) as producer:
            producer.init_transactions()
            producer.begin()
            send_record(producer, name, 0, None, b"a")
            faults = [proxy.next(END_TXN, "failed") for _ in range(100)]
            with pytest.raises(SinkError, match="UnknownError") as raised:
                producer.commit()
            assert raised.value.retriable
            assert all(fault.happened for fault in faults)


async def test_a_cluster_that_does_not_answer_does_not_keep_a_sink_from_closing(
    producer: MakeProducer, proxy: Proxy, name: str
) -> None:
    place = Place(proxy.address, name, timeout=6.0, closing_timeout=0.5)
    sink = await place.open(producer=producer)
    await deliver(sink, rows(0))
    delivery = await sink.begin(at(1))
    proxy.stall()
    await delivery.write(rows(*range(5000)))
    committing = asyncio.create_task(delivery.commit(at(2)))
    await asyncio.sleep(0.05)
    committing.cancel()
    await asyncio.gather(committing, return_exceptions=True)
    await sink.close()
    proxy.resume()
    async with place.sink(producer=producer) as again:
        assert await again.last_position() in (at(1), at(2))


def test_a_transaction_that_takes_too_long_is_given_up(producer: MakeProducer, needs_broker: None, name: str) -> None:
    properties = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    with Broker(properties=properties) as own:
        place = Place(own.bootstrap_servers, name, transaction_timeout=3.0, timeout=3.0)

        async def scenario(admin: KafkaAdminClient) -> None:
            async with place.sink(producer=producer) as sink:
                await deliver(sink, rows(0))
                delivery = await sink.begin(at(1))
                await delivery.write(rows(*range(1000, 6000)))
                await until(lambda: state(admin) == "Ongoing")
                await until(lambda: state(admin) == "CompleteAbort")
                await delivery.write(rows(*range(1000, 6000)))
                with pytest.raises(SinkError):
                    await delivery.commit(at(2))
                await delivery.abort()
            async with place.sink(producer=producer) as sink:
                assert await sink.last_position() == at(1)
                await deliver(sink, rows(1))

        def state(admin: KafkaAdminClient) -> str:
            name = place.destination.transactional_id
            told: str = admin.describe_transactions([name])[name].state
            return told

        with closing(KafkaAdminClient(bootstrap_servers=own.bootstrap_servers)) as admin:
            asyncio.run(scenario(admin))
        assert ids(read_topic(own.bootstrap_servers, place.topic, at_least=2)) == [0, 1]


async def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


class TestTopicsOfOthers:
    async def test_deleted_meanwhile(
        self, producer: MakeProducer, servers: str, name: str, admin: KafkaAdminClient, read: Read
    ) -> None:
        place = Place(servers, name, timeout=3.0)
        async with place.sink(producer=producer) as sink:
            await deliver(sink, rows(0))
            admin.delete_topics([place.topic])
            assert not isinstance(await failure_of(sink, rows(1)), FencedError)
        async with place.sink(producer=producer) as sink:
            assert await sink.last_position() == at(1)
            await deliver(sink, rows(1))
        assert ids(read(place.topic, at_least=1)) == [1]

    async def test_that_take_less_than_before(
        self, producer: MakeProducer, servers: str, name: str, admin: KafkaAdminClient, read: Read
    ) -> None:
        place = Place(servers, name, oversized="skip")
        large = rows(1, note=os.urandom(3000).hex())
        async with place.sink(producer=producer) as sink:
            await deliver(sink, rows(0))
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, place.topic, {"max.message.bytes": "2000"})])
            error = await failure_of(sink, large)
            assert "max.message.bytes" in str(error)
        async with place.sink(producer=producer) as sink:
            assert await sink.last_position() == at(1)
            await deliver(sink, large, rows(2))
            assert sink.context.writer.oversized == 1
        assert ids(read(place.topic, at_least=2)) == [0, 2]


class TestProgress:
    def test_what_is_written_is_read(self) -> None:
        for progress in (
            Progress(at(7)),
            Progress(at(2**62, 12_345_678, "snapshot", 99_999_999_999), {"insert": 3, "delete": 1}, announced=True),
            Progress(at(3), job={"id": "5f1c", "parts": 7}, backfill={"first": 3, "from": "3"}),
        ):
            assert progress_of(value_of(progress)) == progress

    @pytest.mark.parametrize(
        "value",
        [
            b"",
            b"{",
            b"[]",
            b"\xff",
            b"[" * 100_000,
            b'{"table_id":"T","version":"1","part":0,"phase":"stream","ordinal":0}',
            b'{"table_id":"T","version":-1,"part":0,"phase":"stream","ordinal":0}',
            b'{"table_id":"T","version":true,"part":0,"phase":"stream","ordinal":0}',
            b'{"table_id":7,"version":1,"part":0,"phase":"stream","ordinal":0}',
            b'{"table_id":"T","version":1,"part":0,"phase":"gas","ordinal":0}',
            b'{"table_id":"T","version":1,"part":0,"phase":"stream"}',
            b'{"table_id":"T","version":1,"part":0,"phase":"stream","ordinal":0,"counts":[]}',
        ],
        ids=range(12),
    )
    async def test_a_record_that_is_no_position(
        self, servers: str, name: str, another: KafkaProducer, value: bytes
    ) -> None:
        place = Place(servers, name)
        async with place.sink():
            pass
        another.begin_transaction()
        topic = place.destination.progress.name
        sent = another.send(topic, value, key_of(name, "orders"), partition=0)
        another.commit_transaction()
        offset = sent.get().offset
        with pytest.raises(SinkError, match="has no valid position") as raised:
            await place.open()
        assert f"topic {topic}, partition 0, offset {offset}" in str(raised.value)
        await move_position(place.destination, PRODUCERS["kafka-python"], at(3))
        assert await place.stored_position() == at(3)

    async def test_no_more_is_read_than_is_needed(
        self, servers: str, name: str, another: KafkaProducer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        windows: list[tuple[int, int]] = []
        last = progress_records.NewestRecord._last

        def noted(newest: progress_records.NewestRecord, options: Any, lower: int, upper: int) -> Any:
            windows.append((lower, upper))
            return last(newest, options, lower, upper)

        monkeypatch.setattr(progress_records.NewestRecord, "_last", noted)
        monkeypatch.setattr(progress_records, "_TAIL", 100)
        monkeypatch.setattr(progress_records, "_GROWTH", 4)

        place = Place(servers, name)
        async with place.sink() as sink:
            await deliver(sink, rows(0))
        another.begin_transaction()
        for number in range(1000):
            another.send(place.destination.progress.name, b"%d" % number, b"others", partition=0)
        another.commit_transaction()
        windows.clear()
        async with place.sink() as sink:
            assert await sink.last_position() == at(1)
            assert windows == [(903, 1003), (503, 903), (0, 503)]
            await deliver(sink, rows(1))
        windows.clear()
        async with place.sink() as sink:
            assert await sink.last_position() == at(2)
        assert windows == [(905, 1005)]

    async def test_what_another_tables_transaction_hides_is_waited_for(
        self, servers: str, name: str, another: KafkaProducer, caplog: pytest.LogCaptureFixture, read: Read
    ) -> None:
        place = Place(servers, name)
        async with place.sink() as sink:
            await deliver(sink, rows(0))
            another.begin_transaction()
            another.send(place.destination.progress.name, b"open", b"others", partition=0)
            another.flush()
            await deliver(sink, rows(1))
        assert await place.stored_position() == at(1), "it is hidden"
        with caplog.at_level("INFO", "cdfd"):
            opening = asyncio.create_task(place.open())
            await until(lambda: "waiting for transactions of other tables" in caplog.text)
        assert not opening.done()
        another.commit_transaction()
        sink = await opening
        assert await sink.last_position() == at(2)
        await sink.close()

    async def test_a_pause_that_another_tables_transaction_hides_outlives_a_move(
        self, servers: str, name: str, another: KafkaProducer, caplog: pytest.LogCaptureFixture
    ) -> None:
        place, paused = Place(servers, name), Control(Pause("a", 7))
        async with place.sink() as sink:
            await deliver(sink, rows(0))
            another.begin_transaction()
            another.send(place.destination.progress.name, b"open", b"others", partition=0)
            another.flush()
            await sink.set_control(paused)
        with caplog.at_level("INFO", "cdfd"):
            moving = asyncio.create_task(move_position(place.destination, PRODUCERS["kafka-python"], at(5)))
            await until(lambda: moving.done() or "waiting for transactions of other tables" in caplog.text)
        another.commit_transaction()
        await moving
        async with place.sink() as sink:
            assert (await sink.last_position(), sink.control) == (at(5), paused)

    async def test_the_wait_has_an_end(
        self, servers: str, name: str, another: KafkaProducer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cdfd.sinks.kafka.progress.positions.MARGIN", 0.5)

        place = Place(servers, name, transaction_timeout=1.0, timeout=1.0)
        async with place.sink() as sink:
            another.begin_transaction()
            another.send(place.destination.progress.name, b"open", b"others", partition=0)
            another.flush()
            await deliver(sink, rows(1))
        with pytest.raises(SinkError, match="cannot be read") as raised:
            await place.open()
        assert raised.value.retriable
        another.abort_transaction()
        async with place.sink() as sink:
            assert await sink.last_position() == at(1)


async def test_a_cluster_that_cannot_have_transactions_is_explained(
    producer: MakeProducer, needs_broker: None, name: str
) -> None:
    """Brokers log that they cannot create the topic of transactions. They leave clients waiting."""
    with Broker(properties={"transaction.state.log.replication.factor": "3"}) as alone:
        destination = Place(alone.bootstrap_servers, name, timeout=3.0).destination
        steps = (
            lambda: KafkaSink.open(destination, producer, encoders("flat")),
            lambda: move_position(destination, producer, at(1)),
            lambda: check(destination),
        )
        for step in steps:
            with pytest.raises(SinkError, match=r"cannot create its topic __transaction_state") as raised:
                await step()
            assert raised.value.retriable
            assert "set transaction.state.log.replication.factor to 1" in (raised.value.hint or "")
