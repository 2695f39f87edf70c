"""One table, its topic, and daemons that come and go between them."""

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdfd.demo.writer import TableWriter
from tests.support.kafka import history
from tests.support.kafka.daemon_process import Daemon, configure
from tests.support.kafka.history import Location, Writing
from tests.support.kafka.reading import Record
from tests.support.lake import SCHEMA


@dataclass
class Pipeline:
    """A pipeline. Its daemon runs as a process of its own, its readers in the test's process.

    Attributes:
        folder: an empty one, for everything.
        name: one that no other pipeline of the cluster has.
        servers: where the daemon finds the cluster.
        direct: where readers find it, whatever is between the daemon and the cluster.
        elsewhere: where the table is, unless it is a folder in `folder`. Its last segment is `orders`.
        sections: of the configuration that every `configure` includes.
        config: the file; `configure` rewrites it.
    """

    folder: Path
    name: str
    servers: str
    direct: str
    elsewhere: Location | None = None
    sections: Mapping[str, Any] = field(default_factory=dict)
    config: Path = field(init=False)

    def __post_init__(self) -> None:
        self.configure()

    @property
    def place(self) -> Location:
        return self.elsewhere or Location(str(self.folder / "orders"))

    @property
    def uri(self) -> str:
        return self.place.uri

    @property
    def topic(self) -> str:
        return f"{self.name}.orders"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def configure(
        self, table: dict[str, Any] | None = None, beside: Sequence[dict[str, Any]] = (), **sections: Any
    ) -> None:
        """Rewrite the configuration with further or other keys; `beside` are further tables."""
        tables = [{"uri": self.uri} | (table or {}), *beside]
        self.config = configure(self.folder, self.name, self.servers, tables, **{**self.sections, **sections})

    def add_sinks(self, **sinks: Mapping[str, Any]) -> None:
        """Rewrite the configuration with the Kafka sink as the sink `events`, and others by name. All use the name of the topic."""
        document = json.loads(self.config.read_text())
        document["sinks"] = {"events": document.pop("sink"), **sinks}
        for table in document["tables"]:
            table["topic"] = self.topic
        self.config.write_text(json.dumps(document))

    def daemon(self, *options: str, within: Sequence[str] = ()) -> Daemon:
        return Daemon(self.config, *options, within=within)

    def writing(self, seed: int = 1, *, pause: float = 0.02, burst: int = 0) -> Writing:
        """A writer that changes the table all the time."""
        return Writing(self.place, seed, pause=pause, burst=burst)

    def table(self) -> TableWriter:
        """The table, newly created, for changes one by one: `do(table.insert(...))`."""
        table = TableWriter(self.place.storage(), SCHEMA)
        do(table.create())
        return table

    def read(self, count: int = 0, **options: Any) -> list[Record]:
        """The delivered records, once there are `count` of them."""
        return history.await_records(self.direct, self.topic, count, **options)

    def check(self, start: int = 0, *, snapshot: bool = False) -> int:
        """Assert that every change of the table, which is at rest now, arrives exactly once. Returns the number of changes."""
        expected = history.history(self.place, start, snapshot=snapshot)
        history.check(self.place, self.read(len(expected)), expected)
        return len(expected)

    def finish(self) -> int:
        """Let a daemon deliver what there is to deliver, end it in good order, and `check`."""
        with self.daemon() as daemon:
            daemon.wait_for("at version")  # earlier, a signal may come before the daemon handles it
            self.check()
            daemon.stop()
        return self.check()


def do(change: Coroutine[Any, Any, int]) -> int:
    """Commit one change; its version."""
    return asyncio.run(change)
