"""Discovery: the folders that are tables, their names and settings, and tables that exclude each other."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from cdfd.config.discovery import Discovery, FolderPattern
from cdfd.config.parser import parse
from cdfd.config.problems import ConfigProblems
from cdfd.config.settings import Settings, Table
from cdfd.daemon.membership import discovery as module
from cdfd.daemon.membership.discovery import Folders, FolderSearch, Tables, discover_tables, merge_tables
from cdfd.daemon.membership.shard import Shard
from cdfd.demo.writer import TableWriter
from cdfd.errors import ConfigError, UnsupportedError
from cdfd.plan.shape.chosen import Chosen
from cdfd.runtime.clock import SystemClock
from cdfd.storage.local import LocalStorage
from tests.support.lake import SCHEMA, run, table
from tests.support.searches import search


def settings(entries: str, folder: Path | str = "/lake", sink: str = "{kind: files, path: /out}") -> Settings:
    return parse(f"pipeline: shop\ntables:\n{entries}\nsink: {sink}\n", {}, folder=str(folder))


def discovered(entry: str, sink: str = "{kind: files, path: /out}") -> Discovery:
    [discovery] = settings(f"  - {entry}", sink=sink).discoveries
    return discovery


async def create(place: Path, **properties: str) -> None:
    writer = TableWriter(
        LocalStorage(place), SCHEMA, properties={key.replace("_", "."): properties[key] for key in properties}
    )
    await writer.create()


@pytest.mark.parametrize(
    ("text", "root", "levels"),
    [
        ("s3://lake/sales/*", "s3://lake/sales", ("*",)),
        ("s3://lake/*", "s3://lake", ("*",)),
        ("s3://lake/*/orders", "s3://lake", ("*", "orders")),
        ("/data/eu-*/[a-c]?", "/data", ("eu-*", "[a-c]?")),
        ("/*", "/", ("*",)),
        ("file:///data/*", "file:///data", ("*",)),
    ],
)
def test_a_pattern_has_a_root_and_levels(text: str, root: str, levels: tuple[str, ...]) -> None:
    pattern = FolderPattern.parse(text)
    assert (pattern.root, pattern.levels) == (root, levels)


def test_locations_of_tables_are_those_that_a_user_would_write() -> None:
    assert FolderPattern.parse("s3://lake/*").uri(["a b"]) == "s3://lake/a b"
    assert FolderPattern.parse("file:///data/*").uri(["a b"]) == "file:///data/a%20b"
    assert FolderPattern.parse("/*").uri(["a"]) == "/a"


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{discover: /lake/sales}", "for one table use `uri`"),
        ("{discover: /lake/**}", r"one \* for each level"),
        ("{discover: 's3://*/sales'}", "name of the bucket"),
        ("{discover: /lake/*, uri: /lake/a}", "uri: unknown key"),
        ("{discover: /lake/*, topic: '{nmae}'}", "no other braces"),
        ("{discover: /lake/*, overrides: [{tables: [a], tpic: b}]}", r"overrides\[0\]\.tpic: unknown key"),
        ("orders", "expected a mapping"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(entry: str, problem: str) -> None:
    with pytest.raises(ConfigProblems, match=rf"tables\[0\].*{problem}"):
        settings(f"  - {entry}")


def test_names_and_topics_follow_templates() -> None:
    entry = "{discover: '/lake/*/*', topic: 'cdc.{parent}.{table}'}"
    actual = discovered(entry).table_at(("eu", "orders")).table
    assert (actual.uri, actual.name, actual.topic) == ("/lake/eu/orders", "eu.orders", "cdc.eu.orders")
    flat = discovered("{discover: '/lake/sales/*', name: '{parent}-{table}'}").table_at(("orders",)).table
    assert (flat.name, flat.topic) == ("sales-orders", "sales-orders")


def test_topics_begin_with_the_prefix_of_the_sink() -> None:
    sink = "{kind: kafka, bootstrap_servers: 'h:1', topics: {prefix: shop.}}"
    assert discovered("{discover: '/lake/*'}", sink).table_at(("orders",)).table.topic == "shop.orders"
    assert discovered("{discover: '/lake/*', topic: 'x.{table}'}", sink).table_at(("orders",)).table.topic == "x.orders"


def test_settings_are_those_of_the_entry_and_of_the_last_override_that_matches() -> None:
    entry = """{discover: '/lake/*/*', key: [id], start: latest, columns: [id, v], overrides: [
        {tables: ['*'], start: earliest}, {tables: [orders], key: [v], name: o, topic: t}, {tables: [eu/orders], columns: [v]}]}"""
    orders = discovered(entry).table_at(("eu", "orders"))
    assert (orders.table.name, orders.table.topic, orders.table.key, orders.table.columns) == (
        "o",
        "t",
        ("v",),
        (Chosen("v"),),
    )
    assert str(orders.table.start) == "earliest"
    assert discovered(entry).table_at(("us", "items")).table.key == ("id",)


OPTIONS = {
    "start": ("latest", "7"),
    "changes": ("files", "cdf"),
    "refine": ("off", "rows"),
    "drop_unchanged": ("true", "false"),
    "columns": ("[id, a]", "[id]"),
    "where": ("id > 1", "id > 2"),
    "mask": ("{a: {method: nullify}}", "{b: {method: nullify}}"),
    "exclude_change_types": ("[delete]", "[insert]"),
    "headers": ("{h: id}", "{}"),
    "limits": ("{rows_per_second: 5}", "{rows_per_second: 6}"),
    "on_missing_file": ("skip", "snapshot"),
    "on_schema_change": ("stop", "continue"),
    "allowed_roots": ("[/a]", "[]"),
    "path_prefixes": ("{'dbfs:/a': /a}", "{}"),
    "max_log_line": ("1MiB", "2MiB"),
}
"""Every option of a table, but for its names, its key and its sinks: two values that differ."""
_OTHERS = ("uri", "name", "topic", "key", "sinks")


@pytest.mark.parametrize("option", [name for name in Table.model_fields if name not in _OTHERS])
def test_found_tables_take_every_option_of_a_table(option: str) -> None:
    of_all, of_one = OPTIONS[option]
    entry = f"discover: '/lake/*', {option}: {of_all}, overrides: [{{tables: [b], {option}: {of_one}}}]"
    sink = "{kind: kafka, bootstrap_servers: 'a:1'}" if option == "headers" else "{kind: files, path: /out}"
    actual = discovered(f"{{{entry}}}", sink)
    for folder, text in (("a", of_all), ("b", of_one)):
        listed = settings(f"  - {{uri: /lake/{folder}, {option}: {text}}}", sink=sink).tables[0]
        assert getattr(actual.table_at((folder,)).table, option) == getattr(listed, option)


@pytest.mark.parametrize("properties", [{"cdfd.key": "id"}, {}])
def test_refine_by_a_key_that_a_property_names(properties: dict[str, str]) -> None:
    actual = discovered("{discover: '/lake/*', refine: key}").table_at(("a",))
    if properties:
        assert (actual.with_key(properties).refine, actual.with_key(properties).key) == ("key", ("id",))
        return
    with pytest.raises(ConfigError, match=r"cdfd\.key is not set.*key needs a key"):
        actual.with_key(properties)


def test_key_of_an_entry_of_another_kind_is_unknown() -> None:
    with pytest.raises(ConfigProblems) as caught:
        settings("  - {uri: /lake/a, key_property: pk}")
    assert 'did you mean "key_property"' not in str(caught.value)


@pytest.mark.parametrize(
    ("properties", "key"),
    [({}, ()), ({"cdfd.key": "id"}, ("id",)), ({"cdfd.key": " id , line,"}, ("id", "line")), ({"other": "x"}, ())],
)
def test_the_key_comes_from_the_property_of_the_table(properties: dict[str, str], key: tuple[str, ...]) -> None:
    assert discovered("{discover: '/lake/*'}").table_at(("orders",)).with_key(properties).key == key


def test_a_key_in_the_configuration_wins_over_the_property() -> None:
    properties = {"cdfd.key": "other"}
    assert discovered("{discover: '/lake/*', key: [id]}").table_at(("a",)).with_key(properties).key == ("id",)
    assert discovered("{discover: '/lake/*', key: []}").table_at(("a",)).with_key(properties).key == ()
    assert discovered("{discover: '/lake/*', key_property: pk}").table_at(("a",)).with_key({"pk": "x"}).key == ("x",)


def test_a_property_that_does_not_fit_is_an_error_of_that_table() -> None:
    actual = discovered("{discover: '/lake/*', columns: [v]}").table_at(("orders",))
    with pytest.raises(ConfigError, match=r'cdfd\.key is "id": names columns that `columns` leaves out') as raised:
        actual.with_key({"cdfd.key": "id"})
    assert raised.value.table == "/lake/orders"


def found_in(config: Settings) -> list[tuple[str, ...]]:
    [entry] = config.discoveries
    return list(run(FolderSearch(config, entry).search()).tables)


def test_only_folders_with_a_log_are_tables(tmp_path: Path) -> None:
    for name in ("orders", "items", "_hidden", ".tmp", "tmp_1"):
        run(create(tmp_path / name))
    (tmp_path / "empty").mkdir()
    (tmp_path / "not_yet" / "_delta_log").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    config = settings("  - {discover: '*', exclude: ['tmp_*']}", tmp_path)
    assert found_in(config) == [("items",), ("orders",)]


def test_folders_of_a_table_are_not_searched(tmp_path: Path) -> None:
    run(create(tmp_path / "eu" / "orders"))
    run(create(tmp_path / "table"))
    run(create(tmp_path / "table" / "inside"))
    assert found_in(settings("  - {discover: '*/*'}", tmp_path)) == [("eu", "orders")]


def test_the_ledger_is_no_table_to_deliver(tmp_path: Path) -> None:
    run(create(tmp_path / "orders"))
    run(create(tmp_path / "ledger"))
    text = f"pipeline: shop\ntables: [{{discover: '*'}}]\nsink: {{kind: files, path: /out}}\nprogress: {{ledger: {tmp_path}/ledger/}}\n"
    assert found_in(parse(text, {}, folder=str(tmp_path))) == [("orders",)]


def test_a_search_asks_about_a_table_once_and_sees_what_appears_and_vanishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    original = module.open_table  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "open_table", lambda uri, *how: asked.append(uri) or original(uri, *how))
    config = settings("  - {discover: '*'}", tmp_path)
    looking = FolderSearch(config, config.discoveries[0])
    run(create(tmp_path / "a"))
    assert run(looking.search()).tables == [("a",)]
    run(create(tmp_path / "b"))
    asked.clear()
    assert run(looking.search()).tables == [("a",), ("b",)]
    assert asked == [str(tmp_path), str(tmp_path / "b")]
    os.rename(tmp_path / "a", tmp_path / "_a")
    assert run(looking.search()).tables == [("b",)]
    os.rename(tmp_path / "_a", tmp_path / "a")
    assert run(looking.search()).tables == [("a",), ("b",)]


def test_a_root_that_does_not_exist_has_no_tables(tmp_path: Path) -> None:
    assert found_in(settings("  - {discover: 'nothing/*'}", tmp_path)) == []


def test_a_store_that_cannot_list_folders_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "open_table", lambda *_: object())
    with pytest.raises(UnsupportedError, match="cannot list folders"):
        found_in(settings("  - {discover: 's3://lake/*'}"))


def combined(config: Settings, *searches: Sequence[str], running: Sequence[str] = ()) -> Tables:
    return merge_tables(
        config,
        [
            (entry, Folders([(name,) for name in names]))
            for entry, names in zip(config.discoveries, searches, strict=True)
        ],
        running,
    )


TWO = "  - {discover: '/eu/*'}\n  - {discover: '/us/*', overrides: [{tables: [extra], topic: orders}]}"


def test_two_tables_of_one_name_are_an_error_that_names_both() -> None:
    tables = combined(settings(TWO), ["orders", "items"], ["orders"])
    assert {name: entry.table.uri for name, entry in tables.entries.items()} == {
        "orders": "/eu/orders",
        "items": "/eu/items",
    }
    [error] = tables.refused
    assert 'the name "orders": /us/orders and /eu/orders' in str(error)
    assert error.table == "/us/orders"


def test_of_two_tables_of_one_name_the_running_one_stays() -> None:
    tables = combined(settings(TWO), ["orders"], ["orders"], running=["/us/orders"])
    assert tables.entries["orders"].table.uri == "/us/orders"
    assert "/eu/orders and /us/orders" in str(tables.refused[0])


def test_two_tables_of_one_topic_are_an_error_too() -> None:
    tables = combined(settings(TWO), ["orders"], ["extra"])
    assert list(tables.entries) == ["orders"]
    assert 'the topic "orders": /us/extra and /eu/orders' in str(tables.refused[0])


def test_a_listed_table_wins_over_the_pattern_that_finds_it_too() -> None:
    config = settings("  - {uri: /lake/orders/, name: mine, topic: t}\n  - {discover: '/lake/*'}")
    tables = combined(config, ["orders", "items"])
    assert sorted(tables.entries) == ["items", "mine"]
    assert not tables.refused


def test_a_found_table_may_not_have_the_name_of_a_listed_one() -> None:
    tables = combined(settings("  - {uri: /lake/orders}\n  - {discover: '/other/*'}"), ["orders"])
    assert tables.entries["orders"].table.uri == "/lake/orders"
    assert "/other/orders and /lake/orders" in str(tables.refused[0])


@pytest.mark.parametrize("name", ["orders.part.1", "orders.backfill"])
def test_names_that_parts_of_another_table_have_are_refused(name: str) -> None:
    tables = combined(settings("  - {uri: /lake/orders}\n  - {discover: '/other/*'}"), [name])
    assert "exclude each other" in str(tables.refused[0])


def test_a_name_that_is_not_valid_is_an_error_of_that_table_alone() -> None:
    tables = combined(settings("  - {discover: '/lake/*'}"), ["orders", "my table"])
    assert list(tables.entries) == ["orders"]
    [error] = tables.refused
    assert (error.table, 'the name would be "my table"' in error.what) == ("/lake/my table", True)
    assert "overrides" in str(error)


def test_a_sink_in_the_folder_of_a_table_is_refused() -> None:
    config = settings("  - {discover: '/lake/*', topic: 'x'}", sink="{kind: files, path: /lake/orders}")
    assert "sink.path is in the folder of this table" in str(combined(config, ["orders"]).refused[0])


def test_each_shard_has_its_tables_and_together_they_have_all() -> None:
    names = [f"t{number}" for number in range(50)]
    tables = combined(settings("  - {discover: '/lake/*'}"), names)
    parts = [set(tables.of_shard(Shard(index, 3)).entries) for index in range(3)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert all(parts)


def test_commands_see_listed_and_found_tables_with_their_keys(tmp_path: Path) -> None:
    run(create(tmp_path / "orders", cdfd_key="id"))
    run(create(tmp_path / "items"))
    run(create(tmp_path / "wrong", cdfd_key="id"))
    entry = "  - {discover: '*', overrides: [{tables: [wrong], columns: [v]}]}"
    config, errors = run(discover_tables(settings(entry, tmp_path)))
    assert {each.name: each.key for each in config.listed} == {"orders": ("id",), "items": ()}
    assert ["leaves out" in str(error) for error in errors] == [True]
    assert run(search(settings(entry, tmp_path))).entries.keys() == {"items", "orders", "wrong"}


def test_a_search_in_a_store_other_than_the_local_one(tmp_path: Path) -> None:
    run(table(LocalStorage(tmp_path / "orders"), 1, SystemClock()))
    config = settings(f"  - {{discover: 'file://{tmp_path}/*'}}")
    assert found_in(config) == [("orders",)]


KAFKA = "{kind: kafka, bootstrap_servers: 'b:9092', oversized: dlq, topics: {prefix: lake.}}"


def test_a_found_table_may_not_have_a_topic_of_the_daemon_itself() -> None:
    config = settings("  - {discover: '/lake/*'}", sink=KAFKA)
    tables = combined(config, ["orders", "orders.dlq", "schema"])
    assert list(tables.entries) == ["orders"]
    first, second = map(str, tables.refused)
    assert '"lake.orders.dlq" is the dead letter topic of the table with the topic "lake.orders"' in first
    assert '"lake.schema" is the daemon\'s own, by sink.topics.schemas' in second


def test_a_table_whose_dead_letter_topic_is_a_running_tables_is_refused() -> None:
    config = settings("  - {discover: '/lake/*'}", sink=KAFKA)
    tables = combined(config, ["orders", "orders.dlq"], running=["/lake/orders.dlq"])
    assert list(tables.entries) == ["orders.dlq"]
    [error] = tables.refused
    assert '"lake.orders.dlq", which is that of another table' in str(error)
