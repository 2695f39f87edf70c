"""`cdfd init` writes a configuration that `cdfd check` passes, and never over another one."""

import json
from pathlib import Path

import jsonschema
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from cdfd.config.parser import load
from tests.support.commands import cdfd, one_line
from tests.support.sampling import sample

ROWS = pa.table({"id": pa.array([1], pa.int64()), "v": ["a"]})
SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "cdfd.schema.json").read_text(encoding="utf-8"))


def make(place: Path, **properties: str) -> Path:
    write_deltalake(place, ROWS)
    if properties:
        DeltaTable(place).alter.set_table_properties(properties, raise_if_not_exists=False)
    return place


@pytest.mark.parametrize("sink", sample([[], ["--files", "out"], ["--delta", "copies"]], 2))
def test_written_file_passes_check_and_its_schema(tmp_path: Path, sink: list[str]) -> None:
    make(tmp_path / "lake" / "orders")
    make(tmp_path / "lake" / "customers", **{"cdfd.key": "id", "delta.enableChangeDataFeed": "true"})
    ended = cdfd("init", "lake/orders", "lake/customers", *sink, "-o", "shop.yaml", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    checked = cdfd("check", "-c", "shop.yaml", cwd=tmp_path)
    assert (checked.code, checked.err) == (0, "")
    assert checked.out.count("  ok, ") == 2
    text = (tmp_path / "shop.yaml").read_text()
    jsonschema.Draft7Validator(SCHEMA).validate(yaml.safe_load(text))
    assert text.startswith("# yaml-language-server: $schema=cdfd.schema.json\n")
    assert load(tmp_path / "shop.yaml").pipeline == "shop"


def test_next_two_commands_are_printed(tmp_path: Path) -> None:
    make(tmp_path / "orders")
    ended = cdfd("init", "orders", cwd=tmp_path)
    assert ended.lines()[-2:] == ["  cdfd check -c cdfd.yaml", "  cdfd run -c cdfd.yaml"]
    assert load(tmp_path / "cdfd.yaml").pipeline == "orders"


def test_file_has_the_key_and_the_change_feed_of_each_table(tmp_path: Path) -> None:
    make(tmp_path / "a", **{"cdfd.key": "v, id", "delta.enableChangeDataFeed": "true"})
    make(tmp_path / "b")
    assert cdfd("init", "a", "b", cwd=tmp_path).code == 0
    text = (tmp_path / "cdfd.yaml").read_text()
    first, _, second = text.partition("  - uri: b\n")
    assert "    key: [v, id]\n" in first
    assert "has a change data feed" in first
    assert "    # key: [id]\n" in second
    assert "has no change data feed" in second


@pytest.mark.parametrize("arguments", [["null"], ["null", "-o", "null.yaml"]])
def test_a_pipeline_may_be_called_null(tmp_path: Path, arguments: list[str]) -> None:
    make(tmp_path / "null")
    ended = cdfd("init", *arguments, cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert load(tmp_path / arguments[-1] if arguments[1:] else tmp_path / "cdfd.yaml").pipeline == "null"


def test_existing_file_is_never_written(tmp_path: Path) -> None:
    make(tmp_path / "orders")
    (tmp_path / "cdfd.yaml").write_text("mine\n")
    assert "the file already exists (file cdfd.yaml)" in one_line(cdfd("init", "orders", cwd=tmp_path), 2)
    assert (tmp_path / "cdfd.yaml").read_text() == "mine\n"


def test_paths_begin_at_the_folder_of_the_file(tmp_path: Path) -> None:
    make(tmp_path / "lake" / "orders")
    (tmp_path / "conf").mkdir()
    assert cdfd("init", "lake/orders", "--files", "out", "-o", "conf/shop.yaml", cwd=tmp_path).code == 0
    config = load(tmp_path / "conf" / "shop.yaml")
    assert config.listed[0].uri == str(tmp_path / "lake" / "orders")
    assert config.sink.places("orders") == {"path": str(tmp_path / "out" / "orders")}


def test_tables_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for place in ("eu/orders", "us/orders", "us/cust omers", "eu/${x}: 1"):
        make(tmp_path / place)
    ended = cdfd("init", "eu/orders", "us/orders", "us/cust omers", "eu/${x}: 1", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    config = load(tmp_path / "cdfd.yaml")
    assert [table.name for table in config.listed] == ["eu.orders", "us.orders", "cust_omers", "_x_1"]
    assert [Path(table.uri).name for table in config.listed] == ["orders", "orders", "cust omers", "${x}: 1"]
    assert cdfd("check", "-c", "cdfd.yaml", cwd=tmp_path).code == 0


def test_topics_of_tables_of_one_name_have_the_prefix(tmp_path: Path) -> None:
    for place in ("eu/orders", "us/orders", "customers"):
        make(tmp_path / place)
    tables = "eu/orders", "us/orders", "customers"
    ended = cdfd("init", *tables, "--kafka", "h:9092", "-o", "shop.yaml", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    topics = [table.topic for table in load(tmp_path / "shop.yaml").listed]
    assert topics == ["shop.eu.orders", "shop.us.orders", "shop.customers"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["missing"], 1, "not a Delta table: the path does not exist"),
        (
            ["orders", "--kafka", "nowhere"],
            2,
            "cdfd: --kafka: expected host:port, or several with commas between them\n",
        ),
        (["orders", "--files", "s3://x/y"], 2, "cdfd: --files: expected the path of a folder\n"),
        (["orders", "--delta", "~/x"], 2, "cdfd: `~` is not expanded (file ~/x). "),
        (["orders", "./orders/"], 2, "cdfd: the same table is named twice (table ./orders/). Name each table once\n"),
        (["orders", "--kafka", "a:1", "--files", "out"], 2, "--kafka and --files exclude each other"),
        (["orders", "--files", "orders/out"], 2, "is in the folder of tables[0]"),
        (["orders", "-o", "no/where.yaml"], 1, "cannot write: No such file or directory"),
        (["orders", "-o", f"{'x' * 300}/a.yaml"], 1, "cannot write: File name too long"),
        (["orders", "--files", ""], 2, "--files is empty"),
    ],
)
def test_nothing_is_written_after_an_error(tmp_path: Path, arguments: list[str], code: int, text: str) -> None:
    make(tmp_path / "orders")
    assert text in one_line(cdfd("init", *arguments, cwd=tmp_path), code)
    assert not list(tmp_path.glob("*.yaml"))
