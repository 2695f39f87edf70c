"""`cdfd backfill`: refusals before any connection, and backfills into a Delta table."""

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdfd.runtime.clock import SystemClock
from cdfd.storage.local import LocalStorage
from tests.support.commands import cdfd, one_line
from tests.support.lake import rows, run, table
from tests.support.renamed_column import renamed_table


def config(folder: Path, uri: str, **sink: object) -> Path:
    path = folder / "cdfd.yaml"
    tables = [{"uri": uri}, {"uri": uri, "name": "invoices", "topic": "other"}]
    settings = {
        "pipeline": "p",
        "tables": tables,
        "sink": sink or {"kind": "kafka", "bootstrap_servers": "127.0.0.1:1"},
    }
    path.write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["orders"], "--from is required without --snapshot"),
        (["customers", "--from", "0"], "The tables are: orders, invoices"),
        (["orders", "--from", "0", "--id", "a/b"], "--id 'a/b' is not a valid name"),
    ],
)
def test_wrong_usage(options: list[str], said: str, orders: str, tmp_path: Path) -> None:
    assert said in one_line(cdfd("backfill", "-c", config(tmp_path, orders), *options), 2)


def test_a_folder_of_files_takes_nothing_twice(orders: str, tmp_path: Path) -> None:
    path = config(tmp_path, orders, kind="files", path=str(tmp_path / "out"))
    error = one_line(cdfd("backfill", "-c", path, "orders", "--from", "0"), 2)
    assert "a sink of kind files does not support backfills" in error
    assert "cdfd tail" in error
    assert not (tmp_path / "out").exists()


class TestChangelog:
    """Backfills into a changelog, next to the rows of the daemon."""

    def count(self, folder: Path) -> int:
        return int(DeltaTable(folder / "out" / "orders").to_pyarrow_table().num_rows)

    def published(self, path: Path, *options: str) -> str:
        result = cdfd("backfill", "-c", path, "orders", *options)
        assert result.code == 0, result.err
        return result.out

    def test_a_range_again_and_again(self, orders: str, tmp_path: Path) -> None:
        path = config(tmp_path, orders, kind="delta", path=str(tmp_path / "out"))
        assert "1 to 2" in self.published(path, "--from", "1", "--until", "2")
        once = self.count(tmp_path)
        assert once > 0
        self.published(path, "--from", "1", "--until", "2")
        assert self.count(tmp_path) == 2 * once
        self.published(path, "--from", "1", "--until", "2", "--id", "a")
        assert self.count(tmp_path) == 3 * once
        assert "already published" in self.published(path, "--from", "1", "--until", "2", "--id", "a")
        assert self.count(tmp_path) == 3 * once
        # The position of the daemon is another one.
        table = DeltaTable(tmp_path / "out" / "orders")
        assert table.transaction_version("cdfd/p/orders") is None
        assert table.transaction_version("cdfd/p/orders/backfill.a") == 2

    @pytest.mark.parametrize(
        ("mask", "said", "code"),
        [("tax_id", "column 'tax_id' has the name 'ssn'", 1), ("snn", "no column 'snn', which `mask` names", 2)],
        ids=["a later name", "a misspelled one"],
    )
    def test_a_mask_that_does_not_fit_publishes_nothing(self, mask: str, said: str, code: int, tmp_path: Path) -> None:
        run(renamed_table(LocalStorage(tmp_path / "people"), SystemClock()))
        path = config(tmp_path, str(tmp_path / "people"), kind="delta", path=str(tmp_path / "out"))
        settings = json.loads(path.read_text())
        settings["tables"] = [{"uri": str(tmp_path / "people"), "mask": {mask: {"method": "nullify"}}}]
        path.write_text(json.dumps(settings))
        for options in (["--from", "0", "--until", "1"], ["--from", "1", "--snapshot"]):
            assert said in one_line(cdfd("backfill", "-c", path, "people", *options), code)
        assert not list((tmp_path / "out").rglob("*.parquet"))

    @pytest.mark.parametrize(
        ("options", "counts"),
        [
            (["--from", "0", "--until", "1"], "1 row (1 insert)"),
            (["--from", "1", "--until", "3"], "3 rows (3 insert)"),
            (["--from", "2", "--until", "2"], "1 row (1 insert)"),
            (["--from", "1", "--snapshot"], "1 row (1 insert)"),
            (["--from", "2", "--snapshot", "--until", "3"], "3 rows (3 insert)"),
        ],
    )
    def test_a_range_before_the_table_got_another_id(self, options: list[str], counts: str, tmp_path: Path) -> None:
        async def write() -> None:
            writer = await table(LocalStorage(tmp_path / "orders"), 2, SystemClock(), "first")
            writer.table_id = "second"
            await writer.commit("WRITE", [writer._metadata(), await writer._add(rows(2))])
            await writer.insert(rows(3))

        run(write())
        path = config(tmp_path, str(tmp_path / "orders"), kind="delta", path=str(tmp_path / "out"))
        assert counts in self.published(path, *options)

    def test_a_mirror_takes_none(self, orders: str, tmp_path: Path) -> None:
        path = config(tmp_path, orders, kind="delta", path=str(tmp_path / "out"), mode="mirror")
        settings = json.loads(path.read_text())
        settings["tables"] = [{"uri": orders, "key": ["id"], "start": "snapshot"}]
        path.write_text(json.dumps(settings))
        assert "takes no backfill" in one_line(cdfd("backfill", "-c", path, "orders", "--from", "0"), 1)
