"""A job whose tasks die in every way: what a test runs as a process of its own.

python -m tests.support.spark.faulty_engine MASTER SERVERS NAME TABLE NEWEST NOTES PLANNING
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cdfd.config.sections import SparkEngine as Settings
from cdfd.deliver.assignment import Assignment
from cdfd.scan.splits import Part
from cdfd.sinks.jobs import Delivered
from cdfd.sinks.kafka.transactions.delivery import KafkaDelivery
from cdfd.spark.engine.engine import SparkEngine, deliver_part, unpack
from cdfd.spark.engine.sessions import Sessions
from tests.support.kafka.delivering import Delivering
from tests.support.spark.session import quick


def faulty(notes: str, assignment: Assignment, item: bytes) -> bytes:
    """Delivers a part, and the first time ends in one way or another; how, its number decides."""
    number, _ = unpack(item)
    note = Path(notes, str(number))
    if note.exists():
        return deliver_part(assignment, item)
    note.touch()
    if number == 2:

        async def killed(*_: Any, **__: Any) -> None:
            os._exit(1)

        KafkaDelivery.commit = killed  # type: ignore[method-assign] # of this worker, which ends with it
    result = deliver_part(assignment, item)
    if number == 0:
        raise RuntimeError("delivered, and nobody hears of it")
    if number == 1:
        os._exit(1)
    if number == 3 and Path(notes, "cluster").exists():
        # The worker's parent is PySpark's daemon, and the parent of that one the executor.
        stat = Path(f"/proc/{os.getppid()}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    return result


class FaultyEngine(SparkEngine):
    def __init__(self, sessions: Sessions, notes: str) -> None:
        super().__init__(sessions)
        self._notes = notes

    async def deliver(self, assignment: Assignment, some: Sequence[Part]) -> list[Delivered]:
        results = await self._run(assignment, some, partial(faulty, self._notes, assignment))
        return [delivery for deliveries in results for delivery in deliveries]


async def main(master: str, servers: str, name: str, table: str, newest: str, notes: str, planning: str) -> None:
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.local.dir": notes,
    } | quick(notes)
    settings = Settings.model_validate({"master": master, "conf": conf})
    engine = FaultyEngine(Sessions(settings, name), notes)
    try:
        more = {"key": ["id"], "start": "snapshot"}
        delivering = Delivering(servers, name, table, more, {}, {"snapshot_planning": planning})
        noted = await delivering.deliver(int(newest), engine, part_size=100_000)
    finally:
        await engine.close()
    print(dict(noted.rows))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
