"""Records of the topic of signals: what they ask for, and how they are taken."""

import asyncio
import contextlib
import json
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.daemon.controls import signals
from cdfd.daemon.controls.controller import Controller, Publisher
from cdfd.daemon.controls.signals import SEARCH_SECONDS, SignalReader, parse_signal, read_signals
from cdfd.deliver.mailbox import Mailbox
from cdfd.deliver.requests import ACTIONS, Refused, Request, answer
from cdfd.errors import SinkError
from cdfd.model.control import RECENT
from cdfd.sinks.own_topics import Signal
from tests.support.manual_time import ManualClock
from tests.support.statuses import configuration


def signal(value: Any, offset: int = 3) -> Signal:
    data = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return Signal(offset, f"_cdfd_signals.shop-{offset}", data)


def test_the_form_of_debezium() -> None:
    conditions = [{"data-collection": "b", "filter": "day >= '2026-01-01'"}]
    data = {"data-collections": ["a", "b", "a"], "type": "INCREMENTAL", "additional-conditions": conditions}
    actual = parse_signal(signal({"id": "x", "type": "execute-snapshot", "data": data}), ACTIONS)
    assert actual == [
        Request("snapshot", "x", "a"),
        Request("snapshot", "x", "b", where="day >= '2026-01-01'"),
    ]


def test_data_as_text_and_without_an_id() -> None:
    actual = parse_signal(signal({"type": "pause", "data": '{"data-collections": ["a"]}'}), ACTIONS)
    assert actual == [Request("pause", "_cdfd_signals.shop-3", "a")]


@pytest.mark.parametrize("more", [{}, {"id": None}])
def test_the_place_in_the_topic_of_a_long_pipeline_is_an_id(more: dict[str, Any]) -> None:
    place = f"_cdfd_signals.{'p' * 100}-7"
    document = {"type": "pause", "data": {"data-collections": ["a"]}, **more}
    assert parse_signal(Signal(7, place, json.dumps(document).encode()), ACTIONS) == [Request("pause", place, "a")]


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda of: (
            st.lists(of)
            | st.dictionaries(
                st.sampled_from(["id", "type", "data", "data-collections", "version", "level"]) | st.text(), of
            )
        ),
        max_leaves=12,
    )
)
def test_any_record_is_a_request_or_refused(value: Any) -> None:
    for data in (
        value,
        {"type": "pause", "data": value},
        {"type": "execute-snapshot", "data": {"data-collections": value}},
    ):
        with contextlib.suppress(Refused):
            parse_signal(signal(json.dumps(data, default=str).encode("utf-8", "surrogatepass")), ACTIONS)


class Log:
    """The `Signals` port over a list."""

    topic = "_cdfd_signals.shop"

    def __init__(self, values: Sequence[Any]) -> None:
        self.waiting = [signal(value, offset) for offset, value in enumerate(values)]
        self.finished: list[int] = []

    async def poll(self) -> Sequence[Signal]:
        taken, self.waiting = self.waiting[:2], self.waiting[2:]
        return taken

    async def done(self, last: Signal) -> None:
        self.finished.append(last.offset)


