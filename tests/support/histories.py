"""Histories of tables, for tests of properties: what a writer does, one version after the other."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from cdfd.demo.writer import TableWriter
from tests.support.lake import SCHEMA, Lake, rows
from tests.support.manual_time import ManualClock

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
    await write_more(writer, history)
    return writer


async def write_more(writer: TableWriter, history: list[tuple[str, int]]) -> None:
    """Continue a history. `restore` brings an earlier state back."""
    kept = [dict(writer._files)]
    new = 100 * (writer.version + 1) if writer.version else 0
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
        elif operation == "restore":
            await restore(writer, kept[number % len(kept)])
        kept.append(dict(writer._files))


async def restore(writer: TableWriter, files: dict[str, Any]) -> None:
    """RESTORE: the files of an earlier version, as they were."""
    gone = [file for path, file in writer._files.items() if files.get(path) != file]
    back = [file for path, file in files.items() if writer._files.get(path) != file]
    actions = [writer._remove(file) for file in gone]
    writer._files.update({file.path: file for file in back})
    await writer.commit("RESTORE", [*actions, *(writer._add_action(file) for file in back)])
