"""What a feed delivers does not depend on how often it was ended."""

from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from feeding import Crash, FilesPlace, Hook, MemoryPlace, feed, position
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lake import SCHEMA, Lake, manual_clock, rows, run
from manual_time import ManualClock

from cdfd.changes.position import Position
from cdfd.demo.writer import TableWriter

# A history: what the writer does, one version after the other.
OPERATIONS = st.one_of(
    st.tuples(st.just("insert"), st.integers(1, 5)),
    st.tuples(st.just("files"), st.integers(2, 4)),
    st.tuples(st.just("update"), st.integers(0, 3)),
    st.tuples(st.just("merge"), st.integers(1, 4)),
    st.tuples(st.just("delete"), st.integers(0, 3)),
    st.tuples(st.just("optimize"), st.just(0)),
    st.tuples(st.just("add_column"), st.just(0)),
)
HISTORIES = st.lists(OPERATIONS, min_size=1, max_size=6)


async def write(lake: Lake, clock: ManualClock, history: list[tuple[str, int]]) -> TableWriter:
    writer = TableWriter(lake, SCHEMA, clock=clock, table_id="T")
    await writer.create()
    new = 0
    for operation, number in history:
        chosen = pc.bit_wise_and(pc.field("id"), 3) == number
        held = set(writer.rows()["id"].to_pylist())
        if operation == "insert":
            await writer.insert(rows(*range(new, new + number)))
            new += number
        elif operation == "files":
            await writer.commit("WRITE", [await writer._add(rows(new + n)) for n in range(number)])
            new += number
        elif operation == "update" and any(each % 4 == number for each in held):
            await writer.update(chosen, {"v": pc.scalar(f"u{writer.version}")})
        elif operation == "merge":
            await writer.merge(rows(*range(new - 1, new - 1 + number), v=f"m{writer.version}"), "id")
            new += number - 1
        elif operation == "delete" and any(each % 4 == number for each in held):
            await writer.delete(chosen)
        elif operation == "optimize":
            await writer.optimize()
        elif operation == "add_column":
            await writer.add_column(pa.field(f"c{len(writer.schema)}", pa.int32()))
    return writer


def crash_at(step: int) -> tuple[Hook, list[str]]:
    events: list[str] = []

    def hook(event: str, about: Any) -> None:
        if event != "abort":
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
