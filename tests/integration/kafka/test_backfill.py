"""A range is published again: next to a daemon, after an interruption, from the start, and once for each name."""

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing

import pyarrow.compute as pc
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from cdfd.demo.writer import TableWriter
from tests.support.commands import WITHIN, Ended, cdfd, started
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.reading import Record
from tests.support.lake import rows

MANY = 120

Change = tuple[int, str, int]
PAST: list[Change] = [
    (1, "insert", 1),
    (1, "insert", 2),
    (2, "insert", 3),
    (3, "update_postimage", 1),
    (3, "update_preimage", 1),
    (4, "delete", 2),
]
EVENTS = 6
"""Of Debezium for the same past: an update is one, and a tombstone follows the delete."""


@pytest.fixture
def table(pipeline: Pipeline) -> TableWriter:
    """Versions 0 to 4."""
    table = pipeline.table()
    do(table.insert(rows(1, 2)))
    do(table.insert(rows(3)))
    do(table.update(pc.field("id") == 1, {"v": pc.scalar("b")}))
    do(table.delete(pc.field("id") == 2))
    return table


def backfill(pipeline: Pipeline, *options: object) -> Ended:
    return cdfd("backfill", "-c", pipeline.config, "orders", *options)


def published(pipeline: Pipeline, *options: object) -> str:
    """The output of a backfill that succeeds."""
    ended = backfill(pipeline, *options)
    assert ended.code == 0, ended.err
    return ended.out


def changes(records: Sequence[Record]) -> list[Change]:
    documents = [json.loads(record.value) for record in records if record.value is not None]
    return sorted((row["_commit_version"], row["_change_type"], row["id"]) for row in documents)


PROCESSED = re.compile(rb',"ts_ms":(\d+),"ts_us":(\d+),"ts_ns":(\d+)}$')


def divide(record: Record) -> tuple[bytes | None, bytes | None, tuple[int, ...]]:
    """Key and Debezium event of a record, without the time of processing, and that time in its three units. Tombstones have none."""
    if record.value is None:
        return record.key, None, ()
    times = PROCESSED.search(record.value)
    assert times, record.value
    return record.key, record.value[: times.start()], tuple(map(int, times.groups()))


class TestBesideADaemon:
    def test_rows_come_again_and_the_daemon_does_not_notice(self, pipeline: Pipeline, table: TableWriter) -> None:
        with pipeline.daemon() as daemon:
            pipeline.check()
            told = published(pipeline, "--from", 2, "--until", 3)
            assert f"the changes of versions 2 to 3 are published to topic {pipeline.topic}: 3 rows (" in told
            again = [change for change in PAST if change[0] in (2, 3)]
            assert changes(pipeline.read(9)) == sorted(PAST + again)
            do(table.insert(rows(9)))
            assert changes(pipeline.read(10)) == sorted([*PAST, *again, (5, "insert", 9)])
            daemon.stop()
        shown = cdfd("progress", "show", "-c", pipeline.config)
        assert shown.code == 0
        assert shown.lines()[1].split()[:4] == ["orders", "5", "5", "5"]

    def test_records_are_those_of_the_daemon(self, pipeline: Pipeline, table: TableWriter) -> None:
        pipeline.configure(sink={"format": "debezium", "topics": {"prefix": f"{pipeline.name}.", "partitions": 1}})
        with pipeline.daemon() as daemon:
            before = [divide(record) for record in pipeline.read(EVENTS)]
            daemon.stop()
        published(pipeline, "--from", "earliest")
        records = [divide(record) for record in pipeline.read(2 * EVENTS)]
        assert records[:EVENTS] == before
        again = records[EVENTS:]
        assert [(key, event) for key, event, _ in again] == [(key, event) for key, event, _ in before]
        made = [times for _, _, times in before if times]
        assert made
        assert min(times for _, _, times in again if times) > max(made)

    def test_side_topics_hear_of_the_daemon_only(
        self, pipeline: Pipeline, table: TableWriter, admin: KafkaAdminClient
    ) -> None:
        published(pipeline, "--from", "earliest")
        assert pipeline.topic in admin.list_topics()
        assert f"{pipeline.name}.schema" not in admin.list_topics()


