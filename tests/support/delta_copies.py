"""A table copied into a Delta table by a daemon's loop in this process, with one engine or another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from cdfd.config.settings import Settings
from cdfd.deliver.assignment import Assignment, Engine
from cdfd.scan.splits import Measured, Part, Split
from cdfd.sinks.base import connector
from cdfd.sinks.jobs import Delivered
from tests.support.faulty_storage import Died
from tests.support.kafka.delivering import Noted, run_loop


@dataclass(frozen=True)
class Copy:
    """One table and its target.

    Attributes:
        uri: of the table.
        path: of the folder that the target is in.
        table: more of the table's settings.
        sink: more of the sink's.
        spark: more of the engine's.
    """

    uri: Path
    path: Path
    table: Mapping[str, Any] = field(default_factory=dict)
    sink: Mapping[str, Any] = field(default_factory=dict)
    spark: Mapping[str, Any] = field(default_factory=dict)

    @property
    def target(self) -> Path:
        return self.path / "rows"

    def settings(self, kind: str = "embedded", part_size: int = 300_000) -> Settings:
        table = {"uri": str(self.uri), "name": "rows", "start": "earliest", **self.table}
        return Settings.model_validate(
            {
                "pipeline": "copies",
                "tables": [table],
                "sink": {"kind": "delta", "path": str(self.path), **self.sink},
                "progress": {"ledger": "none"},
                "poll": {"interval": 0.05, "max_interval": 0.1},
                "engine": {"kind": kind, "spark": {"threshold": 1, "part_size": part_size, **self.spark}},
                "http": {"listen": None},
            }
        )

    async def deliver(self, newest: int, engine: Engine | None = None, *, part_size: int = 300_000) -> Noted:
        """Deliver what is not delivered, up to a version. With an engine, each version that has files is a job of its."""
        config = self.settings("embedded" if engine is None else "auto", part_size)
        return await run_loop(config, newest, engine)

    async def position(self) -> tuple[int, str] | None:
        config = self.settings()
        position = await connector(config).position(config.tables[0])
        return None if position is None else (position.version, position.phase)

    def rows(self) -> list[dict[str, Any]]:
        """All rows of the target as delta-rs reads them, in the order of the changes, or of `id` if they are no changes."""
        rows = pa.table(DeltaTable(self.target).scan()).to_pylist()
        return sorted(rows, key=lambda row: (row.get("_commit_version"), row.get("_change_ordinal", row["id"])))

    def ids(self) -> list[int]:
        """The ids of all rows, in that order."""
        return [row["id"] for row in self.rows()]


@dataclass
class Dying:
    """An engine whose process ends after it has delivered all parts.

    Attributes:
        engine: delivers them.
        files: the number of delivered parts.
    """

    engine: Engine
    parts: int = 0

    async def measure(self, assignment: Assignment, splits: Sequence[Split]) -> list[Measured]:
        return await self.engine.measure(assignment, splits)

    async def deliver(self, assignment: Assignment, some: Sequence[Part]) -> list[Delivered]:
        self.parts += len(await self.engine.deliver(assignment, some))
        raise Died


@dataclass
class Twice:
    """An engine that delivers each part twice, as speculation does, and keeps one result of each.

    Attributes:
        engine: delivers them.
    """

    engine: Engine

    async def measure(self, assignment: Assignment, splits: Sequence[Split]) -> list[Measured]:
        return await self.engine.measure(assignment, splits)

    async def deliver(self, assignment: Assignment, some: Sequence[Part]) -> list[Delivered]:
        first = await self.engine.deliver(assignment, some)
        second = await self.engine.deliver(assignment, some)
        return [pair[number % 2] for number, pair in enumerate(zip(first, second, strict=True))]
