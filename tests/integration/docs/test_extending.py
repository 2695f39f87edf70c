"""The sink of `docs/extending.md`: registered as the page says, it delivers a table exactly once, whatever ends the daemon.

That it keeps the contract of sinks, tests/standard/contract/test_sink.py looks at.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cdfd.storage.local import LocalStorage
from tests.support.docs import sqlite_sink
from tests.support.lake import manual_clock, rows, run, table

WITHIN = 60.0


def test_the_sink_is_small() -> None:
    lines = [line for block in sqlite_sink.blocks("python") for line in block.splitlines() if line.strip()]
    assert len(lines) < 100


class Installed:
    """A folder with the page's package and its configuration.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "packages").mkdir()
        sqlite_sink.install(folder / "packages")
        [configuration] = sqlite_sink.blocks("yaml")
        (folder / "shop.yaml").write_text(f"{configuration}http: {{listen: null}}\npoll: {{interval: 50ms}}\n")

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": os.pathsep.join([str(self.folder / "packages"), *sys.path])}

    def cdfd(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cdfd", *arguments, "-c", str(self.folder / "shop.yaml")]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=WITHIN)

    @contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "cdfd", "run", "-c", str(self.folder / "shop.yaml")]
        with subprocess.Popen(command, env=self.environment) as process:
            try:
                yield process
            finally:
                process.kill()

    def delivered(self) -> list[int]:
        """Ids of the rows in the database, in order."""
        path = self.folder / "changes" / "orders.db"
        if not path.exists():
            return []
        with closing(sqlite3.connect(path)) as database:
            known = database.execute("SELECT name FROM sqlite_master WHERE name = 'changes'").fetchone()
            texts = database.execute("SELECT row FROM changes ORDER BY rowid").fetchall() if known else []
        return [json.loads(text)["id"] for (text,) in texts]

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + WITHIN
        while len(self.delivered()) < count:
            assert time.monotonic() < deadline, self.delivered()
            time.sleep(0.05)


def test_a_daemon_delivers_exactly_once_over_restarts(tmp_path: Path) -> None:
    installed = Installed(tmp_path)
    writer = run(table(LocalStorage(tmp_path / "orders", sync=False), 6, manual_clock()))
    with installed.daemon() as daemon:
        installed.wait_for(5)
        daemon.kill()
    for number in range(100, 120):
        run(writer.insert(rows(number)))
    with installed.daemon() as daemon:
        installed.wait_for(6)
        daemon.kill()
    with installed.daemon() as daemon:
        # The daemon before may have delivered all rows. A new one shows that this one has started.
        run(writer.insert(rows(120)))
        installed.wait_for(26)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(WITHIN) == 0
    assert installed.delivered() == [1, 2, 3, 4, 5, *range(100, 121)]
    shown = installed.cdfd("progress", "show")
    assert shown.stdout.splitlines()[1].split()[:2] == ["orders", str(writer.version)]


def test_check_knows_the_sink_and_its_keys(tmp_path: Path) -> None:
    installed = Installed(tmp_path)
    run(table(LocalStorage(tmp_path / "orders", sync=False), 2, manual_clock()))
    assert installed.cdfd("check").returncode == 0
    path = tmp_path / "shop.yaml"
    text = path.read_text()
    for wrong, told in (
        ("sqlit", 'sink.kind: expected one of kafka, files, delta, sqlite (did you mean sqlite?), found "sqlit"'),
        ("sqlite\n  pth: x", 'sink.pth: unknown key, did you mean "path"?'),
    ):
        path.write_text(text.replace("kind: sqlite", f"kind: {wrong}"))
        refused = installed.cdfd("check")
        assert (refused.returncode, told in refused.stderr) == (2, True), refused.stderr
