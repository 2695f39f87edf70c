"""Golden folders that an earlier process left: the next process finds its position there, and resumes."""

import fcntl
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cdfd.errors import FencedError
from cdfd.sinks.files.folder import DeliveryFolder, read_position
from cdfd.sinks.ledger.ledger import LedgerEntry
from tests.support.lake import BEGINNING
from tests.support.upgrade import stores
from tests.support.upgrade.copies import GOLDEN
from tests.support.upgrade.documents import TABLE_ID
from tests.support.upgrade.stores import FOLDERS, GONE, ITEMS, NEXT, ORDERS, digest, normal_form

WRITERS: dict[str, Callable[[Path], None]] = {
    "ledger": stores.write_ledger,
    "source": stores.write_source,
    **{f"folders/{name}": partial(stores.write_folder, name) for name in FOLDERS},
}


def copied(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / name, folder / "copy"))


@pytest.mark.parametrize("name", WRITERS)
def test_stores_are_written(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / "new")
    assert normal_form(tmp_path / "new") == normal_form(GOLDEN / name)


async def test_ledger_is_read_and_goes_on(tmp_path: Path) -> None:
    place = copied("ledger", tmp_path)
    ledger = stores.table_ledger(place)
    assert await ledger.position(ORDERS) == LedgerEntry(ORDERS, 9, TABLE_ID, BEGINNING + 10_000, digest(9))
    assert await ledger.position(ITEMS) == LedgerEntry(ITEMS, 4, "I", BEGINNING + 10_000)
    assert await ledger.position(GONE) is None
    await ledger.record(ORDERS, 10, TABLE_ID, digest(10))
    again = await stores.table_ledger(place).position(ORDERS)
    assert again == LedgerEntry(ORDERS, 10, TABLE_ID, BEGINNING, digest(10))


async def test_ledger_is_read_without_its_checkpoint(tmp_path: Path) -> None:
    """The entries and the checkpoint say the same."""
    place = copied("ledger", tmp_path)
    for path in (place / "_delta_log").glob("*checkpoint*"):
        path.unlink()
    actual = await stores.table_ledger(place).position(ORDERS)
    assert actual == LedgerEntry(ORDERS, 9, TABLE_ID, BEGINNING + 10_000, digest(9))


async def test_progress_in_a_source_table_is_read_and_goes_on(tmp_path: Path) -> None:
    place = copied("source", tmp_path)
    ledger = stores.source_ledger(place)
    assert await ledger.position(ORDERS) == LedgerEntry(ORDERS, 2, None, BEGINNING, digest(2))
    assert await ledger.position(ITEMS) == LedgerEntry(ITEMS, 1, None, BEGINNING)
    # Versions 3 and 4 have only progress. A record of them would be the next one.
    await ledger.record(ORDERS, 4, "T", digest(4))
    assert len(list((place / "_delta_log").iterdir())) == 5
    await ledger.record(ITEMS, 2, "T")
    assert await stores.source_ledger(place).position(ITEMS) == LedgerEntry(ITEMS, 2, None, BEGINNING)


@pytest.mark.parametrize("name", FOLDERS)
def test_folder_of_files_is_read(name: str, tmp_path: Path) -> None:
    """By a command next to a daemon, and by the next daemon, which ends a delivery that was begun."""
    place, (_, position, control) = copied(f"folders/{name}", tmp_path), FOLDERS[name]
    # Digests do not count in comparisons of positions.
    assert repr(read_position(str(place))) == repr(position)
    folder = DeliveryFolder(str(place), sync=False)
    try:
        assert (repr(folder.position), folder.control) == (repr(position), control)
        begun = folder.position or stores.BEGUN
        folder.commit(None, "", begun, NEXT.after_version(), folder.control)
    finally:
        folder.close()
    names = {path.name for path in (GOLDEN / "folders" / name).iterdir()}
    assert {path.name for path in place.iterdir()} == {
        name for name in names if not name.endswith((".tmp", "next.json"))
    }
    assert read_position(str(place)) == NEXT.after_version()


def test_folder_of_files_is_locked_for_other_releases(tmp_path: Path) -> None:
    """Daemons of two releases exclude each other by the same file."""
    place = copied("folders/within", tmp_path)
    with (place / ".lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(FencedError):
            DeliveryFolder(str(place), sync=False)
