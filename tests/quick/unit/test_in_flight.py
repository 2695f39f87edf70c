"""Records in flight, without a broker."""

from threading import Event, Thread, Timer, current_thread

import pytest

from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.in_flight import InFlight


def test_what_follows_the_last_answer_is_done_by_its_thread() -> None:
    parts, done = InFlight(100, 30), list[str]()
    parts.add(1)
    parts.add(2)
    waits = Event()

    def answer() -> None:
        parts.settle(1, None)
        waits.wait(30)
        parts.settle(2, None)

    answers = Thread(target=answer, name="answers")
    answers.start()
    Timer(0.05, waits.set).start()
    parts.wait_for_all(lambda: done.append(current_thread().name))
    answers.join()
    assert done == ["answers"]


def test_without_anything_in_flight_it_is_done_at_once() -> None:
    done = list[int]()
    InFlight(1, 0).wait_for_all(lambda: done.append(1))
    assert done == [1]


@pytest.mark.parametrize("failed_first", [True, False])
def test_nothing_follows_a_failure(failed_first: bool) -> None:
    parts, done = InFlight(100, 30), list[int]()
    parts.add(1)
    parts.add(1)
    failure = SinkError("refused")
    answers = [failure, None] if failed_first else [None, failure]
    parts.settle(1, answers[0])
    last = Thread(target=lambda: parts.settle(1, answers[1]))
    last.start()
    with pytest.raises(SinkError, match="refused"):
        parts.wait_for_all(lambda: done.append(1))
    last.join()
    with pytest.raises(SinkError, match="refused"):
        parts.wait_for_all(lambda: done.append(1))
    parts.forget_failures()
    assert not done


def test_an_answer_after_the_deadline_does_nothing() -> None:
    parts, done = InFlight(100, 0.01), list[int]()
    parts.add(1)
    with pytest.raises(SinkError, match="not acknowledged within"):
        parts.wait_for_all(lambda: done.append(1))
    parts.settle(1, None)
    assert not done
