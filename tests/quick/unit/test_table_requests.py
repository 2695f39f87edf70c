"""How a table answers the requests of operators, also those that come again after a restart."""

import asyncio
from typing import Any

from cdfd.deliver.mailbox import Mailbox
from cdfd.deliver.requests import Notification, Request
from tests.support.feeding import MemoryPlace, Place, feed
from tests.support.lake import Lake, checkpoint, entry_path, manual_clock, rows, run, table


def request(action: Any, id: str, **fields: Any) -> Request:
    return Request(action, id, "orders", **fields)


async def answer_all(lake: Lake, place: Place, *requests: Request) -> tuple[list[Notification], list[Notification]]:
    """The answers of a daemon that starts and ends, and its other news."""
    news: list[Notification] = []
    stop, mailbox = asyncio.Event(), Mailbox(news.append)
    waiting = [mailbox.put(each) for each in requests]
    async with asyncio.TaskGroup() as group:
        group.create_task(feed(lake, place, manual_clock(), stop=stop, mailbox=mailbox))
        answers = list(await asyncio.gather(*waiting))
        stop.set()
    return answers, news


def test_requests_that_changed_nothing_are_not_carried_out_again() -> None:
    """Otherwise a signal that is read again would undo a later one, which is not repeated."""

    async def scenario() -> None:
        lake, place, clock = Lake(manual_clock()), MemoryPlace(), manual_clock()
        await table(lake, 4, clock)
        await feed(lake, place, clock, until=3, start="earliest")
        requests = [request("resume", "a"), request("stop-snapshot", "b"), request("pause", "c")]
        answers, _ = await answer_all(lake, place, *requests)
        assert [each.type for each in answers] == ["RESUMED", "REFUSED", "PAUSED"]
        answers, _ = await answer_all(lake, place, *requests)
        assert [each.refusal for each in answers] == ["duplicate"] * 3
        paused = (await place.open()).control.paused
        assert paused is not None
        assert paused.id == "c"

    run(scenario())


def test_last_request_is_not_carried_out_again_in_the_same_daemon() -> None:
    """A request whose attempt failed is tried again, but not one that was answered."""

    async def scenario() -> None:
        lake, place, clock = Lake(manual_clock()), MemoryPlace(), manual_clock()
        await table(lake, 4, clock)
        await feed(lake, place, clock, until=3, start="earliest")
        answers, _ = await answer_all(lake, place, request("pause", "a"), request("pause", "a"))
        assert [each.refusal for each in answers] == [None, "duplicate"]

    run(scenario())


def test_a_paused_table_moves_over_entries_that_log_clean_up_removed() -> None:
    async def scenario() -> None:
        lake, place, clock = Lake(manual_clock()), MemoryPlace(), manual_clock()
        writer = await table(lake, 4, clock)
        await feed(lake, place, clock, until=2, start="earliest")
        stop, mailbox = asyncio.Event(), Mailbox()
        async with asyncio.TaskGroup() as group:
            group.create_task(feed(lake, place, clock, until=7, stop=stop, mailbox=mailbox))
            while len(place.rows()) < 3:
                await asyncio.sleep(0.01)
            await mailbox.put(request("pause", "a"))
            for version in range(4, 8):
                await writer.insert(rows(version))
            await checkpoint(lake, 6)
            lake.forget(*map(entry_path, range(6)))
            answers = [await mailbox.put(request("move", "b", version=6)), await mailbox.put(request("resume", "c"))]
            assert [each.type for each in answers] == ["MOVED", "RESUMED"]
        assert [row["id"] for row in place.rows()] == [1, 2, 3, 7]

    run(scenario())


def test_move_tells_that_it_ends_an_incremental_snapshot() -> None:
    async def scenario() -> None:
        lake, place, clock = Lake(manual_clock()), MemoryPlace(), manual_clock()
        await table(lake, 4, clock)
        await feed(lake, place, clock, until=3, start="earliest")
        answers, news = await answer_all(lake, place, request("snapshot", "a"), request("move", "b", version=1))
        assert [each.type for each in answers] == ["STARTED", "MOVED"]
        assert [(each.id, each.type) for each in news] == [("a", "ABORTED")]

    run(scenario())