class Broker:
    """A connector whose topic of signals is a `Log`."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def signals(self, reader: str) -> contextlib.AbstractAsyncContextManager[Log]:
        return contextlib.nullcontext(self.log)


def settle(mailbox: Mailbox) -> None:
    assert mailbox.first is not None
    mailbox.settle(answer(mailbox.first, "PAUSED", "it is paused"))


def test_a_record_is_done_after_all_before_it() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        controller = Controller("shop", clock)
        for name in ("slow", "quick"):
            controller.add(name)
        log = Log(
            [
                {"type": "pause", "data": {"data-collections": ["slow"]}},
                {"type": "pause", "data": {"data-collections": ["quick"]}},
                None,
                b"{",
            ]
        )
        reading = asyncio.create_task(SignalReader(controller, ACTIONS, clock).read(log))
        await clock.wait_for_sleepers()
        while controller.tables["quick"].first is None:
            await asyncio.sleep(0)
        settle(controller.tables["quick"])
        for _ in range(3):
            await clock.wait_for_sleepers()
            clock.advance(1)
            await asyncio.sleep(0.01)
        assert log.finished == []
        settle(controller.tables["slow"])
        while log.finished != [3]:
            await clock.wait_for_sleepers()
            clock.advance(1)
            await asyncio.sleep(0.01)
        assert sorted(each["type"] for each in controller.recent) == ["PAUSED", "PAUSED", "REFUSED"]
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_table_has_no_more_records_that_may_come_again_than_it_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart brings all records from that of the slow table on again. One that waits is parsed once."""
    parsed = list[Signal]()

    def parse(each: Signal, allowed: Collection[str]) -> list[Request]:
        parsed.append(each)
        return parse_signal(each, allowed)

    monkeypatch.setattr(signals, "parse_signal", parse)

    async def scenario() -> None:
        clock = ManualClock()
        controller = Controller("shop", clock)
        for name in ("slow", "quick"):
            controller.add(name)
        names = ["slow", *["quick"] * (RECENT + 4)]
        monkeypatch.setattr(signals, "HELD_SECONDS", 100.0)
        log = Log([{"type": "pause", "data": {"data-collections": [name]}} for name in names])
        reading = asyncio.create_task(SignalReader(controller, ACTIONS, clock).read(log))
        answered = 0

        async def turn() -> None:
            nonlocal answered
            await clock.wait_for_sleepers()
            await asyncio.sleep(0.01)
            while controller.tables["quick"].first is not None:
                settle(controller.tables["quick"])
                answered += 1
            clock.advance(1)
            await asyncio.sleep(0.01)

        for _ in range(len(names)):
            await turn()
        assert answered == RECENT
        settle(controller.tables["slow"])
        for _ in range(len(names)):
            await turn()
        assert (answered, log.finished[-1]) == (RECENT + 4, len(names) - 1)
        assert {each["type"] for each in controller.recent} == {"PAUSED"}
        assert len(parsed) == len(names)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize(
    "names", [["slow"] * (RECENT + 1), ["slow", *["unknown"] * signals.MOST_OUTSTANDING]], ids=["one table", "all"]
)
def test_a_table_that_does_not_answer_holds_back_others_for_a_minute(names: list[str]) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        controller = Controller("shop", clock)
        for name in ("slow", "quick"):
            controller.add(name)
        log = Log([{"type": "pause", "data": {"data-collections": [name]}} for name in [*names, "quick"]])
        reader = SignalReader(controller, ACTIONS, clock)
        reading = asyncio.create_task(reader.read(log))
        seconds = 0
        while controller.tables["quick"].first is None:
            await clock.wait_for_sleepers()
            await asyncio.sleep(0)
            clock.advance(1)
            seconds += 1
            await asyncio.sleep(0.001)
        assert signals.HELD_SECONDS <= seconds < signals.HELD_SECONDS + len(names)
        settle(controller.tables["quick"])
        while controller.tables["slow"].first is not None:
            settle(controller.tables["slow"])
        while not log.finished or log.finished[-1] < len(names):
            await clock.wait_for_sleepers()
            clock.advance(1)
            await asyncio.sleep(0.001)
        answered = [each["id"] for each in controller.recent if each["type"] == "PAUSED"]
        assert {f"_cdfd_signals.shop-{number}" for number in (0, len(names))} <= {*answered}
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await reader.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_topic_that_is_opened_again_repeats_no_request() -> None:
    """One record is answered, but not stored as done, and one waits for its table."""

    class Away(Log):
        async def done(self, last: Signal) -> None:
            raise SinkError("away", retriable=True)

    async def scenario() -> None:
        clock = ManualClock()
        controller = Controller("shop", clock)
        for name in ("slow", "quick"):
            controller.add(name)
        values = [{"type": "pause", "data": {"data-collections": [name]}} for name in ("quick", "slow")]
        reader = SignalReader(controller, ACTIONS, clock)
        reading = asyncio.create_task(reader.read(Away(values)))
        await clock.wait_for_sleepers()
        while controller.tables["quick"].first is None:
            await asyncio.sleep(0)
        settle(controller.tables["quick"])
        await asyncio.sleep(0.01)
        clock.advance(1)
        with pytest.raises(SinkError, match="away"):
            await reading
        log = Log(values)
        reading = asyncio.create_task(reader.read(log))
        await clock.wait_for_sleepers()
        assert log.finished == [0]
        settle(controller.tables["slow"])
        await asyncio.sleep(0.01)
        clock.advance(1)
        await asyncio.sleep(0.01)
        await clock.wait_for_sleepers()
        assert log.finished == [0, 1]
        assert [each["type"] for each in controller.recent] == ["PAUSED", "PAUSED"]
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await reader.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_request_that_waits_as_its_table_leaves_can_come_again() -> None:
    """As where a process loses a lease, and has it again later: its signals are not done."""

    async def scenario() -> None:
        clock = ManualClock()
        controller = Controller("shop", clock)
        controller.add("slow")
        for answered in (False, True):
            log = Log([{"type": "pause", "data": {"data-collections": ["slow"]}}])
            reader = SignalReader(controller, ACTIONS, clock)
            reading = asyncio.create_task(reader.read(log))
            await clock.wait_for_sleepers()
            await asyncio.sleep(0.01)
            mailbox = controller.tables["slow"]
            assert mailbox.first is not None
            if answered:
                settle(mailbox)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await reader.close()
            controller.remove("slow")
            controller.add("slow")
        assert [each["type"] for each in controller.recent] == ["REFUSED", "PAUSED"]
        assert controller.recent[0]["additional_data"]["message"] == "this process no longer delivers the table"

    asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize(("shares", "types"), [(True, []), (False, ["REFUSED"])])
