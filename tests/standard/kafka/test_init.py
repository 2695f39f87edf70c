"""`cdfd init --kafka` with a real broker."""

from pathlib import Path

from tests.support.commands import cdfd, history
from tests.support.kafka.shared import SharedBroker
from tests.support.lake import run


def test_written_configuration_passes_check(broker: SharedBroker, tmp_path: Path) -> None:
    run(history(tmp_path / "orders"))
    ended = cdfd("init", "orders", "--kafka", broker.bootstrap_servers, "-o", "init.yaml", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    checked = cdfd("check", "-c", "init.yaml", cwd=tmp_path)
    assert (checked.code, checked.err) == (0, "")
    assert "init.orders" in checked.out
