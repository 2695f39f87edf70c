"""The hash of the last log entry in positions: where it is kept, and that positions of earlier versions of cdfd, which have none, count."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdfd.config.parser import parse
from cdfd.config.settings import Settings
from cdfd.delta.types.datatypes import StructType
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import SinkError
from cdfd.log.log import DeltaLog
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.model.position import ORDINAL_SPAN, Position
from cdfd.model.refinement import Refinement, RowTracking
from cdfd.sinks.base import Connector, connector
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


REFINED = {
    "by key": (Refinement((), ("id",)), 163982546455336),
    "by another key": (Refinement((), ("v",)), None),
    "by row ids": (Refinement((), (), RowTracking(None, None)), 263447441991104),
    "by row ids, then by key": (Refinement((), ("id",), RowTracking(None, None)), 105617727350824),
    "images": (Refinement((), ("id",), images=True), None),
}


def test_parts_continue_those_that_were_planned_alike() -> None:
    scans = tuple(FileScan("a", None, {}, 1) for _ in range(3))
    schema = TableSchema(StructType(()))
    plan = ChangePlan(3, 0, schema, scans, "files")
    others = [replace(plan, refinement=refinement) for refinement, _ in REFINED.values()]
    others += [plan, replace(plan, origin="cdc"), replace(plan, key=("id",)), replace(plan, where="id > 1")]
    for each in others:
        ordinal = ORDINAL_SPAN if each.refinement else 1
        position = Position("T", 3).at_part(1, ordinal, plan=each.parts_id)
        assert [other for other in others if other.continues(position)] == [each]
        # Those of earlier releases do not say it.
        assert each.continues(Position("T", 3).at_part(1, ordinal))
        assert each.continues(Position("T", 3, plan=1))
    for refinement, number in REFINED.values():
        assert number in (None, replace(plan, refinement=refinement).parts_id)


def test_a_position_says_how_its_parts_were_planned() -> None:
    parted = Position("T", 3, 1, plan=7)
    assert progress_of(value_of(Progress(parted))).position.plan == 7
    assert Position.parse(parted.fields()).plan == 7
    assert "plan" not in Position("T", 3, 1).fields()
    with pytest.raises(ValueError, match="plan is '7'"):
        Position.parse(parted.fields() | {"plan": "7"})


@pytest.mark.parametrize("field", ["version", "part", "ordinal", "plan"])
def test_number_that_no_ledger_can_store_is_no_position(field: str) -> None:
    most = (1 << 63) - 1
    fields = Position("5f", 12, 1, ordinal=7, plan=9).fields()
    assert Position.parse(fields | {field: most}).fields()[field] == most
    with pytest.raises(ValueError, match=f"{field} is {most + 1}"):
        Position.parse(fields | {field: most + 1})


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


@pytest.mark.parametrize("kind", ["files", "delta"])
class TestOtherTopic:
    """A folder and a Delta target have the position, so a table that gets another topic would begin again."""

    STORED = Position("T", 3, digest="d")

    @staticmethod
    def settings(folder: Path, kind: str, topic: str, more: str = "") -> Settings:
        sink = f"sink: {{kind: {kind}, path: {folder}/out}}"
        return parse(f"pipeline: shop\ntables: [{{uri: /t, name: orders, topic: {topic}}}{more}]\n{sink}\n", {})

    async def deliver(self, config: Settings) -> Connector:
        sinks, table = connector(config), config.listed[0]
        async with sinks.open(table) as sink:
            await (await sink.begin(self.STORED)).commit(self.STORED)
        return sinks

    async def refused(self, sinks: Connector, config: Settings) -> None:
        (table,) = config.listed
        with pytest.raises(SinkError, match="delivered with another `topic`") as caught:
            await sinks.position(table)
        with pytest.raises(SinkError, match="delivered with another `topic`"):
            async with sinks.open(table):
                pass
        assert str(caught.value.path).endswith("/out/one")

    async def test_it_is_refused_until_the_folder_is_renamed(self, tmp_path: Path, kind: str) -> None:
        running = await self.deliver(self.settings(tmp_path, kind, "one"))
        config = self.settings(tmp_path, kind, "two")
        await self.refused(running, config)  # the settings are read again
        await self.refused(connector(config), config)
        assert not (tmp_path / "out/two").exists()
        (tmp_path / "out/one").rename(tmp_path / "out/two")
        assert await connector(config).position(config.listed[0]) == self.STORED
        await self.deliver(config)

    async def test_it_begins_again_once_the_folder_is_moved_away(self, tmp_path: Path, kind: str) -> None:
        await self.deliver(self.settings(tmp_path, kind, "one"))
        (tmp_path / "out/one").rename(tmp_path / "one")
        config = self.settings(tmp_path, kind, "two")
        assert await connector(config).position(config.listed[0]) is None
        await self.deliver(config)

    async def test_folders_of_other_tables_do_not_count(self, tmp_path: Path, kind: str) -> None:
        await self.deliver(self.settings(tmp_path, kind, "one"))
        (tmp_path / "out/foreign/_delta_log").mkdir(parents=True)
        (tmp_path / "out/foreign/_delta_log/00000000000000000000.json").write_text("damaged")
        (tmp_path / "out/foreign/_position.json").write_text("damaged")
        (tmp_path / "out/file").touch()
        more = ", {uri: /u}"
        config = self.settings(tmp_path, kind, "one", more)
        assert await connector(config).position(config.listed[1]) is None

    async def test_position_of_an_earlier_release(self, tmp_path: Path, kind: str) -> None:
        """Its folders of files do not say of which table they are, until this release opens them."""
        await self.deliver(self.settings(tmp_path, kind, "one"))
        stored = tmp_path / "out/one/_position.json"
        if kind == "files":
            document = json.loads(stored.read_text())
            assert document.pop("table") == "cdfd/shop/orders"
            stored.write_text(json.dumps(document))
        async with connector(config := self.settings(tmp_path, kind, "one")).open(config.listed[0]) as sink:
            assert await sink.last_position() == self.STORED
        config = self.settings(tmp_path, kind, "two")
        await self.refused(connector(config), config)