def test_a_shard_leaves_tables_of_others_to_them(shares: bool, types: list[str]) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        controller = Controller("shop", clock)
        controller.add("ours")
        log = Log([{"type": "pause", "data": {"data-collections": ["theirs"]}}])
        reader = SignalReader(controller, ACTIONS, clock, shares_tables=shares)
        reading = asyncio.create_task(reader.read(log))
        for _ in range(3):
            await clock.wait_for_sleepers()
            clock.advance(1)
        assert log.finished == [0]
        assert [each["type"] for each in controller.recent] == types
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize("hangs", [False, True], ids=["searched", "hangs"])
def test_signals_of_a_downtime_wait_for_the_first_search(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        clock, searched = ManualClock(), asyncio.Event()
        controller = Controller("shop", clock)
        log = Log([{"type": "pause", "data": {"data-collections": ["new"]}}])
        monkeypatch.setattr(signals, "connector", lambda _: Broker(log))
        settings = configuration()
        settings = settings.model_copy(
            update={"controls": settings.controls.model_copy(update={"signals": ("pause",)})}
        )
        reading = asyncio.create_task(read_signals(settings, controller, clock, None, searched))
        await clock.wait_for_sleepers()
        assert log.waiting
        if hangs:
            clock.advance(SEARCH_SECONDS)
        else:
            controller.add("new")
            searched.set()
        for _ in range(3):
            await clock.wait_for_sleepers()
            await asyncio.sleep(0.01)
            clock.advance(1)
        if hangs:
            assert log.finished == [0]
            assert [each["type"] for each in controller.recent] == ["REFUSED"]
        else:
            settle(controller.tables["new"])
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_notifications_wait_for_a_broker_that_is_away() -> None:
    async def scenario() -> None:
        clock, written, fails = ManualClock(), [], [True, False]

        async def announce(records: Sequence[tuple[bytes, bytes]]) -> None:
            if fails.pop(0):
                raise SinkError("away", retriable=True)
            written.extend(records)
            fails.append(False)

        publisher = Publisher(announce, clock)
        running = asyncio.create_task(publisher.run())
        publisher.add({"id": "a", "type": "PAUSED"})
        await clock.wait_for_sleepers()
        publisher.add({"id": "b", "type": "RESUMED"})
        clock.advance(1)
        while len(written) < 2:
            await asyncio.sleep(0)
        assert [key for key, _ in written] == [b"a", b"b"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 30))
