"""Golden copies of all formats that outlive a process: today's readers read them, and today's writers write them.

`tests/support/upgrade/README.md` lists the formats. The copies stay as they are.
"""

import json
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from cdfd.errors import SinkError
from cdfd.sinks.jobs import Job
from cdfd.sinks.kafka.progress.records import progress_of
from cdfd.sinks.kafka.transactions.sink import job_of
from cdfd.trevni import read_table
from tests.support.upgrade import plans
from tests.support.upgrade.copies import GOLDEN, lines
from tests.support.upgrade.documents import DOCUMENTS, Documents
from tests.support.upgrade.names import names
from tests.support.upgrade.plans import JOBS, PLANS, JobStore
from tests.support.upgrade.rows import KEYS
from tests.support.upgrade.tables import copy_tables

NAMES = json.loads((GOLDEN / "names.json").read_text())


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_tables(tmp_path_factory.mktemp("lake"))


def named(document: Documents) -> str:
    return document.name


@pytest.mark.parametrize("documents", DOCUMENTS, ids=named)
def test_documents_are_read(documents: Documents) -> None:
    read = [documents.read(line) for line in lines(documents.name)]
    # Positions that differ only in their digest are equal, but their texts are not.
    assert list(map(repr, read)) == list(map(repr, documents.values))


@pytest.mark.parametrize("documents", DOCUMENTS, ids=named)
def test_documents_are_written(documents: Documents) -> None:
    assert [documents.write(value) for value in documents.values] == lines(documents.name)


@pytest.fixture(scope="module")
def actual() -> dict[str, str]:
    return names()


@pytest.mark.parametrize("name", NAMES)
def test_names_and_hashes_stay(name: str, actual: dict[str, str]) -> None:
    assert actual[name] == NAMES[name]


def test_jobs_in_progress_records_are_read() -> None:
    begun = [progress for progress in map(progress_of, lines("kafka/progress.jsonl")) if "since" in progress.job]
    assert list(map(job_of, begun)) == [
        Job("0" * 32, 12, "stream", 5, 1 << 30, "1234567890abcdef", 77),
        Job("0" * 32, 7, "snapshot", 5, 1 << 30, "paths-1234567890abcdef", 77),
    ]


@pytest.mark.parametrize("name", PLANS)
def test_plans_cuts_and_rows_stay(name: str, lake: Path) -> None:
    assert PLANS[name](lake).splitlines() == lines(name)


@pytest.mark.parametrize("number", range(len(JOBS)), ids=[f"{job[0]} {job[1]} {job[2]} {job[3]}" for job in JOBS])
def test_jobs_are_resumed(number: int, lake: Path) -> None:
    """A job that was begun resumes: its delivered parts are not delivered again, and the others are."""
    golden = orjson.loads(lines("jobs.jsonl")[number])
    _, version, phase, *_ = JOBS[number]
    job = Job("older", version, phase, golden["parts"], golden["bytes"], golden["digest"], 0)
    delivered = {int(part): ("older", [-1]) for place, part in enumerate(golden["deliveries"]) if place % 2}
    store = plans.run_job(number, lake, JobStore(job, dict(delivered)))
    assert {part: store.delivered[part] for part in delivered} == delivered
    others = {part: ordinals for part, (_, ordinals) in store.delivered.items() if part not in delivered}
    ends = {
        str(part): [min(ordinals), max(ordinals), len(ordinals)] if ordinals else []
        for part, ordinals in others.items()
    }
    assert ends == {part: ends for part, ends in golden["deliveries"].items() if int(part) not in delivered}


def test_a_job_with_another_cut_is_refused(lake: Path) -> None:
    """Otherwise `test_jobs_are_resumed` would show nothing."""
    golden = orjson.loads(lines("jobs.jsonl")[0])
    job = Job("older", 17, "stream", golden["parts"], golden["bytes"], golden["digest"], 0)
    with pytest.raises(SinkError, match="was begun as"):
        plans.run_job(0, lake, JobStore(replace(job, digest="0" * 16)))


def test_trevni_file_is_read() -> None:
    """Its header has the types of the rows, which Trevni does not have."""
    actual = read_table(GOLDEN / "rows.trv")
    assert actual.schema == expected_rows().schema
    # NaN is not equal to itself.
    assert repr(actual.to_pylist()) == repr(expected_rows().to_pylist())


def expected_rows() -> pa.Table:
    rows = pa.table(KEYS)
    place = rows.schema.get_field_index("_change_type")
    field = pa.field("_change_type", pa.string(), nullable=False)
    return rows.set_column(place, field, rows.column(place).cast(pa.string()))


def test_no_copy_is_left_out() -> None:
    """Each copy is in a test, and in the table of README.md."""
    known = {each.name for each in DOCUMENTS} | {*PLANS, "names.json", "rows.trv", "kafka/pipelines.jsonl"}
    folders = ("tables", "ledger", "source", "folders", "pipelines")
    actual = [path.relative_to(GOLDEN).as_posix() for path in GOLDEN.rglob("*") if path.is_file()]
    assert {name for name in actual if not name.startswith(folders)} == known
    readme = (GOLDEN.parent / "README.md").read_text()
    assert [name for name in actual if not any(f"`{listed}`" in readme for listed in (name, *names_above(name)))] == []


def names_above(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) + "/" for count in range(1, len(parts))]
