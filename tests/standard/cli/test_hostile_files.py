"""A daemon whose tables have inconsistent files: each file fails its own table, and the other tables are delivered."""

import json
import signal
from pathlib import Path

from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.standard.cli.test_many_tables import configure, delivered, wait_until
from tests.support.commands import started
from tests.support.hostile_pages import HOSTILE, write_table
from tests.support.lake import SCHEMA, rows, run


def test_hostile_files_stop_their_own_tables_only(tmp_path: Path) -> None:
    writer = TableWriter(LocalStorage(tmp_path / "good"), SCHEMA)
    run(writer.create())
    run(writer.insert(rows(1)))
    names = {f"hostile-{number}": name for number, name in enumerate(HOSTILE)}
    for folder, name in names.items():
        kind, data = HOSTILE[name]
        write_table(tmp_path / folder, data, kind)
    entries = [{"uri": str(tmp_path / folder), "start": "earliest"} for folder in ("good", *names)]
    with started("run", "-c", configure(tmp_path, *entries)) as daemon:
        wait_until(lambda: delivered(tmp_path, "good") == [1])
        told: dict[str, str] = {}
        while len(told) < len(names):
            line = json.loads(daemon.log_line("f.parquet"))
            told[Path(line["table"]).name] = line["message"]
        run(writer.insert(rows(2)))
        wait_until(lambda: delivered(tmp_path, "good") == [1, 2])
        assert daemon.end(signal.SIGTERM).code == 0
    assert told.keys() == names.keys()
    assert all("version 0" in message for message in told.values()), told
    assert [each.name for each in (tmp_path / "out").iterdir() if list(each.glob("*.jsonl"))] == ["good"]
