"""`sinks` in a configuration: the file as each sink has it, and the names that sinks must not share."""

from contextlib import ExitStack

import pytest

from cdfd.config.parser import parse
from cdfd.config.problems import ConfigProblems
from cdfd.daemon.membership.discovery import Folders, FolderSearch, SharedSearches, merge_tables
from cdfd.daemon.sources import Sources
from cdfd.errors import ConfigError
from tests.support.manual_time import ManualClock

FILE = """
pipeline: shop
tables:
  - {uri: /lake/clicks, sinks: [events]}
  - {uri: /lake/orders, key: [id], headers: {customer: name}}
  - {discover: '/more/*', key: [id], sinks: [events]}
sinks:
  events: {kind: kafka, bootstrap_servers: "a:9092,b:9092", topics: {prefix: shop.}}
  mirror: {kind: delta, path: /copies, mode: mirror}
heartbeat: {interval: 10s}
controls: {signals: [pause], notifications: true, token: 0123456789abcdef}
"""
ALONE = "pipeline: p\ntables: [{uri: /a}]\nsink: {kind: files, path: /out}"


def problems(*changes: tuple[str, str]) -> tuple[str, ...]:
    text = FILE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(ConfigProblems) as raised:
        parse(text, {})
    return raised.value.problems


def test_each_sink_has_the_file_as_if_it_were_the_only_one() -> None:
    events, mirror = parse(FILE, {}).by_sink.values()
    assert [(each.topic, dict(each.headers)) for each in events.listed] == [
        ("shop.clicks", {}),
        ("shop.orders", {"customer": "name"}),
    ]
    assert [each.topic for each in events.discoveries] == ["shop.{path}"]
    assert events.heartbeat.interval == 10
    assert events.controls.signals == ("pause",)
    assert events.progress.ledger.kind == "table"
    assert [(each.topic, dict(each.headers), each.sinks) for each in mirror.tables] == [("orders", {}, None)]  # type: ignore[union-attr]
    assert (mirror.heartbeat.interval, mirror.controls.signals, mirror.controls.notifications) == (None, (), False)
    assert mirror.controls.token is not None
    assert mirror.progress.ledger.kind == "none"


def test_names_tell_the_sinks_of_a_pipeline_apart() -> None:
    own = FILE.replace("mode: mirror", "mode: mirror, pipeline: copies")
    events, mirror = parse(own, {}).by_sink.values()
    assert (events.pipeline, events.ledger_name, events.address("orders")) == ("shop", "shop@events", "orders@events")
    assert (mirror.pipeline, mirror.ledger_name, mirror.address("orders")) == ("copies", "copies", "orders@mirror")
    alone = parse(ALONE, {})
    assert (alone.ledger_name, alone.address("a"), alone.by_sink) == ("p", "a", {"": alone})
    document = alone.public()
    assert "sinks" not in document
    assert "sinks" not in document["tables"][0]
    assert "pipeline" not in document["sink"]
    assert set(parse(FILE, {}).public()["sinks"]) == {"events", "mirror"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "sinks:\n",
            "sink: {kind: files, path: /out}\nsinks:\n",
            "sink: excluded by `sinks`: move this one there too, by a name (line 7)",
        ),
        (
            "[events]}\n  - {uri: /lake/orders",
            "[event]}\n  - {uri: /lake/orders",
            'tables[0].sinks: there is no sink "event"; there are: events, mirror (line 4)',
        ),
        (
            "[events]}\n  - {uri: /lake/orders",
            "[]}\n  - {uri: /lake/orders",
            "tables[0].sinks: at least one is required; leave the key out for all (line 4)",
        ),
        ("mode: mirror", "mode: miror", 'sinks.mirror.mode: expected changelog or mirror, found "miror" (line 9)'),
        ("mode: mirror", "mood: mirror", 'sinks.mirror.mood: unknown key, did you mean "mode"? (line 9)'),
        (
            "mirror: {",
            "the mirror: {",
            'sinks["the mirror"]: expected a name of at most 63 letters, digits, hyphens and underscores',
        ),
        (
            "key: [id], headers",
            "headers",
            "tables[1].key: for the sink mirror: required: name the columns that identify a row",
        ),
        (
            "path: /copies",
            "path: /lake",
            'sinks.mirror.path: "/lake/orders" is the folder of tables[1], whose writers may remove it; choose another location (line 9)',
        ),
        (
            "heartbeat: {",
            "engine: {kind: auto}\nheartbeat: {",
            'engine.kind: expected embedded, because other engines deliver into one sink, found "auto" (line 10)',
        ),
        ("headers: {customer", "sinks: [events], headers: {customer", "sinks.mirror: no table goes into it (line 9)"),
    ],
)
def test_problems_have_their_places_in_the_file(old: str, new: str, expected: str) -> None:
    [problem] = problems((old, new))
    assert problem.startswith(expected)


