"""Discovery and what is odd in a lake: links out of it and inside, and folders that cannot be read. Each harms itself alone."""

import asyncio
import logging
import os
import re
import shutil
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from cdfd.config.parser import parse
from cdfd.config.settings import Settings
from cdfd.daemon.assembly import ledgers
from cdfd.daemon.http.status import Status
from cdfd.daemon.membership.discovery import Folders, FolderSearch
from cdfd.daemon.membership.members import Members
from cdfd.daemon.supervision.supervisor import Supervisor
from cdfd.deliver.configured import open_table
from cdfd.demo.writer import TableWriter
from cdfd.errors import PathError, StorageError
from cdfd.storage.base import Stat
from cdfd.storage.local import LocalStorage
from tests.support.lake import SCHEMA, run
from tests.support.manual_time import ManualClock
from tests.support.privileges import unprivileged
from tests.support.sampling import stride
from tests.support.searches import search


def create(place: Path) -> None:
    run(TableWriter(LocalStorage(place), SCHEMA).create())


def config(pattern: Path | str, entry: str = "", more: str = "") -> Settings:
    return parse(
        f"pipeline: p\ntables: [{{discover: '{pattern}'{entry}}}]\nsink: {{kind: files, path: /out}}\n{more}", {}
    )


def looked(settings: Settings) -> Folders:
    return run(FolderSearch(settings, settings.discoveries[0]).search())


def names(settings: Settings) -> dict[str, str]:
    """The tables that are delivered: their locations by name."""
    return {name: table.table.uri for name, table in run(search(settings)).entries.items()}


@pytest.fixture
def top() -> Iterator[Path]:
    """A folder with a table in `lake` and one outside, below folders that all users may search."""
    with TemporaryDirectory() as folder:
        top = Path(folder)
        top.chmod(0o755)
        create(top / "lake/good")
        create(top / "outside/secret")
        yield top


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link out": (
        lambda bad: bad.symlink_to("../outside/secret"),
        "a symbolic link leads out of .*/lake, to .*/outside/secret",
    ),
    "a link out by two": (
        lambda bad: (bad.parent / "_other").symlink_to("../outside/secret") or bad.symlink_to("_other"),
        "a symbolic link leads out of .*/lake, to .*/outside/secret",
    ),
    "a log that is a link out": (
        lambda bad: bad.mkdir() or (bad / "_delta_log").symlink_to("../../outside/secret/_delta_log"),
        "a symbolic link leads out of the table, to .*/outside/secret/_delta_log",
    ),
    "a log that is another table's": (
        lambda bad: bad.mkdir() or (bad / "_delta_log").symlink_to("../good/_delta_log"),
        "a symbolic link leads out of the table, to .*/lake/good/_delta_log",
    ),
    "a log that is a file": (lambda bad: bad.mkdir() or (bad / "_delta_log").write_text(""), "_delta_log is a file"),
    "a log that is a FIFO": (lambda bad: bad.mkdir() or os.mkfifo(bad / "_delta_log"), "not a regular file"),
    "a loop": (lambda bad: bad.symlink_to("bad"), "Too many levels of symbolic links"),
    "a log that is a loop": (
        lambda bad: bad.mkdir() or (bad / "_delta_log").symlink_to("_delta_log"),
        "Too many levels of symbolic links",
    ),
    "a closed folder": (lambda bad: create(bad) or bad.chmod(0), "Permission denied"),
    "a closed log": (lambda bad: create(bad) or (bad / "_delta_log").chmod(0), "Permission denied"),
}
ABOVE = ("a link out", "a link out by two", "a loop", "a closed folder")


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_folder_is_an_error_of_its_own(top: Path, kind: str) -> None:
    make, what = BAD[kind]
    make(top / "lake/bad")
    settings = config(top / "lake/*")
    with unprivileged():
        folders = looked(settings)
    assert folders.tables == [("good",)]
    [error] = folders.errors
    assert error.table == str(top / "lake/bad")
    assert re.search(what, error.what)
    assert "`exclude`" in (error.hint or "")


@pytest.mark.parametrize("kind", ABOVE)
def test_a_bad_folder_above_tables_is_an_error_of_its_own(top: Path, kind: str) -> None:
    create(top / "lake/eu/orders")
    BAD[kind][0](top / "lake/bad")
    with unprivileged():
        folders = looked(config(top / "lake/*/orders"))
    assert folders.tables == [("eu", "orders")]
    assert [error.table for error in folders.errors] == [str(top / "lake/bad")]


def test_exclude_leaves_out_a_bad_folder(top: Path) -> None:
    (top / "lake/bad").symlink_to("../outside/secret")
    assert not looked(config(top / "lake/*", ", exclude: [bad]")).errors
    for pattern, exclude in (("*/orders", "bad/orders"), ("*/orders", "bad/*"), ("*/*", "b*/*"), ("*/*/x", "bad/*/*")):
        assert not looked(config(top / "lake" / pattern, f", exclude: ['{exclude}']")).errors, pattern
    for pattern, exclude in (
        ("*/*", "bad/a*"),
        ("*/*", "bad/?"),
        ("*/*", "orders"),
        ("*/*/x", "bad/*"),
        ("*/*", "good/*"),
    ):
        assert looked(config(top / "lake" / pattern, f", exclude: ['{exclude}']")).errors, pattern


