"""`cdfd diff`: the rows that differ between two versions of a table, or between two tables."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cdfd.cli.commands.tail import Existing, Writer, open_output
from cdfd.cli.difference import Difference, State
from cdfd.errors import ConfigError
from cdfd.log.table import Table
from cdfd.runtime import allocator
from cdfd.scan.updates.net import counts
from cdfd.scan.updates.spill import spill_space


@dataclass(frozen=True, slots=True)
class Request:
    """The options of the command.

    Attributes:
        uri: the table.
        start: the version before; None: that of `end`, if there is another table.
        end: the version after; None: the newest.
        other: another table, which is the state after.
        key: columns that identify a row.
        columns: the columns to compare; None: all.
        only_summary: print the summary alone, as JSON on standard output.
        output: file for the rows.
        existing: what to do with an `output` that is not empty.
        allowed_roots, path_prefixes, max_log_line: see `Table.open`.
    """

    uri: str
    start: str | None = None
    end: str | None = None
    other: str | None = None
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    only_summary: bool = False
    output: Path | None = None
    existing: Existing = "refuse"
    allowed_roots: tuple[str, ...] = ()
    path_prefixes: Mapping[str, str] = field(default_factory=dict)
    max_log_line: int | None = None


def run(request: Request) -> None:
    """Print the rows that differ, and a summary to standard error.

    Raises:
        CdfdError: with table, version and file.
    """
    if request.start is None and request.other is None:
        raise ConfigError("diff needs two states", hint="Give --from VERSION, or --other TABLE")
    allocator.settle()
    reach = partial(
        Table.open,
        allowed_roots=request.allowed_roots,
        path_prefixes=request.path_prefixes,
        max_log_line=request.max_log_line,
    )
    table = reach(request.uri)
    other = table if request.other is None else reach(request.other)
    before, after = asyncio.run(_states(table, other, request))
    difference = Difference(before, after, request.key, request.columns, spill_space())
    total = dict.fromkeys(("insert", "update", "delete"), 0)
    with open_output(request.output, request.existing) as out:
        writer = Writer(request.uri, "flat", out)
        writer.begin(None, empty=request.existing == "overwrite")
        for batch in difference.batches():
            found = counts([batch])
            total["insert"] += found["insert"]
            total["update"] += found["update_postimage"]
            total["delete"] += found["delete"]
            if not request.only_summary:
                writer.write_rows([batch])
        if request.only_summary:
            document = {"before": _about(before), "after": _about(after), **total, "equal": not any(total.values())}
            out.write(json.dumps(document).encode() + b"\n")
            out.flush()
    if not request.only_summary:
        print(_summary(before, after, total), file=sys.stderr)  # noqa: T201 - a summary for people, beside the rows


async def _states(table: Table, other: Table, request: Request) -> tuple[State, State]:
    if request.other is None:
        return await State.at(table, request.start), await State.at(table, request.end)
    return await State.at(table, request.start), await State.at(other, request.end)


def _about(state: State) -> dict[str, object]:
    return {"table": state.table.uri, "version": state.plan.version}


def _summary(before: State, after: State, total: dict[str, int]) -> str:
    where = f"version {before.plan.version} and version {after.plan.version}"
    if before.table.uri != after.table.uri:
        where = f"{before.table.uri} ({before.plan.version}) and {after.table.uri} ({after.plan.version})"
    if not any(total.values()):
        return f"{where} have the same rows"
    return f"{where} differ: {total['insert']} inserted, {total['update']} updated, {total['delete']} deleted"
