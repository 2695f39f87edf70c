"""Parts of a version, each by a producer of its own: each part arrives once, however many processes try, and how often."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from cdfd.daemon.engines import EmbeddedEngine
from cdfd.deliver.admission import Admission
from cdfd.demo.writer import TableWriter
from cdfd.encode.side import RowCounts
from cdfd.errors import SinkError
from cdfd.sinks.jobs import Counts, Delivered, Job
from cdfd.sinks.kafka.progress.positions import progress_end
from cdfd.sinks.kafka.transactions import parts
from cdfd.sinks.kafka.transactions.delivery import KafkaDelivery
from cdfd.storage.local import LocalStorage
from tests.support import lake
from tests.support.kafka.delivering import Delivering
from tests.support.kafka.shared import SharedBroker
from tests.support.kafka.sinking import Place, Read, at, deliver, documents, ids, rows, version
from tests.support.oracle.workload import Workload


class Part:
    """A part of version 1, and how often its rows were asked for.

    Args:
        place: of the table.
        number: of the part.
        batch: its rows.
    """

    def __init__(self, place: Place, number: int, batch: pa.RecordBatch) -> None:
        settings = {"schema_topic": None, "role": parts.role(number)}
        self.place = Place.__new__(Place)
        self.place.destination = replace(place.destination, **settings)  # type: ignore[arg-type]
        self.asked = 0
        self._batch = batch

    async def write(self, delivery: KafkaDelivery) -> Counts:
        self.asked += 1
        await delivery.start_version(version(1))
        await delivery.write(self._batch)
        counts = RowCounts()
        counts.add(self._batch)
        return counts.by_type()

    async def deliver(self, job: str = "a") -> Counts:
        counts = await parts.deliver(self.place.destination, self.place.sink, job, at(1), self.write)
        return {name: count for name, count in counts.items() if count}


async def test_a_part_is_delivered_once_for_each_job(broker: SharedBroker, name: str, read: Read) -> None:
    part = Part(Place(broker.bootstrap_servers, name), 3, rows(1, 2, version=1))
    assert await part.deliver() == {"insert": 2}
    assert await part.deliver() == {"insert": 2}, "by what the first one left behind"
    assert part.asked == 1
    assert await part.deliver("b") == {"insert": 2}
    assert sorted(ids(read(f"{name}.orders"))) == [1, 1, 2, 2]
    records = read(f"_cdfd_progress.{name}")
    assert [record.key for record in records] == [f'{{"pipeline":"{name}","table":"orders.part.3"}}'.encode()] * 2
    assert [document["job"] for document in documents(records)] == [{"id": "a"}, {"id": "b"}]


async def test_what_an_attempt_left_open_does_not_count(broker: SharedBroker, name: str, read: Read) -> None:
    part = Part(Place(broker.bootstrap_servers, name), 0, rows(*range(5000), version=1))
    sink = await part.place.open()
    sink.move_to(at(1))
    delivery = await sink.begin(at(1))
    await part.write(delivery)  # and nothing more: as one that is killed
    assert await part.deliver() == {"insert": 5000}
    with pytest.raises(SinkError):
        await delivery.commit(at(2))
    await sink.close()
    assert sorted(ids(read(f"{name}.orders", at_least=5000))) == list(range(5000))


async def test_of_two_attempts_the_fenced_one_sees_what_the_other_delivers(
    broker: SharedBroker, name: str, read: Read
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    first = Part(Place(broker.bootstrap_servers, name), 0, rows(1, version=1))
    second = Part(Place(broker.bootstrap_servers, name), 0, rows(1, version=1))

    async def held_up(delivery: KafkaDelivery) -> Counts:
        begun.set()
        await go_on.wait()
        return await first.write(delivery)

    place = first.place
    slow = asyncio.create_task(parts.deliver(place.destination, place.sink, "a", at(1), held_up))
    await begun.wait()
    assert await second.deliver() == {"insert": 1}
    go_on.set()
    assert (await slow)["insert"] == 1
    assert (first.asked, second.asked) == (1, 1)
    assert ids(read(f"{name}.orders")) == [1]


async def test_the_fenced_attempt_does_not_take_over_from_one_that_goes_on(
    broker: SharedBroker, name: str, read: Read
) -> None:
    attempts = [Part(Place(broker.bootstrap_servers, name), 0, rows(1, version=1)) for _ in range(2)]
    begun, go_on = [asyncio.Event() for _ in range(2)], [asyncio.Event() for _ in range(2)]

    async def held_up(number: int, delivery: KafkaDelivery) -> Counts:
        begun[number].set()
        await go_on[number].wait()
        return await attempts[number].write(delivery)

    tasks = []
    for number, part in enumerate(attempts):
        write = partial(held_up, number)
        tasks.append(asyncio.create_task(parts.deliver(part.place.destination, part.place.sink, "a", at(1), write)))
        await begun[number].wait()
    go_on[0].set()
    # It notices that the second one has fenced it, and waits.
    done, _ = await asyncio.wait({tasks[0]}, timeout=3)
    assert not done
    go_on[1].set()
    assert [counts["insert"] for counts in await asyncio.gather(*tasks)] == [1, 1]
    assert [part.asked for part in attempts] == [1, 1]
    assert ids(read(f"{name}.orders")) == [1]


async def test_where_the_other_attempt_comes_to_nothing_the_fenced_one_takes_over(
    broker: SharedBroker, name: str, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdfd.sinks.kafka.transactions.parts.MARGIN", -9.0)

    place = Place(broker.bootstrap_servers, name, transaction_timeout=10.0)
    part = Part(place, 0, rows(1, version=1))
    interrupted = False

    async def interrupted_once(delivery: KafkaDelivery) -> Counts:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            await (await part.place.open()).close()  # another attempt, which dies at once
        return await part.write(delivery)

    actual = await parts.deliver(part.place.destination, part.place.sink, "a", at(1), interrupted_once)
    assert actual["insert"] == 1
    assert part.asked == 2
    assert ids(read(f"{name}.orders")) == [1]


async def test_the_progress_of_a_part_is_looked_for_since_its_job_began(broker: SharedBroker, name: str) -> None:
    place = Place(broker.bootstrap_servers, name)
    part = Part(place, 0, rows(1, version=1))
    await part.deliver()
    since = await progress_end(place.destination)
    part.place.destination = replace(part.place.destination, since=since)
    async with part.place.sink() as sink:
        assert sink.progress is None


async def test_a_table_remembers_a_job_until_it_moves_on(broker: SharedBroker, name: str, read: Read) -> None:
    topics = {"schema_topic": f"{name}.schema", "transactions_topic": f"{name}.transactions"}
    place = Place(broker.bootstrap_servers, name, **topics)
    async with place.sink() as sink:
        await deliver(sink, following=at(1))
        since = await progress_end(place.destination)
        job = await sink.begin_job(version(1), at(1), 2, 1000, "0f")
        assert job == Job(job.id, 1, "stream", 2, 1000, "0f", since)
        await sink.claim_job(at(1), job)
    async with place.sink() as sink:
        assert await sink.last_position() == at(1)
        assert sink.job == job
        await sink.finish_job(version(1), at(1), job, [Delivered({"insert": 7}), Delivered({"delete": 1})])
    async with place.sink() as sink:
        assert await sink.last_position() == at(2)
        assert sink.job is None
    begin, end = documents(read(f"{name}.transactions"))
    assert (begin["status"], end["status"]) == ("BEGIN", "END")
    assert end["event_count"] == 8
    assert len(read(f"{name}.schema")) == 1


async def test_end_of_a_version_counts_the_events_of_its_parts(broker: SharedBroker, name: str, tmp_path: Path) -> None:
    """Images of updates that keep their key are one event. Without parts, END has the same counts."""
    table = Workload(tmp_path / "rows", 6)
    newest = [step.version for step in table.steps(6)][-1]
    sink = {"format": "debezium"}
    ends = []
    for number, engine in enumerate((None, EmbeddedEngine(Admission(1)))):
        delivering = Delivering(
            broker.bootstrap_servers, f"{name}-{number}", str(tmp_path / "rows"), {"key": ["id"]}, sink
        )
        await delivering.deliver(newest, engine, part_size=100_000)
        events = Counter(document["source"]["txId"] for document in documents(delivering.records()) if document)
        told = [each for each in delivering.transactions() if each["status"] == "END"]
        assert {int(each["id"]): each["event_count"] for each in told if each["event_count"]} == events
        ends.append([(each["id"], each["rows"], each["event_count"]) for each in told])
    assert ends[0] == ends[1]
    assert any(sum(rows.values()) > count for _, rows, count in ends[0])


async def test_no_part_of_a_snapshot_is_the_last(broker: SharedBroker, name: str, tmp_path: Path) -> None:
    """They are delivered side by side. The row with the ordinal 0 is the first one."""
    table = TableWriter(LocalStorage(tmp_path / "rows", sync=False), lake.SCHEMA)
    await table.create()
    await table.commit("WRITE", [await table._add(lake.rows(number)) for number in range(3)])
    more, marks = {"start": "snapshot"}, []
    for number, engine in enumerate((None, EmbeddedEngine(Admission(1)))):
        sink = {"format": "debezium"}
        delivering = Delivering(broker.bootstrap_servers, f"{name}-{number}", str(tmp_path / "rows"), more, sink)
        await delivering.deliver(1, engine, part_size=100_000)
        marks.append(Counter(document["source"]["snapshot"] for document in documents(delivering.records())))
    assert marks == [{"first": 1, "true": 1, "last": 1}, {"first": 1, "true": 2}]