def test_a_link_into_an_allowed_root_is_a_table(top: Path) -> None:
    (top / "lake/there").symlink_to(top / "outside/secret")
    (top / "lake/elsewhere").symlink_to(top / "out")
    (top / "out").mkdir()
    settings = config(top / "lake/*", f", allowed_roots: ['{top}/outside']")
    folders = looked(settings)
    assert folders.tables == [("good",), ("there",)]
    assert [error.table for error in folders.errors] == [str(top / "lake/elsewhere")]
    [there] = [table.table for table in run(search(settings)).entries.values() if table.table.name == "there"]
    assert run(open_table(settings, there).log.header()).version == 0


@pytest.mark.parametrize(
    "pattern", ["{top}/link/*", "{top}/link/../lake/*", "file://{top}/link/*", "{top}/deep{top}/lake/*"]
)
def test_the_user_s_own_pattern_may_go_through_links(top: Path, pattern: str) -> None:
    (top / "link").symlink_to("lake")
    (top / "deep").symlink_to("/")
    folders = looked(config(pattern.format(top=top)))
    assert (folders.tables, folders.errors) == ([("good",)], [])


class TestLinksInside:
    def test_a_link_to_a_folder_that_the_pattern_leaves_out_is_a_table(self, top: Path) -> None:
        create(top / "lake/_versions/7")
        (top / "lake/current").symlink_to("_versions/7")
        settings = config(top / "lake/*")
        assert names(settings) == {"good": f"{top}/lake/good", "current": f"{top}/lake/current"}
        [current] = [table.table for table in run(search(settings)).entries.values() if table.table.name == "current"]
        assert run(open_table(settings, current).log.header()).version == 0

    @pytest.mark.parametrize("link", ["a", "z"])
    def test_of_a_folder_and_a_link_to_it_the_folder_is_delivered(self, top: Path, link: str) -> None:
        (top / "lake" / link).symlink_to("good")
        tables = run(search(config(top / "lake/*")))
        assert list(tables.entries) == ["good"]
        assert tables.duplicates == {f"{top}/lake/{link}": f"{top}/lake/good"}
        assert [*tables.refused, *tables.unread] == []

    def test_of_two_links_to_a_folder_the_first_is_delivered(self, top: Path) -> None:
        create(top / "lake/_t")
        for name in ("y", "x"):
            (top / "lake" / name).symlink_to("_t")
        assert sorted(names(config(top / "lake/*"))) == ["good", "x"]

    def test_a_listed_table_is_not_delivered_again_by_another_name(self, top: Path) -> None:
        (top / "lake/link").symlink_to("good")
        settings = parse(
            f"pipeline: p\ntables: [{{uri: '{top}/lake/link', name: mine}}, {{discover: '{top}/lake/*'}}]\n"
            "sink: {kind: files, path: /out}\n",
            {},
        )
        assert names(settings) == {"mine": f"{top}/lake/link"}

    def test_the_ledger_is_no_table_by_any_name(self, top: Path) -> None:
        create(top / "lake/ledger")
        (top / "link").symlink_to("lake")
        (top / "lake/again").symlink_to("ledger")
        settings = config(top / "lake/*", more=f"progress: {{ledger: {top}/link/ledger}}\n")
        assert sorted(names(settings)) == ["good"]


