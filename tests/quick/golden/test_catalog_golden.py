"""A catalog-managed table that a real Unity Catalog server and delta-spark made, read at every state through a server with its answers."""

import json
import shutil
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import cdfd
from tests.support.catalogs.unity_server import UnityServer, unity_server

GOLDEN = Path(__file__).parents[4] / "shared" / "golden" / "catalog" / "orders"
NAME = "unity.default.orders"
STATES = sorted(path.stem for path in (GOLDEN / "answers").glob("0*.json"))

pytestmark = pytest.mark.skipif(not GOLDEN.exists(), reason="golden tables are not here")


class Recorded:
    """The table in a folder of its own, and a server that gives a recorded answer."""

    def __init__(self, server: UnityServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.log = folder / "_delta_log"
        shutil.copytree(GOLDEN / "table", folder)
        server.add_table(NAME, folder.as_uri())

    def answer(self, state: str) -> dict[str, Any]:
        """The recorded answer, which the server gives from now on."""
        text = (GOLDEN / "answers" / f"{state}.json").read_text().replace("@TABLE@", self.folder.as_uri())
        document: dict[str, Any] = json.loads(text)["load_table"]
        self.server.altered = lambda _: document
        return document

    def changes(self) -> Counter[str]:
        """The change rows of all versions now."""
        reader = cdfd.changes(f"uc://{NAME}", storage_options={"endpoint": self.server.url})
        return Counter(map(_line, reader.read_all().drop_columns(["_change_ordinal"]).to_pylist()))


def _line(row: dict[str, Any]) -> str:
    row = row | {"extra": row.get("extra")}
    moment = row["_commit_timestamp"]
    if isinstance(moment, str):
        row["_commit_timestamp"] = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    return json.dumps(row, sort_keys=True, default=str)


def expected(latest: int) -> Counter[str]:
    rows = json.loads((GOLDEN / "changes.json").read_text())
    return Counter(_line(row) for row in rows if row["_commit_version"] <= latest)


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    with unity_server(tmp_path) as server:
        yield Recorded(server, tmp_path / "orders")


@pytest.mark.parametrize("state", STATES)
def test_published_versions_are_read_up_to_the_ratified_one(recorded: Recorded, state: str) -> None:
    """An answer that is older than the log, too: published versions above the ratified one are not read."""
    latest = recorded.answer(state)["latest-table-version"]
    assert recorded.changes() == expected(latest)


@pytest.mark.parametrize("state", [state for state in STATES if state != "00"])
def test_ratified_and_not_published(recorded: Recorded, state: str) -> None:
    latest = recorded.answer(state)["latest-table-version"]
    for version in range(latest, 9):
        (recorded.log / f"{version:020d}.json").unlink()
    assert recorded.changes() == expected(latest)


def test_staged_and_never_ratified(recorded: Recorded) -> None:
    """The answer before the last statement, whose staged commit is there."""
    recorded.answer("07")
    (recorded.log / f"{8:020d}.json").unlink()
    assert recorded.changes() == expected(7)


def test_answer_that_goes_back(recorded: Recorded) -> None:
    recorded.answer("09")
    assert recorded.changes() == expected(8)
    recorded.answer("06")
    assert recorded.changes() == expected(6)


@pytest.mark.parametrize(("recording", "path"), [("config", "config?catalog=unity&protocol-versions=1.0")])
def test_stand_in_has_the_recorded_shape(recorded: Recorded, recording: str, path: str) -> None:

    known = json.loads((GOLDEN / "answers" / "api.json").read_text())
    base = f"{recorded.server.url}/api/2.1/unity-catalog/delta/v1"
    table = "catalogs/unity/schemas/default/tables/orders"
    recorded.server.altered = None

    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"{base}/{path}", timeout=30) as response:
            return json.load(response)

    assert ask(path) == known[recording]
    assert _shape(ask(f"{table}/credentials?operation=READ")) == _shape(known["credentials"])
    recorded.server.ratify(NAME, 1, f"{1:020d}.a.json", size=1, modified_ms=1)
    answer = json.loads((GOLDEN / "answers" / "01.json").read_text())["load_table"]
    answer["metadata"]["columns"]["fields"] = []
    answer["metadata"]["properties"] = {"delta.feature.catalogManaged": "supported"}
    assert _shape(ask(table)) == _shape(answer)
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask("catalogs/unity/schemas/default/tables/nothing")
    with caught.value as missing:
        assert (missing.code, json.load(missing)) == (404, json.loads(known["missing"]["body"]))


def _shape(value: Any) -> Any:
    """The names and types of a JSON value."""
    if isinstance(value, dict):
        return {name: _shape(each) for name, each in value.items()}
    return [_shape(each) for each in value] if isinstance(value, list) else type(value).__name__
