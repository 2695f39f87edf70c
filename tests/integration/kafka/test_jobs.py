"""Versions delivered as jobs of many parts, by the daemon's own engine: the same records as without."""

from pathlib import Path

import pytest

from cdfd.daemon.engines import EmbeddedEngine
from cdfd.deliver.admission import Admission
from tests.support.kafka.delivering import Delivering, contents, in_order
from tests.support.kafka.shared import SharedBroker
from tests.support.oracle.workload import Workload


@pytest.mark.parametrize(("seed", "form"), [(1, "flat"), (4, "cloudevents")])
async def test_the_same_records(broker: SharedBroker, name: str, tmp_path: Path, seed: int, form: str) -> None:
    newest = [step.version for step in Workload(tmp_path / "rows", seed).steps(9)][-1]
    delivering = Delivering(broker.bootstrap_servers, name, str(tmp_path / "rows"), {"key": ["id"]}, {"format": form})

    await delivering.deliver(newest)
    first = delivering.records()
    await delivering.forget()
    await delivering.deliver(newest, EmbeddedEngine(Admission(1)))
    second = delivering.since(first)
    assert contents(second) == contents(first)
    assert first
    if form == "flat":
        assert in_order(first)
        assert in_order(second)
    told = [{key: value for key, value in each.items() if key != "ts_ms"} for each in delivering.transactions()]
    half = len(told) // 2
    assert told[:half] == told[half:]