def test_a_folder_that_vanishes_while_it_is_looked_into_is_no_table(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(top / "lake/gone")
    listing = LocalStorage.list

    async def vanishing(storage: LocalStorage, prefix: str, start_after: str = "") -> AsyncGenerator[Stat, None]:
        shutil.rmtree(top / "lake/gone", ignore_errors=True)
        async for stat in listing(storage, prefix, start_after):
            yield stat

    monkeypatch.setattr(LocalStorage, "list", vanishing)
    folders = looked(config(top / "lake/*"))
    assert (folders.tables, folders.errors) == ([("good",)], [])


def test_known_tables_stay_while_a_folder_above_them_cannot_be_listed(top: Path) -> None:
    create(top / "lake/eu/orders")
    create(top / "lake/us/orders")
    settings = config(top / "lake/*/orders")
    looking = FolderSearch(settings, settings.discoveries[0])
    assert run(looking.search()).tables == [("eu", "orders"), ("us", "orders")]
    (top / "lake/eu").chmod(0)
    with unprivileged():
        folders = run(looking.search())
    assert folders.tables == [("eu", "orders"), ("us", "orders")]
    assert [error.table for error in folders.errors] == [str(top / "lake/eu")]
    (top / "lake/eu").chmod(0o755)
    shutil.rmtree(top / "lake/eu")
    folders = run(looking.search())
    assert (folders.tables, folders.errors) == ([("us", "orders")], [])


def test_a_root_that_cannot_be_listed_is_an_error_of_the_pattern(top: Path) -> None:
    (top / "lake").chmod(0)
    with unprivileged(), pytest.raises(StorageError, match="Permission denied"):
        looked(config(top / "lake/*"))


@pytest.mark.parametrize("ledger", ["none", "source"])
def test_a_table_that_becomes_a_link_out_is_neither_read_nor_written(top: Path, ledger: str) -> None:
    settings = config(top / "lake/*", more=f"progress: {{ledger: {ledger}}}\n")
    [table] = [entry.table for entry in run(search(settings)).entries.values()]
    shutil.rmtree(top / "lake/good")
    (top / "lake/good").symlink_to(top / "outside/secret")
    before = sorted((top / "outside/secret/_delta_log").iterdir())

    async def record() -> None:
        async with ledgers(settings, ManualClock()) as of:
            await of(table).record("cdfd/p/good", 0, "T")

    reader = open_table(settings, table)
    with pytest.raises(PathError, match=r"leads out of .*/lake, to .*/outside/secret"):
        run(reader.log.header())
    with pytest.raises(PathError), reader.files.open("part.parquet"):
        pass
    if ledger == "source":
        with pytest.raises(PathError):
            run(record())
    assert sorted((top / "outside/secret/_delta_log").iterdir()) == before


def test_errors_are_logged_once_and_are_in_the_status(top: Path, caplog: pytest.LogCaptureFixture) -> None:
    (top / "lake/bad").symlink_to("../outside/secret")
    (top / "lake/again").symlink_to("good")
    settings = config(top / "lake/*")
    [entry] = settings.discoveries

    def said() -> list[tuple[str, str]]:
        lines = [(each.levelname, each.getMessage()) for each in caplog.records if "/lake/" in each.getMessage()]
        caplog.clear()
        return [line for line in lines if not line[1].startswith("tables of")]

    async def scenario() -> None:
        status = Status(settings, ManualClock(), None)
        members = Members(settings, Supervisor(asyncio.Event(), ManualClock()), status, None)  # type: ignore[arg-type]  # opens nothing
        looking = FolderSearch(settings, entry)
        for _ in range(3):
            await members.note_folders({entry: await looking.search()})
        warning, info = sorted(said(), reverse=True)
        assert warning[0] == "WARNING"
        assert f"leads out of {top}/lake, to " in warning[1]
        assert info == ("INFO", f"{top}/lake/again is the table {top}/lake/good, and is delivered as that")
        assert [table.table.name for table in status.tables()] == ["good"]
        [refused] = status.document()["refused_tables"]
        assert warning[1] == refused
        assert "cdfd_refused_tables 1.0" in status.metrics()().decode()
        (top / "lake/bad").unlink()
        await members.note_folders({entry: await looking.search()})
        assert not said()
        assert status.document()["refused_tables"] == []
        (top / "lake/bad").symlink_to("../outside/secret")
        await members.note_folders({entry: await looking.search()})
        assert [level for level, _ in said()] == ["WARNING"]

    with caplog.at_level(logging.INFO):
        run(scenario())


TARGETS = ("a", "b/x", "..", ".", "../outside/secret", "../outside", "/", "b", "c", "c/x", "nowhere")


@given(
    st.dictionaries(
        st.sampled_from(("a", "b", "c", "a/x", "b/x", "c/x")), st.sampled_from(("table", "folder", *TARGETS))
    ),
    st.sampled_from(("*", "*/*")),
)
@examples(max_examples=150 // stride(4))
def test_no_layout_of_links_publishes_a_table_from_outside(layout: dict[str, str], pattern: str) -> None:
    """Tables are inside the lake, once each; and each folder that is a table is delivered."""
    with TemporaryDirectory() as folder:
        lake = Path(folder) / "lake"
        lake.mkdir()
        create(Path(folder) / "outside/secret")
        for name, kind in sorted(layout.items()):
            place = lake / name
            if (
                os.path.realpath(place.parent) != str(place.parent)
                or place.parent.is_symlink()
                or os.path.lexists(place)
            ):
                continue  # it would be in a folder that a link leads to
            if kind == "table":
                create(place)
            elif kind == "folder":
                place.mkdir(exist_ok=True, parents=True)
            else:
                place.parent.mkdir(exist_ok=True)
                place.symlink_to(kind)
        actual = [os.path.realpath(uri) for uri in names(config(lake / pattern)).values()]
        assert all(place.startswith(f"{lake}/") for place in actual)
        assert len(set(actual)) == len(actual)
        tables = [place.parent for place in lake.glob(f"{pattern}/_delta_log") if not place.is_symlink()]
        inner = [place for place in tables if (place.parent / "_delta_log").exists()]
        real = {str(place) for place in tables if os.path.realpath(place) == str(place) and place not in inner}
        assert real <= set(actual)
