"""The demo against a real broker, as a user runs it."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.kafka.shared import SharedBroker


def test_every_change_arrives_and_adds_up(broker: SharedBroker, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cdfd", "demo", str(tmp_path), "--kafka", broker.bootstrap_servers]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "All 15 records applied by key: equal to the table's 7 rows." in shown
    assert re.search(r"4 commits, median [0-9.]+ ms", shown)
    assert shown.count('"_change_type":"update_postimage"') == 3
