"""The newest position in a progress topic, from consumers that stand still or go back."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from kafka import TopicPartition

from cdfd.sinks.kafka.progress import records

KEY = b"ours"
PARTITION = TopicPartition("_cdfd_progress.shop", 0)


class Record(NamedTuple):
    offset: int
    key: bytes


Script = Sequence[tuple[Sequence[Record], int]]


class Scripted:
    """A consumer that returns one answer after the other, and then the last one for ever."""

    def __init__(self, script: Script) -> None:
        self._script = list(script)
        self._reached = 0
        self.sought: list[int] = []

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.sought.append(offset)

    def poll(self, timeout_ms: int) -> dict[TopicPartition, Sequence[Record]]:
        batch, self._reached = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        return {PARTITION: batch}

    def position(self, partition: TopicPartition) -> int:
        return self._reached

    def close(self) -> None:
        self._script = []


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_CHECK_HIDDEN_AFTER", 0.0)
    monkeypatch.setattr(records, "_LOG_AFTER", 0.0)
    monkeypatch.setattr(records, "_RECONNECT_AFTER", 0.0)


def newest(consumers: Sequence[Scripted], hidden: bytes = KEY) -> Any:
    """The newest of offsets 4 to 9. The broker has one more record, of the key `hidden`, which is not committed."""
    waiting = iter(consumers)

    class Scripts(records.NewestRecord):
        def _connect(self, options: Mapping[str, Any], *, committed: bool = True) -> Scripted:
            return next(waiting) if committed else Scripted([([Record(9, hidden)], 10)])

    return Scripts({}, PARTITION.topic, KEY, 60.0, 60.0)._last({}, 4, 10)


def test_a_consumer_that_stands_still_is_replaced() -> None:
    stuck, fresh = Scripted([([Record(4, KEY)], 5), ([], 5)]), Scripted([([Record(5, b"other"), Record(8, KEY)], 10)])
    assert newest([stuck, fresh]) == Record(8, KEY)
    assert (stuck.sought, fresh.sought) == ([4], [5])


def test_one_that_goes_back_does_not_bring_an_older_position() -> None:
    back = Scripted([([Record(7, KEY)], 8), ([Record(0, KEY)], 1), ([Record(6, KEY)], 7), ([], 9), ([], 10)])
    assert newest([back]) == Record(7, KEY)


def test_one_that_goes_back_and_never_gets_further_is_replaced() -> None:
    circling = Scripted([([Record(7, KEY)], 8), *([([Record(0, KEY)], 1), ([Record(7, KEY)], 8)] * 8)])
    assert newest([circling, Scripted([([Record(9, KEY)], 10)])]) == Record(9, KEY)


def test_nothing_is_waited_for_where_nothing_of_ours_is_hidden() -> None:
    assert newest([Scripted([([Record(4, KEY)], 5), ([], 5)])], hidden=b"other") == Record(4, KEY)
