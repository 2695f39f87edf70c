"""The delivered rows of a feed do not depend on the number of its crashes."""

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdfd.model.position import Position
from tests.support.feeding import Crash, FilesPlace, Hook, MemoryPlace, feed, position
from tests.support.histories import HISTORIES, write
from tests.support.lake import Lake, manual_clock, run


def crash_at(step: int) -> tuple[Hook, list[str]]:
    events: list[str] = []

    def hook(event: str, about: Any) -> None:
        if event not in ("abort", "hasten"):  # a crash in `hasten`, beside the loop, would not end it
            events.append(event)
            if len(events) == step:
                raise Crash

    return hook, events


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    history=HISTORIES,
    start=st.sampled_from(["snapshot", "earliest", 1]),
    limits=st.sampled_from([(1, 0), (1500, 0), (1500, 5000), (1 << 30, 0), (1 << 30, 4000), (1 << 30, 1 << 30)]),
)
def test_a_crash_at_any_step_changes_nothing(
    history: list[tuple[str, int]], start: Any, limits: tuple[int, int]
) -> None:
    """The sink fails before, in or after any call; the concatenation is that of a feed that nothing happened to."""

    async def scenario() -> None:
        clock = manual_clock()
        lake, undisturbed = Lake(clock), MemoryPlace()
        writer = await write(lake, clock, history)
        sizes = dict(zip(("part_bytes", "max_bytes"), limits, strict=True))
        run_to_end = partial(feed, lake, clock=clock, until=writer.version, start=start, **sizes)
        if writer.version == 0 and start == 1:
            return
        await run_to_end(undisturbed)
        step, crashed = 0, True
        while crashed:
            step += 1
            place = MemoryPlace()
            hook, events = crash_at(step)
            try:
                await run_to_end(place, hook=hook)
                crashed = False
            except Crash:
                if (await position(place)) != Position("T", writer.version + 1):
                    await run_to_end(place)
            assert place.rows() == undisturbed.rows(), f"crash at step {step}, {events[-1]}"
        assert step > len(undisturbed.delivered)

    run(scenario())


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(history=HISTORIES, start=st.sampled_from(["snapshot", "earliest"]))
def test_crashes_in_a_row_into_files(
    history: list[tuple[str, int]], start: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each run comes one step further than the one before it, in the same folder."""

    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        writer = await write(lake, clock, history)
        whole, place = (FilesPlace(tmp_path_factory.mktemp("out")) for _ in range(2))
        run_to_end = partial(feed, lake, clock=clock, until=writer.version, start=start, part_bytes=1)
        await run_to_end(whole)
        for step in range(1, 200):
            try:
                await run_to_end(place, hook=crash_at(step)[0])
                break
            except Crash:
                if (await position(place)) == Position("T", writer.version + 1):
                    break
        assert place.rows() == whole.rows()
        assert [file.name for file in sorted(place.folder.glob("*.jsonl"))] == [
            file.name for file in sorted(whole.folder.glob("*.jsonl"))
        ]

    run(scenario())
