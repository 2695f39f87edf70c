"""Two processes of a pipeline whose sink is in a store, a writer, and faults: every change is there once."""

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from deltalake import DeltaTable

import cdfd
from tests.support.chaos.faults import SEED
from tests.support.chaos.pair import Pair, report
from tests.support.kafka.history import Location, Writing

WITHIN = 60.0
_NAMES = ("_commit_version", "_change_ordinal", "_change_type", "id", "v")
Row = tuple[Any, ...]


def _of_files(place: Path) -> list[Row]:
    """The rows of a folder, in the order of its files."""
    files = sorted(place.glob("*.jsonl"))
    return [told(json.loads(line)) for file in files for line in file.read_text().splitlines()]


def _of_delta(place: Path) -> list[Row]:
    """The rows of a target, in order. A table has none itself."""
    if not (place / "_delta_log").exists():
        return []
    return sorted(map(told, DeltaTable(str(place)).to_pyarrow_table(columns=list(_NAMES)).to_pylist()))


def told(row: dict[str, Any]) -> Row:
    """The columns of a change that are compared."""
    return tuple(row[name] for name in _NAMES)


STORED: dict[str, Callable[[Path], list[Row]]] = {"files": _of_files, "delta": _of_delta}
"""For each kind of sink, what reads its rows."""


def outlive(sink: str, folder: Path, kinds: Sequence[str], faults: int) -> None:
    """Let things fail while a thread commits: each kind once, then random ones. Every change must arrive once, and no line be an error.

    Args:
        sink: of `STORED`.
        folder: an empty one.
        kinds: of faults; see `Pair.strike`.
        faults: how many.
    """
    table, random, config = Location(str(folder / "orders")), Random(SEED), folder / "cdfd.yaml"
    document = {
        "pipeline": "p",
        "tables": [{"uri": table.uri, "start": "earliest"}],
        "sink": {"kind": sink, "path": str(folder / "out")},
        "progress": {"ledger": "none"},
        "poll": {"interval": "50ms", "max_interval": "200ms"},
        "http": {"listen": None},
    }
    config.write_text(json.dumps(document))
    with contextlib.ExitStack() as stack:
        writing = stack.enter_context(Writing(table, SEED, pause=0.1))
        pair = Pair((config, config), stack)
        for number in range(faults):
            pair.strike(kinds[number] if number < len(kinds) else random.choice(kinds), random)
            time.sleep(random.uniform(0, 1))
        writing.stop()
        expected = [told(row) for row in cdfd.changes(table.uri, 0).read_all().to_pylist()]
        deadline = time.monotonic() + WITHIN
        while len(rows := STORED[sink](folder / "out" / "orders")) < len(expected) and time.monotonic() < deadline:
            time.sleep(0.1)
        pair.end()
    report(pair.took)
    assert rows == (sorted(expected) if sink == "delta" else expected)
    assert not pair.errors, pair.errors
