"""The hash of the last log entry in positions: where it is kept, and that positions of earlier versions of cdfd, which have none, count."""

import json
from pathlib import Path
from typing import Any

import pytest

from cdfd.log.log import DeltaLog
from cdfd.model.position import ORDINAL_SPAN, Position
from cdfd.sinks.files.folder import read_position
from cdfd.sinks.kafka.progress.records import Progress, progress_of, value_of
from tests.support.feeding import FilesPlace, MemoryPlace, Place, feed, position
from tests.support.lake import Lake, table
from tests.support.manual_time import ManualClock

OLD = {"table_id": "T", "version": 3, "part": 0, "phase": "stream", "ordinal": 0}


@pytest.mark.parametrize(
    ("position", "basis"),
    [
        (Position("T", 3), 2),
        (Position("T", 0), -1),
        (Position("T", 3, 1), 3),
        (Position("T", 3, phase="snapshot"), 3),
        (Position("T", 3, 2, "snapshot"), 3),
    ],
)
def test_what_a_position_depends_on(position: Position, basis: int) -> None:
    assert position.basis == basis


@pytest.mark.parametrize(
    ("position", "refined", "unrefined"),
    [
        (Position("T", 3, 1, ordinal=ORDINAL_SPAN), True, False),
        (Position("T", 3, 1, ordinal=ORDINAL_SPAN - 1), False, True),
        (Position("T", 3, 0, ordinal=ORDINAL_SPAN), False, False),
        (Position("T", 3, 1, "snapshot", ORDINAL_SPAN), False, False),
    ],
)
def test_ordinals_of_buckets_are_far_apart(position: Position, refined: bool, unrefined: bool) -> None:
    assert (position.is_refined, position.is_unrefined) == (refined, unrefined)


def test_a_record_of_the_progress_topic() -> None:
    written = value_of(Progress(Position("T", 3, digest="ab")))
    assert progress_of(written).position.digest == "ab"
    without = value_of(Progress(Position("T", 3)))
    assert "digest" not in json.loads(without)
    for progress in (progress_of(without), progress_of(json.dumps(OLD).encode())):
        assert (progress.position, progress.position.digest) == (Position("T", 3), None)
    with pytest.raises(ValueError, match="digest is 7"):
        progress_of(json.dumps(OLD | {"digest": 7}).encode())


def test_the_position_of_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "_position.json"
    for more, digest in (({}, None), ({"digest": "ab"}, "ab")):
        file.write_text(json.dumps({"format": 1, **OLD, **more, "delivered": True}))
        actual = read_position(str(tmp_path))
        assert actual is not None
        assert (actual, actual.digest) == (Position("T", 3), digest)


def test_an_offset_of_spark() -> None:
    pytest.importorskip("pyspark")
    from cdfd.spark.source.offsets import Offset

    old = OLD | {"first_version": 1, "first_phase": "stream"}
    assert Offset.from_json(old).to_json() == old
    assert Offset.from_json(old | {"digest": "ab"}).position.digest == "ab"
    assert Offset.from_json(old | {"digest": "ab"}).to_json() == old | {"digest": "ab"}


@pytest.mark.parametrize("start", ["snapshot", "earliest", 2])
@pytest.mark.parametrize("kind", [MemoryPlace, FilesPlace])
async def test_every_delivery_leaves_that_of_the_entry_before(
    kind: type[Place], start: object, tmp_path: Path, clock: ManualClock
) -> None:
    lake, place = Lake(clock), kind(tmp_path / "out")
    writer = await table(lake, 4, clock)
    await writer.optimize()
    actual: list[Position] = []

    def note(event: str, about: Any) -> None:
        if event == "committed":
            actual.append(about)

    await feed(lake, place, clock, 4, start=start, hook=note)
    assert len(actual) > 1
    for each in [*actual, await position(place)]:
        assert each is not None
        digest = await DeltaLog(lake).digest(each.basis) if each.basis >= 0 else None
        assert each.digest == digest, each
