"""Source tables, whose plans, cuts and rows are golden. Writers for tests have written them once.

`feed` has change data files, deletion vectors, versions of several files, a new column, and a checkpoint in the middle. `tracked` has row ids
in several buckets.
"""

import asyncio
import os
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from cdfd.demo.writer import Action, TableWriter
from tests.support import checkpointed_table, lake, tracked_table
from tests.support.lake import BEGINNING
from tests.support.tracked_table import TrackedTable
from tests.support.upgrade.copies import GOLDEN


def copy_tables(lake: Path) -> Path:
    """The golden tables in a folder. The times of log entries are those of versions, and a part of some digests."""
    for name in TABLES:
        shutil.copytree(GOLDEN / "tables" / name, lake / name)
        for place, entry in enumerate(sorted((lake / name / "_delta_log").iterdir())):
            seconds = BEGINNING // 1000 + place
            os.utime(entry, (seconds, seconds))
    return lake


def write_feed(folder: Path) -> None:
    asyncio.run(_feed(checkpointed_table.writer(folder)))


async def _feed(table: TableWriter) -> None:
    await checkpointed_table.filled(table)
    layout, all_counts = checkpointed_table.LAYOUTS["one file"], checkpointed_table.STATS["all"]
    await checkpointed_table.checkpoint(table.storage, table.version, layout, all_counts)  # type: ignore[arg-type] # it is local
    await checkpointed_table.changed(table)
    await table.merge(lake.rows(20, 30, 2000, v="m"), "id")
    await table.commit("WRITE", [await table._add(lake.rows(*ids, v="w")) for ids in ((3000,), (3001, 3002), (3003,))])
    await table.commit("UPDATE", await _replaced(table, "r"))
    await _two_change_data_files(table)
    await table.add_column(pa.field("extra", pa.int32()))
    await table.optimize()
    await table.delete(pc.field("id") < 25)


async def _replaced(table: TableWriter, text: str) -> list[Action]:
    """Actions that replace files by files with other values, copied rows and a row with another key; no change data."""
    actions: list[Action] = []
    for file in list(table._files.values())[:4]:
        rows = file.live()
        changed = [text if row == 0 else value for row, value in enumerate(rows["v"].to_pylist())]
        ids = [key + 7000 if row == 1 else key for row, key in enumerate(rows["id"].to_pylist())]
        actions.append(table._remove(file))
        actions.append(await table._add(pa.table({"id": ids, "v": changed}, schema=lake.SCHEMA)))
    return actions


async def _two_change_data_files(table: TableWriter) -> None:
    """A version with two change data files, whose images are adjacent in one, and apart in the other."""
    images = {"id": [3000, 3000, 4000, 3003], "v": ["w", "x", "n", "w"]}
    kinds = ["update_preimage", "update_postimage", "insert", "delete"]
    apart = {"id": [3001, 3002, 3001, 3002], "v": ["w", "w", "y", "y"]}
    kinds_apart = ["update_preimage"] * 2 + ["update_postimage"] * 2
    actions: list[Action] = []
    for columns, types in ((images, kinds), (apart, kinds_apart)):
        rows = pa.table(columns, schema=lake.SCHEMA).append_column("_change_type", pa.array(types))
        actions += await table._change_data(rows)
    await table.commit("MERGE", [*actions, await table._add(lake.rows(4000, v="n"))])


def write_tracked(folder: Path) -> None:
    chance = random.Random(7)
    table = TrackedTable(folder)
    for block in range(4):
        # Row ids of a block are in one bucket.
        table._next_id = block << 20
        table.insert([tracked_table.values(chance, 10 * block + number) for number in range(6)])
    ids = [row.row_id for row in table.rows]
    updates = {each: tracked_table.values(chance, 100 + place) for place, each in enumerate(ids[::5])}
    table.change(chance, updates, set(ids[1::7]), [tracked_table.values(chance, 500)])
    ids = [row.row_id for row in table.rows]
    table.change(chance, {ids[3]: tracked_table.values(chance, 33)}, {ids[9]}, vectors=True)


TABLES = {"feed": write_feed, "tracked": write_tracked}
