"""What `cdfd check` says about the target of a Delta sink."""

import json
from pathlib import Path

import pytest

from cdfd.config import load
from cdfd.config.settings import Table
from cdfd.sinks.base import connector
from tests.support.feeding import DeltaPlace, feed
from tests.support.lake import Lake, manual_clock, run, table


@pytest.mark.parametrize(
    ("features", "interval", "said"),
    [
        ([], 100, "ok"),
        (["variantType"], 100, "ok, but the target gets no checkpoints, because of variantType"),
        (["variantType", "typeWidening-preview"], 100, "because of typeWidening-preview, variantType"),
        (["variantType"], 0, "ok"),
    ],
)
def test_target_without_checkpoints(tmp_path: Path, features: list[str], interval: int, said: str) -> None:
    async def made() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        await table(lake, 2, clock)
        await feed(lake, DeltaPlace(tmp_path / "out" / "orders"), clock, 1, start="earliest")

    run(made())
    log = tmp_path / "out" / "orders" / "_delta_log"
    names = sorted([*features, "deletionVectors"])
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": names, "writerFeatures": names}
    (log / f"{len(list(log.glob('*.json'))):020}.json").write_text(json.dumps({"protocol": protocol}))
    config = tmp_path / "c.yaml"
    sink = {"kind": "delta", "path": str(tmp_path / "out"), "checkpoint_interval": interval}
    tables = [{"uri": str(tmp_path / "orders")}]
    config.write_text(json.dumps({"pipeline": "shop", "tables": tables, "sink": sink}))
    settings = load(config)
    listed = settings.tables[0]
    assert isinstance(listed, Table)
    found = run(connector(settings).check(listed))
    assert said in found if "because" in said else found == said