def test_sinks_do_not_meet() -> None:
    second = 'k2: {kind: kafka, bootstrap_servers: "b:9092,c:9092", topics: {prefix: other.}}\n  mirror:'
    assert problems(("mirror:", second)) == (
        "sinks.k2.pipeline: required, because sinks.events has the same brokers and the same name there (line 9)",
    )
    named = second.replace("other.}", "shop.}, pipeline: shop2")
    assert problems(("mirror:", named)) == (
        'sinks.k2.topics.prefix: the topic "shop.orders" is also one of sinks.events; give another prefix (line 9)',
    )
    assert problems(("mirror:", "copy: {kind: delta, path: /x/../copies}\n  mirror:")) == (
        'sinks.mirror: writes to the same place as sinks.copy: "/copies/orders" (line 10)',
    )
    assert problems(
        ("mirror:", "copy: {kind: delta, path: /c, pipeline: q}\n  mirror:"), ("mode: mirror", "pipeline: q")
    ) == ("sinks.mirror.pipeline: the same as that of sinks.copy; give another (line 10)",)
    parse(FILE.replace("mirror:", second.replace("other.}", "other.}, pipeline: shop2")), {})


def test_a_table_that_is_found_has_no_topic_of_another_sink() -> None:
    one = "k1: {kind: kafka, bootstrap_servers: 'a:1,b:1'}"
    two = "k2: {kind: kafka, bootstrap_servers: 'b:1', pipeline: q, topics: {prefix: %s}}"
    text = "pipeline: p\ntables: [{uri: /lake/a, sinks: [k1]}, {discover: '/lake/*', sinks: [k2]}]\nsinks: {%s, %s}"
    for prefix, topics in (("''", {"b"}), ("x.", {"x.a", "x.b"})):
        config = parse(text % (one, two % prefix), {})
        of_sink = config.with_tables_of(config).by_sink["k2"]
        tables = merge_tables(of_sink, [(of_sink.discoveries[0], Folders([("a",), ("b",)]))])
        assert {entry.table.topic for entry in tables.entries.values()} == topics
        refused = ['the topic "a" is also one of sinks.k1'] if len(topics) == 1 else []
        assert [error.what for error in tables.refused] == refused
    parted = parse(text % (one, two.replace("b:1", "c:1") % "''"), {}).by_sink["k2"]
    assert len(merge_tables(parted, [(parted.discoveries[0], Folders([("a",), ("b",)]))]).entries) == 2