class TestSnapshot:
    def test_alone(self, pipeline: Pipeline, table: TableWriter) -> None:
        told = published(pipeline, "--snapshot", "--from", 3)
        assert "the rows of version 3 are published" in told
        assert changes(pipeline.read(3)) == [(3, "insert", 1), (3, "insert", 2), (3, "insert", 3)]

    def test_of_the_newest_version(self, pipeline: Pipeline, table: TableWriter) -> None:
        published(pipeline, "--snapshot")
        assert changes(pipeline.read(2)) == [(4, "insert", 1), (4, "insert", 3)]

    def test_with_what_follows(self, pipeline: Pipeline, table: TableWriter) -> None:
        told = published(pipeline, "--snapshot", "--from", 2, "--until", "now")
        assert "the rows of version 2 and the changes of versions 3 to 4" in told
        expected = [(2, "insert", number) for number in (1, 2, 3)] + PAST[3:]
        assert changes(pipeline.read(6)) == expected


class TestRange:
    def test_a_version_that_is_not_there_yet(self, pipeline: Pipeline, table: TableWriter) -> None:
        ended = backfill(pipeline, "--from", 2, "--until", 7)
        assert ended.code == 2
        assert "there is no version 7 yet; the newest is 4" in ended.err

    def test_nothing(self, pipeline: Pipeline, table: TableWriter) -> None:
        assert "nothing to publish from version 5 on" in published(pipeline, "--from", "latest")


class TestAgain:
    def test_one_that_came_to_its_end_begins_anew(self, pipeline: Pipeline, table: TableWriter) -> None:
        for _ in range(2):
            published(pipeline, "--from", 4)
        assert changes(pipeline.read(2)) == [PAST[5], PAST[5]]

    def test_one_with_a_name_is_done_once(self, pipeline: Pipeline, table: TableWriter) -> None:
        assert "1 row" in published(pipeline, "--from", 4, "--id", "june")
        assert "already published" in published(pipeline, "--from", 4, "--id", "june")
        assert "backfill july" not in published(pipeline, "--from", 4, "--id", "july")
        other = backfill(pipeline, "--from", 3, "--id", "june")
        assert other.code == 2
        assert "the backfill june of this table is for the changes of version 4" in other.err
        assert changes(pipeline.read(2)) == [PAST[5], PAST[5]]


class TestInterrupted:
    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
    def test_goes_on_where_it_stood(
        self, pipeline: Pipeline, table: TableWriter, create: Callable[..., str], how: signal.Signals
    ) -> None:
        create(pipeline.topic, 3)
        ended = self.interrupted(pipeline, table, how)
        if how == signal.SIGTERM:
            assert ended.code == 130, ended.err
            assert "interrupted at version" in ended.out
        expected = Counter([*PAST, *((5 + number, "insert", 100 + number) for number in range(MANY))])
        assert 0 < len(pipeline.read(8)) < expected.total()
        # The resumed backfill keeps the version that `now` meant at its start.
        do(table.insert(rows(999)))
        assert "resumed at version" in published(pipeline, "--from", 1)
        assert Counter(changes(pipeline.read(expected.total()))) == expected

    def test_is_not_mixed_up_with_another_one(
        self, pipeline: Pipeline, table: TableWriter, create: Callable[..., str]
    ) -> None:
        create(pipeline.topic, 3)
        self.interrupted(pipeline, table, signal.SIGKILL)
        other = backfill(pipeline, "--from", "2")
        assert other.code == 2
        assert "is not complete" in other.err
        assert "Resume it with `--from 1`" in other.err
        before = len(pipeline.read())
        assert ": 1 row (1 insert)" in published(pipeline, "--from", 4 + MANY, "--restart")
        assert len(pipeline.read(before + 1)) == before + 1

    def interrupted(self, pipeline: Pipeline, table: TableWriter, how: signal.Signals) -> Ended:
        """A backfill from version 1 on that ends as soon as some of it is seen."""
        pipeline.configure(catch_up={"max_rows": 1})
        for number in range(MANY):
            do(table.insert(rows(100 + number)))
        told = {"bootstrap_servers": pipeline.direct, "isolation_level": "read_committed"}
        with closing(KafkaConsumer(**told, enable_auto_commit=False)) as consumer:
            places = [TopicPartition(pipeline.topic, number) for number in range(3)]
            consumer.assign(places)
            # Reading before there is anything: what comes then is seen at once.
            consumer.seek_to_beginning()
            consumer.poll(timeout_ms=100)
            with started("backfill", "-c", pipeline.config, "orders", "--from", "1") as running:
                deadline = time.monotonic() + WITHIN
                seen = 0
                while seen < 8:  # records: positions count the ends of transactions, too
                    assert time.monotonic() < deadline
                    seen += sum(map(len, consumer.poll(timeout_ms=20).values()))
                return running.end(how)
