"""Each window between two steps of a delivery in which something may end, or not answer.

Whatever it is: nothing is lost, nothing comes twice, per key in order, and the changes folded are the table (`Pipeline.check`).
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kafka import KafkaAdminClient, KafkaProducer

from cdfd.demo.writer import TableWriter
from tests.support.kafka.daemon_process import until
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.proxy import END_TXN, INIT_PRODUCER_ID, PRODUCE, Proxy
from tests.support.lake import rows

MANY = 20_000


def some(first: int, count: int = 3, v: str = "a") -> pa.Table:
    return rows(*range(first, first + count), v=v)


@pytest.fixture
def table(proxied: Pipeline) -> TableWriter:
    """Three rows, and a pipeline that has not begun."""
    table = proxied.table()
    do(table.insert(some(0)))
    return table


@contextmanager
def hanging(pipeline: Pipeline, topic: str) -> Iterator[None]:
    """Another client's transaction, which stays open while the block runs."""
    other = KafkaProducer(bootstrap_servers=pipeline.direct, transactional_id=f"other.{pipeline.name}")
    other.init_transactions()
    other.begin_transaction()
    other.send(topic, b"never committed", key=b"{}", partition=0).get(timeout=20)
    try:
        yield
    finally:
        other.abort_transaction()
        other.close()


class TestKilled:
    def test_while_rows_are_on_their_way(self, proxied: Pipeline, proxy: Proxy, table: TableWriter) -> None:
        with proxied.daemon() as daemon:
            assert proxied.check() == 3
            do(table.insert(some(3, MANY)))
            proxy.wait_for(PRODUCE)
            daemon.kill()
        assert proxied.finish() == 3 + MANY

    @pytest.mark.parametrize(("fate", "there"), [("lost", 3), ("unanswered", 6)])
    def test_at_the_commit(self, proxied: Pipeline, proxy: Proxy, table: TableWriter, fate: str, there: int) -> None:
        """Before it is sent, and after it is executed but before it is answered."""
        with proxied.daemon() as daemon:
            assert proxied.check() == 3
            fault = proxy.next(END_TXN, fate)
            do(table.insert(some(3)))
            fault.wait()
            daemon.kill()
        assert len(proxied.read(there)) == there
        assert proxied.finish() == 6

    @pytest.mark.parametrize("fate", ["lost", "unanswered"])
    def test_before_anything_is_delivered(self, proxied: Pipeline, proxy: Proxy, table: TableWriter, fate: str) -> None:
        for api in (INIT_PRODUCER_ID, END_TXN):
            fault = proxy.next(api, fate)
            with proxied.daemon() as daemon:
                fault.wait()
                daemon.kill()
        assert proxied.finish() == 3


class TestConnectionLost:
    @pytest.mark.parametrize("fate", ["lost", "halved", "unanswered"])
    @pytest.mark.parametrize("api", [PRODUCE, END_TXN])
    def test_at_a_request(self, proxied: Pipeline, proxy: Proxy, table: TableWriter, api: int, fate: str) -> None:
        with proxied.daemon() as daemon:
            assert proxied.check() == 3
            fault = proxy.next(api, fate)
            do(table.update(pc.field("id") == 1, {"v": pc.scalar("b")}))
            fault.wait()
            do(table.insert(some(3)))
            assert proxied.check() == 8
            daemon.stop()
        assert proxied.finish() == 8

    @pytest.mark.parametrize("fate", ["lost", "halved", "unanswered"])
    def test_at_the_start(self, proxied: Pipeline, proxy: Proxy, table: TableWriter, fate: str) -> None:
        fault = proxy.next(INIT_PRODUCER_ID, fate)
        with proxied.daemon() as daemon:
            fault.wait()
            assert proxied.check() == 3
            daemon.stop()

    def test_while_nothing_is_to_be_delivered(self, proxied: Pipeline, proxy: Proxy, table: TableWriter) -> None:
        with proxied.daemon() as daemon:
            assert proxied.check() == 3
            proxy.cut()
            do(table.insert(some(3)))
            assert proxied.check() == 6
            daemon.stop()

    def test_stalled(self, proxied: Pipeline, proxy: Proxy, table: TableWriter) -> None:
        with proxied.daemon() as daemon:
            assert proxied.check() == 3
            proxy.stall()
            do(table.insert(some(3)))
            with pytest.raises(TimeoutError):
                proxy.wait_for(PRODUCE, timeout=1)
            proxy.resume()
            assert proxied.check() == 6
            daemon.stop()

    def test_nobody_there_at_the_start(self, proxied: Pipeline, proxy: Proxy, table: TableWriter) -> None:
        proxy.refuse()
        with proxied.daemon() as daemon:
            line = daemon.wait_for("retrying in")
            assert line["level"] == "warning"
            assert proxy.address in line["message"]
            proxy.resume()
            assert proxied.check() == 3
            daemon.stop()