def test_no_table_has_a_topic_of_the_daemon_in_another_sink() -> None:
    """Its consumers would find notifications between the rows."""
    text = """
pipeline: p
tables: [{uri: /lake/a, sinks: [k1]}, %s]
sinks:
  k1: {kind: kafka, bootstrap_servers: 'h:1'}
  k2: {kind: kafka, bootstrap_servers: '%s', pipeline: q}
controls: {notifications: true}
"""
    listed = "{uri: /lake/b, topic: p.notifications, sinks: [k2]}"
    with pytest.raises(
        ConfigProblems, match=r'topic "p\.notifications", which is that of controls\.notifications for sinks\.k1'
    ):
        parse(text % (listed, "h:1"), {})
    with pytest.raises(ConfigProblems, match=r"q\.notifications"):
        parse(text % ("{uri: /lake/b, topic: q.notifications, sinks: [k1]}, {uri: /lake/c, sinks: [k2]}", "h:1"), {})
    parse(text % (listed, "another:1"), {})
    pattern = parse(text % ("{discover: '/lake/*', sinks: [k2]}", "h:1"), {}).by_sink["k2"]
    tables = merge_tables(pattern, [(pattern.discoveries[0], Folders([("p.notifications",), ("b",)]))])
    assert list(tables.entries) == ["b"]
    assert [error.what for error in tables.refused] == ['the topic "p.notifications" is also one of sinks.k1']


def test_sinks_on_the_same_brokers_have_topics_of_the_daemon_for_themselves() -> None:
    """Consumers of one would find the records of two pipelines, and a compacted topic would keep one of the two."""
    text = """
pipeline: p
tables: [{uri: /lake/a, sinks: [k1]}, {uri: /lake/b, sinks: [k2]}]
sinks:
  k1: {kind: kafka, bootstrap_servers: 'h:1', topics: {prefix: shop.}}
  k2: {kind: kafka, bootstrap_servers: '%s', pipeline: q, topics: {prefix: %s}}
heartbeat: {interval: 10s%s}
"""
    with pytest.raises(ConfigProblems) as raised:
        parse(text % ("h:1", "shop_", ", topic: beats"), {})
    assert raised.value.problems == (
        'sinks.k2.topics.prefix: the topic "shop.schema" is also that of sink.topics.schemas for sinks.k1; give another prefix (line 6)',
        "heartbeat.topic: sinks.k1 and sinks.k2 on the same brokers would both write it; leave it out (line 7)",
    )
    parse(text % ("another:1", "shop_", ", topic: beats"), {})
    parse(text % ("h:1", "more.", ""), {})


def test_sink_that_a_reload_opens_reads_with_the_storage_of_the_new_file() -> None:
    """The keys of the sinks that stay may not be valid any more."""
    text = """
pipeline: p
tables: [{uri: s3://bucket/a}, {discover: s3://bucket/lake/*}]
sinks: {stays: {kind: files, path: /stays}, opened: {kind: files, path: /opened}}
storage: {s3: {endpoint_url: 'http://h:1', region: eu-west-1, access_key_id: %s, secret_access_key: s3cret}}
"""
    old, new = (parse(text % key, {}).by_sink for key in ("old", "new"))
    sources, searches = Sources(ManualClock()), SharedSearches(ManualClock())
    stores, searched = list[object](), list[FolderSearch]()
    with ExitStack() as stack:
        for config in (old["stays"], old["opened"], new["opened"]):
            source = stack.enter_context(sources.table(config, config.listed[0]))
            stores.append(source[0].log.storage)
            searched.append(searches.of(config, config.discoveries[0]))
    assert stores[0] is stores[1]
    assert stores[0] is not stores[2]
    assert searched[0] is searched[1]
    assert searched[0] is not searched[2]


def test_a_sink_is_chosen_by_its_name() -> None:
    several = parse(FILE, {})
    assert several.of_sink("mirror").sink.kind == "delta"
    assert [each.sink_name for each in several.chosen(None)] == ["events", "mirror"]
    alone = several.with_tables_of(
        parse(FILE.replace("  mirror: {kind: delta, path: /copies, mode: mirror}\n", ""), {})
    )
    assert alone.of_sink(None).sink_name == "events"
    for config, name, expected in (
        (several, None, "several sinks. Choose one with --sink: events, mirror"),
        (several, "other", 'no sink "other". Choose one with --sink: events, mirror'),
        (parse(ALONE, {}), "x", "leave --sink out"),
    ):
        with pytest.raises(ConfigError) as raised:
            config.of_sink(name)
        assert expected in str(raised.value)