class TestOtherTransactions:
    def test_one_that_hides_the_rows(self, proxied: Pipeline, table: TableWriter) -> None:
        """Readers wait for it; the daemon does not."""
        assert proxied.finish() == 3
        with hanging(proxied, proxied.topic), proxied.daemon() as daemon:
            daemon.wait_for("at version")
            do(table.insert(some(3)))
            until(lambda: len(proxied.read(committed=False)) == 7)
            daemon.stop()
        assert proxied.finish() == 6

    def test_one_that_hides_nothing_of_ours(self, proxied: Pipeline, table: TableWriter) -> None:
        """A start does not wait for it: our newest position is before it."""
        assert proxied.finish() == 3
        do(table.insert(some(3)))
        with hanging(proxied, f"_cdfd_progress.{proxied.name}"), proxied.daemon() as daemon:
            assert proxied.check() == 6
            daemon.stop()

    def test_one_that_hides_the_position(self, proxied: Pipeline, table: TableWriter) -> None:
        """A start waits for it: what was committed after it began cannot be read before it ends."""
        assert proxied.finish() == 3
        with ExitStack() as other:
            other.enter_context(hanging(proxied, f"_cdfd_progress.{proxied.name}"))
            do(table.insert(some(3)))
            assert proxied.finish() == 6
            do(table.insert(some(6)))
            with proxied.daemon() as daemon:
                line = daemon.wait_for("waiting for transactions of other tables")
                assert line["level"] == "info"
                assert len(proxied.read()) == 6
                other.close()
                assert proxied.check() == 9
                daemon.stop()

    def test_our_own_of_a_daemon_that_is_gone(self, proxied: Pipeline, proxy: Proxy, table: TableWriter) -> None:
        """The next daemon ends it at once, not when its time is up."""
        with proxied.daemon() as daemon:
            assert proxied.check() == 3
            fault = proxy.next(END_TXN, "lost")
            do(table.insert(some(3)))
            fault.wait()
            daemon.kill()
        with proxied.daemon() as daemon:
            assert proxied.check() == 6
            daemon.stop()


class TestTwoDaemons:
    def test_started_at_once(self, proxied: Pipeline) -> None:
        with proxied.writing(burst=500) as writing, proxied.daemon() as one, proxied.daemon() as other:
            until(lambda: not (one.running and other.running))
            loser, winner = (other, one) if one.running else (one, other)
            assert loser.ended() == 3, loser.log()
            assert "another daemon has taken over" in loser.error
            writing.stop()
            proxied.check()
            winner.stop()
        proxied.finish()

    def test_one_that_was_held_up_while_another_took_over(self, proxied: Pipeline, table: TableWriter) -> None:
        with proxied.daemon() as one:
            assert proxied.check() == 3
            with one.paused():
                do(table.insert(some(3)))
                with proxied.daemon() as other:
                    assert proxied.check() == 6
                    other.stop()
            assert one.ended() == 3, one.log()
        assert proxied.finish() == 6


def test_a_transaction_whose_time_is_up(proxied: Pipeline, proxy: Proxy, table: TableWriter) -> None:
    """The broker gives it up. A daemon cannot tell that from being taken over, and leaves, if it has not given up by itself."""
    proxied.configure(sink={"transaction_timeout": "10s"})
    name = f"cdfd.{proxied.name}.orders"
    with proxied.daemon() as daemon, KafkaAdminClient(bootstrap_servers=proxied.direct) as admin:
        assert proxied.check() == 3
        fault = proxy.next(END_TXN, "stalled")
        do(table.insert(some(3)))
        fault.wait()
        until(lambda: admin.describe_transactions([name])[name].state == "CompleteAbort")
        proxy.resume()
        until(lambda: not daemon.running or daemon.has_said("resuming at version 2"))
        assert daemon.running or daemon.ended() == 3, daemon.log()
    assert proxied.finish() == 6


def test_an_answer_that_does_not_come(proxied: Pipeline, proxy: Proxy, table: TableWriter) -> None:
    """The daemon recovers by itself: it reads its position, and resumes there."""
    with proxied.daemon() as daemon:
        assert proxied.check() == 3
        fault = proxy.next(END_TXN, "stalled")
        do(table.insert(some(3)))
        fault.wait()
        daemon.wait_for("retrying in", timeout=60)
        proxy.resume()
        daemon.wait_for("resuming at version", timeout=60)
        assert proxied.check() == 6
        daemon.stop()


class TestTable:
    def test_created_anew(self, proxied: Pipeline, table: TableWriter) -> None:
        assert proxied.finish() == 3
        shutil.rmtree(proxied.uri)
        anew = proxied.table()
        do(anew.insert(some(0)))
        with proxied.daemon() as daemon:
            assert daemon.ended() == 1, daemon.log()
        assert "deleted and created again" in daemon.error
        assert table.table_id in daemon.error
        assert anew.table_id in daemon.error
        assert len(proxied.read()) == 3

    def test_created_anew_while_it_is_delivered(self, proxied: Pipeline, table: TableWriter) -> None:
        with proxied.daemon() as daemon:
            assert proxied.check() == 3
            shutil.rmtree(proxied.uri)
            anew = proxied.table()
            do(anew.insert(some(0)))
            do(anew.insert(some(3)))
            assert daemon.ended() == 1, daemon.log()
        # Between the one and the other there is none, which the daemon may be quick enough to see.
        assert "was deleted" in daemon.error
        assert len(proxied.read()) == 3
