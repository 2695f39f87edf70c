"""Configuration: what is read, what is refused, what is never shown."""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from cdfd.config import sections, values
from cdfd.config.parser import load, parse
from cdfd.config.problems import ConfigProblems
from cdfd.config.settings import Section, Settings, SinkSettings
from cdfd.config.validation_errors import file_settings
from cdfd.config.values import Ledger, Listen, Secret
from cdfd.errors import ConfigError
from cdfd.plan.shape.chosen import Chosen
from cdfd.plan.shape.masks import Mask
from cdfd.runtime.registry import SINKS
from cdfd.sinks.files.settings import FilesSettings
from cdfd.sinks.kafka.settings import KafkaSettings
from tests.support.sampling import stride

ROOT = Path(__file__).parents[3]

SHOP = """
pipeline: shop
tables:
  - uri: s3://lake/orders
    topic: shop.orders
    key: [order_id]
    start: snapshot
    changes: auto
    columns: [order_id, amount]
    on_missing_file: fail
    on_schema_change: continue
    allowed_roots: []
sink:
  kind: kafka
  bootstrap_servers: localhost:9092
  delivery: exactly_once
  format: flat
  compression: lz4
  topics: {prefix: "", partitions: 4, replication_factor: 1, config: {}}
  security: {protocol: SASL_SSL, mechanism: SCRAM-SHA-512, username: u, password: ${KAFKA_PASSWORD}}
progress:
  ledger: /var/lib/cdfd/ledger
poll: {interval: 1s, max_interval: 5s}
engine: {kind: embedded}
storage: {s3: {endpoint_url: null, region: eu-west-1}}
http: {listen: 127.0.0.1:9464}
"""

MINIMAL = """
pipeline: p
tables: [{uri: /data/orders}]
sink: {kind: files, path: /out}
"""

KAFKA = """
pipeline: p
tables: [{uri: /data/orders}]
sink: {kind: kafka, bootstrap_servers: "a:1"}
"""


def problems(text: str, environ: dict[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigProblems) as caught:
        parse(text, environ or {}, "cdfd.yaml")
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return caught.value.problems


# Valid configurations


def test_the_documented_example_with_every_key() -> None:
    settings = parse(SHOP, {"KAFKA_PASSWORD": "hunter2"})
    table, sink = settings.tables[0], settings.sink
    assert settings.pipeline == "shop"
    assert (table.uri, table.name, table.topic, table.key) == (
        "s3://lake/orders",
        "orders",
        "shop.orders",
        ("order_id",),
    )
    assert (table.start, table.columns, table.allowed_roots) == (
        "snapshot",
        (Chosen("order_id"), Chosen("amount")),
        (),
    )
    assert isinstance(sink, KafkaSettings)
    assert sink.bootstrap_servers == ("localhost:9092",)
    assert (sink.topics.partitions, sink.topics.config) == (4, {})
    assert sink.security.password is not None
    assert sink.security.password.reveal() == "hunter2"
    assert settings.progress.ledger == Ledger("table", "/var/lib/cdfd/ledger")
    assert (settings.poll.interval, settings.poll.max_interval) == (1.0, 5.0)
    assert (settings.storage.s3.endpoint_url, settings.storage.s3.region) == (None, "eu-west-1")
    assert settings.http.listen == Listen("127.0.0.1", 9464)


def test_what_is_left_out_has_the_documented_default() -> None:
    without = re.sub(r"(?m)^(progress|poll|engine|storage|http):.*\n( .*\n)*", "", SHOP)
    without = re.sub(r"  (delivery|format|compression|topics):.*\n", "", without)
    without = re.sub(r"    (start|changes|on_\w+|allowed_roots):.*\n", "", without)
    environ = {"KAFKA_PASSWORD": "x", "AWS_REGION": "eu-west-1"}
    shop = SHOP.replace("/var/lib/cdfd/ledger", sections.default_ledger().uri)
    assert parse(without, environ) == parse(shop, environ)


@pytest.mark.parametrize("example", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_loads(example: Path) -> None:
    settings = load(example, {"KAFKA_PASSWORD": "hunter2"})
    assert settings.tables
    assert "hunter2" not in repr(settings)


def test_missing_file_is_answered_by_a_snapshot_under_its_earlier_name_too() -> None:
    for table in (
        "{uri: /data/orders, on_missing_file: resnapshot}",
        "{discover: /data/*, on_missing_file: resnapshot}",
    ):
        config = parse(f"pipeline: p\ntables: [{table}]\nsink: {{kind: files, path: /out}}\n", {})
        [options] = [*config.listed, *config.discoveries]
        assert options.on_missing_file == "snapshot"


def test_files_sink_defaults_and_alias() -> None:
    settings = parse(MINIMAL, {})
    assert settings.sink == FilesSettings(path="/out", format="jsonl", fsync=True)
    assert settings.progress.ledger == Ledger("none")
    assert parse(MINIMAL.replace("path: /out", "path: /out, format: flat"), {}) == settings


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("snapshot", "snapshot"),
        ("Earliest", "earliest"),
        ("now", "latest"),
        ("0", "0"),
        ('"12"', "12"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01 01:00:00.5+01:00", "2026-01-01 01:00:00.5+01:00"),
        ("2026-01-01", "2026-01-01"),
        ("1767225600000", "1767225600000"),
        ("-1", "-1"),
        ("1 hour ago", "1 hour ago"),
        ("5000 weeks ago", "5000 weeks ago"),
        ("{after: 41}", "after 41"),
        ("after 41", "after 41"),
        ("{after: 2026-01-01}", "after 2026-01-01"),
        ("{after: 1 hour ago}", "after 1 hour ago"),
    ],
)
def test_start_is_a_text_that_is_read_again(text: str, start: str) -> None:
    [table] = parse(MINIMAL.replace("/data/orders", f"/data/orders, start: {text}"), {}).listed
    assert table.start == start
    assert values.start(table.start) == start


@pytest.mark.parametrize(
    "text", ["soon", "1 hour", "99999999999999999999", "2026-13-01", "[1]", "{before: 1}", "{after: latest}"]
)
def test_starts_that_are_none(text: str) -> None:
    actual = problems(MINIMAL.replace("/data/orders", f"/data/orders, start: {text}"))
    assert len(actual) == 1
    assert actual[0].startswith("tables[0].start: expected")


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("1s", 1.0), ("1.5s", 1.5), ("5m", 300.0), ("1h", 3600.0), ("1d", 86400.0)]
)
def test_duration_is_read_in_each_unit(text: str, seconds: float) -> None:
    settings = parse(f"{MINIMAL}poll: {{interval: {text}, max_interval: 2d}}", {})
    assert settings.poll.interval == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("256MiB", 256 << 20), ("1.5GB", 1_500_000_000), ("4096", 4096), ("1 KiB", 1024)]
)
def test_size_is_read_in_each_unit(text: str, size: int) -> None:
    assert parse(f"{MINIMAL}catch_up: {{max_bytes: {text}}}", {}).catch_up.max_bytes == size


def test_scalars_are_text_where_text_is_expected() -> None:
    text = KAFKA.replace("/data/orders", "/data/orders, key: [1, no]").replace(
        '"a:1"', '"a:1", topics: {config: {retention.ms: 0100, x: 1.10}}'
    )
    settings = parse(text, {})
    assert settings.tables[0].key == ("1", "no")
    assert isinstance(settings.sink, KafkaSettings)
    assert settings.sink.topics.config == {"retention.ms": "0100", "x": "1.10"}


def test_topics_and_names_from_the_uri() -> None:
    text = """
    pipeline: p
    tables: [{uri: "s3://lake/a/orders/"}, {uri: "file:///data/my%2Dtable"}, {uri: b/x, topic: own, name: y}]
    sink: {kind: kafka, bootstrap_servers: ["a:1", "[::1]:2"], topics: {prefix: shop.}}
    """
    settings = parse(text, {})
    assert [(table.name, table.topic) for table in settings.tables] == [
        ("orders", "shop.orders"),
        ("my-table", "shop.my-table"),
        ("y", "own"),
    ]
    assert settings.table("y") == settings.tables[2]
    assert settings.table("z") is None


def test_sections_without_entries_are_not_given() -> None:
    assert parse(MINIMAL + "http:\npoll:\nprogress: {ledger: }\n", {}) == parse(MINIMAL, {})


FILES = "pipeline: p\ntables: [{{uri: {table}, topic: rows}}]\nsink: {{kind: files, path: {sink}}}\nprogress: {{ledger: {ledger}}}\n"


@pytest.mark.parametrize(
    ("table", "sink", "ledger"),
    [
        ("/lake/orders", "/lake/orders", "none"),
        ("/lake/orders", "/lake/orders/out", "none"),
        ("/lake/orders", "/lake/./orders//x/../out", "none"),
        ("file:///lake/orders", "/lake/orders", "none"),
        ("/lake/rows", "/lake", "none"),
        ("/lake/orders", "/lake/orders/_delta_log", "none"),
        ("/lake/orders", "/out", "/lake/orders"),
        ("/lake/orders", "/out", "file:/lake/orders/"),
        ("file://localhost/l%20ake/orders", "/out", "/l ake/orders/ledger"),
        ("/lake/orders", "/out", "/lake/orders/_change_data/x"),
        ("s3a://lake/orders", "/out", "s3://lake/orders/ledger"),
    ],
)
def test_nothing_is_written_among_the_files_of_a_table(table: str, sink: str, ledger: str) -> None:
    actual = problems(FILES.format(table=table, sink=sink, ledger=ledger))
    assert len(actual) == 1
    assert re.match(r"(sink\.path|progress\.ledger): .*the folder of.*tables\[0\]", actual[0])


@pytest.mark.parametrize("kind", ["files", "delta"])
@pytest.mark.parametrize(
    ("table", "ledger"),
    [
        ("uri: /lake/orders", "/out/orders"),
        ("uri: /lake/orders", "file:///out/./orders/ledger"),
        ("uri: /lake/orders", "/out/orders/_delta_log"),
        ("discover: /lake/*", "/out/ledger"),
    ],
)
def test_ledger_among_the_files_of_the_sink(kind: str, table: str, ledger: str) -> None:
    """The sink's targets would be made in the ledger, or the ledger in them."""
    text = f"pipeline: p\ntables: [{{{table}}}]\nsink: {{kind: {kind}, path: /out}}\nprogress: {{ledger: {ledger}}}\n"
    (actual,) = problems(text)
    assert re.match(r"progress\.ledger: .* (is|is in) a folder that `sink\.path` gives to tables\[0\]; choose", actual)


def test_ledger_in_the_target_of_one_of_several_sinks() -> None:
    sinks = "sinks: {a: {kind: files, path: /a}, b: {kind: delta, path: /b}}"
    (actual,) = problems(f"pipeline: p\ntables: [{{uri: /lake/orders}}]\n{sinks}\nprogress: {{ledger: /b/orders}}\n")
    assert "progress.ledger: " in actual


@pytest.mark.parametrize(
    ("table", "sink", "ledger"),
    [
        ("/lake/orders", "/out", "/out/ledger"),
        ("/lake/orders", "/out", "/out/rows/_ledger"),
        ("/lake/orders", "/lake/orders-out", "/lake/orders2"),
        ("/lake/orders", "/lake", "/lake"),
        ("/lake/orders", "/lake/orders/_out", "/lake/orders/_cdfd/ledger"),
        ("s3://lake/orders", "/lake/orders", "s3://lake/orders2"),
        ("/lake/orders", "/out", "source"),
    ],
)
def test_places_beside_a_table(table: str, sink: str, ledger: str) -> None:
    parse(FILES.format(table=table, sink=sink, ledger=ledger), {})


def test_names_that_http_answers_to() -> None:
    names = ["cdfd", "cdfd.shop.svc", "*.example.com", "*"]
    assert parse(MINIMAL + f"http: {{hosts: {names}}}", {}).http.hosts == tuple(names)
    for wrong in ("a:9464", "http://a", "a/b", "*a", "a.*", "", "a b", "x" * 300):
        with pytest.raises(ConfigProblems, match=r"http.hosts\[0\]: expected a host name"):
            parse(MINIMAL + f"http: {{hosts: ['{wrong}']}}", {})


def test_http_can_be_turned_off() -> None:
    settings = parse(MINIMAL + "http: {listen: null}", {})
    assert settings.http.listen is None
    assert settings.public()["http"]["listen"] is None


def test_anchors_and_merges() -> None:
    text = """
    pipeline: p
    tables:
      - &base {uri: /a, key: [id], start: latest}
      - {<<: *base, uri: /b}
      - {<<: [{start: 3}, *base], uri: /c}
    sink: {kind: files, path: /out}
    """
    tables = parse(text, {}).tables
    assert [(table.uri, table.key, str(table.start)) for table in tables] == [
        ("/a", ("id",), "latest"),
        ("/b", ("id",), "latest"),
        ("/c", ("id",), "3"),
    ]


def test_settings_are_frozen_and_picklable() -> None:
    settings = parse(SHOP, {"KAFKA_PASSWORD": "x"})
    with pytest.raises(ValueError, match="frozen"):
        settings.pipeline = "other"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(settings)) == settings


# The environment and mounted secrets


def test_references_are_replaced_by_variables() -> None:
    environ = {"A": "x", "EMPTY": "", "INJECTED": "a]\nsink: {kind: kafka}"}
    text = MINIMAL.replace("/data/orders", "/data/orders, key: [%s]")
    cases = {
        "${A}": "x",
        "pre${A}post${A}": "prexpostx",
        "${B:-d}": "d",
        "${EMPTY:-d}": "d",
        "${B:-a,[b]}": "a,[b]",
        '"${B:-a: b}"': "a: b",
        "${INJECTED}": environ["INJECTED"],
        "$${A}": "${A}",
        "$A $$": "$A $$",
    }
    for written, read in cases.items():
        assert parse(text % written, environ).tables[0].key == (read,)


def test_a_reference_with_an_empty_default_is_not_given() -> None:
    text = MINIMAL + "storage: {s3: {region: '${R:-}'}}"
    assert parse(text, {}).storage.s3.region is None
    assert parse(text, {"R": "r"}).storage.s3.region == "r"


def test_references_that_lead_nowhere() -> None:
    text = """
    pipeline: ${PIPELINE}
    tables: [{uri: "${BAD NAME}", key: ["a${KEY}"]}]
    sink: {kind: files, path: "${UNCLOSED"}
    """
    assert problems(text) == (
        "pipeline: the environment variable PIPELINE is not set (line 2)",
        "tables[0].uri: expected ${NAME} or ${NAME:-default}; write $${ for a literal ${ (line 3)",
        "tables[0].key[0]: the environment variable KEY is not set (line 3)",
        "sink.path: expected ${NAME} or ${NAME:-default}; write $${ for a literal ${ (line 4)",
    )


def test_file_of_a_secret_that_leads_nowhere_is_one_problem() -> None:
    text = MINIMAL + "http: {listen: '127.0.0.1:0', token_file: '${TOKEN}'}"
    (problem,) = problems(text)
    assert problem.startswith("http.token_file: the environment variable TOKEN is not set")


def test_secret_is_read_from_a_mounted_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b" hunter2: [\r\n")
    (tmp_path / "user").write_text("u")
    text = SHOP.replace(
        "username: u, password: ${KAFKA_PASSWORD}", 'username_file: "${D}/user", password_file: "${D}/password"'
    )
    sink = parse(text, {"D": str(tmp_path)}).sink
    assert isinstance(sink, KafkaSettings)
    assert (str(sink.security.username), sink.security.password.reveal()) == ("u", " hunter2: [")


def test_mounted_secrets_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "huge").write_bytes(b"x" * (1 << 20) + b"x")

    def said(file: str) -> str:
        lines = problems(SHOP.replace("password: ${KAFKA_PASSWORD}", f"password_file: {file}"))
        assert len(lines) == 1
        return lines[0]

    assert said(f"{tmp_path}/none").startswith("sink.security.password_file: cannot read the file: No such file")
    assert "cannot read the file" in said(str(tmp_path))
    assert "the file is empty" in said(f"{tmp_path}/empty")
    assert "not UTF-8" in said(f"{tmp_path}/binary")
    assert "larger than" in said(f"{tmp_path}/huge")
    assert "not UTF-8" in said('"a\\0b"')
    assert "expected the path of a file" in said("[a]")


def test_a_secret_given_twice() -> None:
    text = SHOP.replace("password: ${KAFKA_PASSWORD}", "password: hunter2, password_file: /dev/null")
    assert problems(text)[0] == "sink.security.password: given twice, here and as password_file (line 20)"


def test_secret_file_without_a_value_is_not_set(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2")
    for pair in (
        "password: '${P:-}', password_file: ${D}/password",
        "password: hunter2, password_file: '${F:-}'",
        "password: hunter2, password_file: ",
    ):
        sink = parse(SHOP.replace("password: ${KAFKA_PASSWORD}", pair), {"D": str(tmp_path)}).sink
        assert isinstance(sink, KafkaSettings)
        assert sink.security.password.reveal() == "hunter2"


def test_columns_that_are_called_like_secret_files(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 32)
    names = (
        "mask: {remote_file: {method: nullify}, id: {method: hmac_sha256, hmac_key_file: key}},"
        "headers: {token: token, token_file: token_file}"
    )
    for entry in (f"uri: /x/a, {names}", f"discover: /x/*, overrides: [{{tables: [a], {names}}}]"):
        settings = parse(
            f"pipeline: p\ntables: [{{{entry}}}]\nsink: {{kind: kafka, bootstrap_servers: 'k:9092'}}",
            {},
            folder=str(tmp_path),
        )
        [table] = settings.listed or [settings.discoveries[0].table_at(("a",)).table]
        assert set(table.mask) == {"remote_file", "id"}
        assert table.headers == {"token": "token", "token_file": "token_file"}


def test_aws_variables_fill_in_what_is_not_given() -> None:
    environ = {"AWS_ENDPOINT_URL": "http://localhost:9000/", "AWS_DEFAULT_REGION": "d", "AWS_REGION": "r"}
    environ |= {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "hunter2", "AWS_SESSION_TOKEN": "t"}
    s3 = parse(MINIMAL, environ).storage.s3
    assert (s3.endpoint_url, s3.region) == ("http://localhost:9000", "r")
    assert (s3.access_key_id, s3.secret_access_key, s3.session_token) == (Secret("id"), Secret("hunter2"), Secret("t"))
    own = parse(MINIMAL + "storage: {s3: {region: x, access_key_id: a, secret_access_key: b}}", environ).storage.s3
    assert (own.region, own.access_key_id, own.session_token) == ("x", Secret("a"), None)
    profile = parse(MINIMAL + "storage: {s3: {profile: lake}}", environ).storage.s3
    assert (profile.profile, profile.region, profile.access_key_id, profile.secret_access_key) == (
        "lake",
        "r",
        None,
        None,
    )
    assert parse(MINIMAL, {"AWS_ACCESS_KEY_ID": "id"}).storage.s3.access_key_id is None
    assert problems(MINIMAL, {"AWS_ENDPOINT_URL": "ftp://x"}) == (
        'storage.s3.endpoint_url: expected an address such as https://host:port, found "${AWS_ENDPOINT_URL}"',
    )


# Refused configurations


def test_all_problems_at_once_with_paths_and_lines() -> None:
    text = """
pipeline: Shop
tables:
  - uri: s3://lake/orders
    strat: snapshot
    changes: atuo
    key: order_id
  - uri: hdfs://lake/x
    topic: ..
    columns: []
sink:
  kind: kafka
  bootstrap_servers: localhost
  topics: {partitions: four, replication_factor: 0, config: {x.y: [1]}, partitons: 3}
poll: {interval: 5}
engine: embedded
http: {listen: 9464}
colour: red
"""
    assert problems(text) == (
        "pipeline: expected a name of lower-case letters, digits, '.', '_' and '-' that begins with a letter or digit, "
        'found "Shop" (line 2)',
        'tables[0].strat: unknown key, did you mean "start"? (line 5)',
        'tables[0].changes: expected auto, cdf or files, found "atuo" (line 6)',
        'tables[0].key: expected a list, found "order_id" (line 7)',
        'tables[1].uri: expected a path, file:///… or s3://bucket/…, found "hdfs://lake/x" (line 8)',
        "tables[1].topic: expected at most 249 letters, digits, '.', '_' and '-'; set one if the URI's is not valid, "
        'found ".." (line 9)',
        'sink.bootstrap_servers: expected host:port, or several with commas between them, found "localhost" (line 13)',
        'sink.topics.partitions: expected a whole number, found "four" (line 14)',
        'sink.topics.replication_factor: expected at least 1, found "0" (line 14)',
        'sink.topics.config["x.y"]: expected text, found a list (line 14)',
        'sink.topics.partitons: unknown key, did you mean "partitions"? (line 14)',
        'poll.interval: expected a duration such as 500ms, 1s or 5m, found "5" (line 15)',
        'engine: expected a mapping, found "embedded" (line 16)',
        'http.listen: expected an address such as 127.0.0.1:9464, or null for no server, found "9464" (line 17)',
        "colour: unknown key; known here: catalogs, catch_up, "
        "controls, engine, heartbeat, http, limits, pipeline, poll, progress, sink, sinks, spill, "
        "standby, storage, tables, telemetry (line 18)",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the configuration is empty"),
        ("# nothing\n", "the configuration is empty"),
        ("[]", "expected a mapping"),
        ("just text", "expected a mapping"),
        ("null", "expected a mapping"),
        ("a: 1\n---\nb: 2", "expected one YAML document, found another one after it (line 2)"),
        ("a: [1, 2\nb: 3", "column"),
        ("a:\n\t- b", "(line 2)"),
        ("a: \x01", "character 3 is not allowed (line 1)"),
        ('a: "\\UFFFFFFFF"', "names a character that does not exist"),
        ('a: "\\ud800"', "a: the text is not valid Unicode (line 1)"),
        ('"\\ud800": a', "is not valid Unicode (line 1)"),
        ("? [a]\n: b", "expected a name as the key of a mapping"),
        ("a: *b", "a: an alias refers to nothing before it (line 1)"),
        ("a: &a [*a]", "a[0]: an alias refers to nothing before it (line 1)"),
        ("a: {<<: b}", "expected a mapping, or a list of mappings, to merge"),
        ("[" * 40 + "]" * 40, "nested deeper than 32 levels"),
        ("[" * 5000, "nested deeper than 32 levels"),
        (
            "a: &a [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]\nb: &b [[[[[[[[[[[[[[[[*a]]]]]]]]]]]]]]]]",
            "nested deeper than",
        ),
    ],
)
def test_documents_that_are_no_configuration(text: str, expected: str) -> None:
    assert any(expected in line for line in problems(text))


def test_aliases_cannot_blow_up() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "more than 100000 values" in problems("\n".join(lines))[0]


def test_duplicate_key_is_named_with_both_lines() -> None:
    actual = problems(MINIMAL + "poll: {interval: 1s}\nhttp: {}\npoll: {interval: 2s}\n")
    assert actual == ("poll: duplicate key, first on line 5 (line 7)",)


def test_tags_construct_nothing() -> None:
    actual = problems(MINIMAL + "http: !!python/object/apply:os.system [true]\n")
    assert actual[0] == "http: a YAML tag that is not supported (line 5)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pipeline: p\ntables: []\nsink: {kind: files, path: /o}", "tables: at least one is required (line 2)"),
        (
            "pipeline: p\ntables: [{uri: a/x}, {uri: b/x, topic: y}]\nsink: {kind: files, path: /o}",
            'tables[1].name: the same as that of tables[0], "x"; give one of them another (line 2)',
        ),
        (
            "pipeline: p\ntables: [{uri: a/x}, {uri: b/x, name: y}]\nsink: {kind: files, path: /o}",
            'tables[1].topic: the same as that of tables[0], "x"; give one of them another (line 2)',
        ),
        (
            "pipeline: p\ntables: [{uri: a/x}, {uri: b/x.part.3}]\nsink: {kind: files, path: /o}",
            'tables[1].name: a part or backfill of the table "x" has such a name; give it another (line 2)',
        ),
        ("pipeline: p\ntables: [{uri: /a}]\nsink: {path: /o}", "sink.kind: required: kafka, files or delta (line 3)"),
        (
            "pipeline: p\ntables: [{uri: /a}]\nsink: {kind: kafak}",
            'sink.kind: expected one of kafka, files, delta (did you mean kafka?), found "kafak" (line 3)',
        ),
        ("pipeline: p\ntables: [{uri: /a}]\nsink: {kind: delta}", "sink.path: required (line 3)"),
        (
            "pipeline: p\ntables: [{uri: /a}]\nsink: {kind: delta, path: /o, change_feed: true}",
            "sink.change_feed: has no use with mode changelog; expected mirror (line 3)",
        ),
        (
            "pipeline: p\ntables: [{uri: /a}]\nsink: {kind: files, path: s3://x}",
            'sink.path: expected the path of a folder, found "s3://x" (line 3)',
        ),
        (
            "pipeline: p\ntables: [{uri: ., name: x}]\nsink: {kind: files, path: /o}",
            "tables[0].topic: expected at most 249 letters, digits, '.', '_' and '-'; "
            "set one if the URI's is not valid (line 2)",
        ),
        (KAFKA.replace('"a:1"', '"a:1", format: avro'), "sink.schema_registry: required with format avro (line 4)"),
        (
            KAFKA.replace('"a:1"', '"a:1", delivery: at_least_once') + "progress: {ledger: none}",
            "progress.ledger: required with delivery at_least_once, which keeps positions nowhere else (line 5)",
        ),
        (
            KAFKA.replace('"a:1"', '"a:1", security: {protocol: SASL_SSL, username: u, password: p}'),
            "sink.security.mechanism: required with protocol SASL_SSL (line 4)",
        ),
        (
            KAFKA.replace('"a:1"', '"a:1", security: {username: u}'),
            "sink.security.username: has no use with protocol PLAINTEXT; expected SASL_SSL or SASL_PLAINTEXT (line 4)",
        ),
        (
            KAFKA.replace('"a:1"', '"a:1", security: {protocol: SSL, key_password: p}'),
            "sink.security.key_password: has no use without key_path (line 4)",
        ),
        (
            KAFKA.replace('"a:1"', '"a:1", schema_registry: {url: "http://r", password: p}'),
            "sink.schema_registry: username and password go together (line 4)",
        ),
        (
            KAFKA.replace('"a:1"', '"a:1", schema_registry: {url: "http://r", username: u}'),
            "sink.schema_registry: username and password go together (line 4)",
        ),
        (
            MINIMAL + "storage: {s3: {session_token: t}}",
            "storage.s3.session_token: has no use without access_key_id and secret_access_key (line 5)",
        ),
        (
            MINIMAL + "storage: {s3: {profile: p, session_token: t}}",
            "storage.s3.session_token: has no use without access_key_id and secret_access_key (line 5)",
        ),
        (
            MINIMAL + "poll: {interval: 10s}",
            "poll.max_interval: expected no less than poll.interval (line 5)",
        ),
        (
            MINIMAL + "poll: {interval: 1ms}",
            'poll.interval: expected at least 0.01, found "1ms" (line 5)',
        ),
        (
            MINIMAL + "storage: {s3: {access_key_id: a}}",
            "storage.s3: access_key_id and secret_access_key go together (line 5)",
        ),
        (MINIMAL.replace("/data/orders", "/a, key: [x, x]"), "tables[0].key: the same column twice (line 3)"),
        (MINIMAL.replace("/data/orders", "/a, key: [x, X]"), "tables[0].key: the same column twice (line 3)"),
        (
            MINIMAL.replace("/data/orders", "/a, key: [x], columns: [y]"),
            "tables[0].key: names columns that `columns` leaves out (line 3)",
        ),
        (MINIMAL.replace("/out", "/out, fsync: yes"), 'sink.fsync: expected true or false, found "yes" (line 4)'),
    ],
)
def test_values_that_do_not_go_together(text: str, expected: str) -> None:
    assert problems(text) == (expected,)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load(tmp_path / "none.yaml", {})
    (tmp_path / "latin.yaml").write_bytes(b"pipeline: \xe9")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "latin.yaml", {})
    (tmp_path / "bad.yaml").write_text("{}")
    with pytest.raises(ConfigProblems, match=r"bad\.yaml"):
        load(tmp_path / "bad.yaml", {})
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load(tmp_path / "bom.yaml", {}) == parse(MINIMAL, {})


# Secrets are never shown


SECURITY = "security: {protocol: SASL_SSL, mechanism: SCRAM-SHA-512, username: u, password: ${KAFKA_PASSWORD}}"


@pytest.mark.parametrize(
    "security",
    [
        "security: {protocol: SASL_SSL, mechanism: hunter2, username: u, password: hunter2}",
        "security: {protocol: hunter2, pasword: hunter2}",
        "security: {protocol: SASL_SSL, mechanism: PLAIN, username: u, password: [hunter2]}",
        "security: {protocol: SASL_SSL, mechanism: PLAIN, username: u, password: {hunter: hunter2}}",
        "security: hunter2",
        "security: {password: hunter2, password: hunter2}",
        "security: {protocol: SASL_SSL, password: *hunter2}",
        "security: {protocol: SASL_SSL, password: !hunter2 a}",
        "security: {protocol: SASL_SSL, password: !hun!hunter2 a}",
        "security: {password: hunter2",
        "security: {password: 'hunter2}",
        'security: {password: "hunter2\\q"}',
        "security: {password: @hunter2}",
        "security: {password: %hunter2}",
        "security: {password: hunter2: hunter2}",
        "security: {password: '${hunter2 x}'}",
        "security: {protocol: '${SECRET}'}",
        "compression: ${SECRET}",
        "topics: {partitions: '${SECRET}'}",
        "schema_registry: {url: 'http://user:hunter2@host'}",
    ],
)
def test_errors_show_no_secret(security: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        parse(SHOP.replace(SECURITY, security), {"SECRET": "hunter2"})
    chain: list[BaseException | None] = [caught.value, caught.value.__cause__, caught.value.__context__]
    shown = [repr(link) + str(link) for link in chain] + list(caught.value.problems)
    assert not [line for line in shown if "hunter2" in line]


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("storage: {s3: {region: ''}}", "storage.s3.region: expected text that is not empty"),
        ("spill: {path: ''}", 'spill.path: expected text that is not empty, found ""'),
        (
            "telemetry: {openlineage: {namespace: ''}}",
            "telemetry.openlineage.namespace: expected text that is not empty",
        ),
    ],
)
def test_empty_texts_are_named_as_such(section: str, expected: str) -> None:
    assert problems(MINIMAL + section) == (f"{expected} (line {MINIMAL.count(chr(10)) + 1})",)


def test_empty_items_and_lists_are_named_as_such() -> None:
    registry = "sink: {kind: kafka, bootstrap_servers: 'h:1', schema_registry: {url: []}}"
    text = f"pipeline: p\ntables: [{{uri: /t, key: ['']}}]\n{registry}"
    assert problems(text) == (
        'tables[0].key[0]: expected text that is not empty, found "" (line 2)',
        "sink.schema_registry.url: at least one is required (line 3)",
    )


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("telemetry: {otel: {headers: authorization=hunter2}}", "telemetry.otel.headers: expected a mapping"),
        (
            "telemetry: {otel: {headers: [authorization=hunter2]}}",
            "telemetry.otel.headers: expected a mapping, found a list",
        ),
        (
            "telemetry: {otel: {headers: {authorization=hunter2}}}",
            "telemetry.otel.headers: expected text that is not empty, found nothing",
        ),
        (
            "telemetry: {otel: {headers: {x-api-key: }}}",
            "telemetry.otel.headers.x-api-key: expected text that is not empty, found nothing",
        ),
        ("telemetry: {otel: authorization=hunter2}", "telemetry.otel: expected a mapping"),
        ("engine: {spark: {conf: spark.ssl.keyPassword=hunter2}}", "engine.spark.conf: expected a mapping"),
    ],
)
def test_mappings_of_secrets_are_not_shown(section: str, expected: str) -> None:
    assert problems(MINIMAL + section) == (f"{expected} (line {MINIMAL.count(chr(10)) + 1})",)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://key:hunter2@bucket/orders",
        "s3://hunter2@bucket/orders",
        "abfss://account:hunter2@account.dfs.core.windows.net/orders",
        "abfss://:hunter2@account.dfs.core.windows.net/orders",
        "abfss://a@hunter2@account.dfs.core.windows.net/orders",
        "abfss://container:hunter2@account@host/orders",
        "abfss://container@account.dfs.core.windows.net/orders?sv=2020&sig=hunter2",
        "az://container:hunter2@account/orders",
        "gs://hunter2@bucket/orders",
    ],
)
def test_tables_with_credentials_in_the_uri_are_refused_and_not_shown(uri: str) -> None:
    actual = problems(MINIMAL.replace("/data/orders", f"'{uri}'"))
    assert actual
    assert not any("hunter2" in each for each in actual)


def test_brokers_with_credentials_are_refused_and_not_shown() -> None:
    (actual, *_) = problems(KAFKA.replace("a:1", "u:hunter2@a:1"))
    assert "expected host:port" in actual
    assert "hunter2" not in actual


@pytest.mark.parametrize(
    "uri", ["abfss://lake@account.dfs.core.windows.net/a/orders", "abfs://$web@account.dfs.core.windows.net/orders"]
)
def test_azure_s_containers_are_no_users(uri: str) -> None:
    settings = parse(MINIMAL.replace("/data/orders", f"'{uri}'"), {})
    assert (settings.tables[0].uri, settings.tables[0].name) == (uri, "orders")


def test_repr_and_dumps_show_no_secret() -> None:
    text = SHOP.replace(
        "region: eu-west-1", "access_key_id: hunter2, secret_access_key: hunter2, session_token: hunter2"
    )
    text = text.replace(
        "  compression: lz4", "  schema_registry: {url: 'http://r', username: u, password: hunter2}\n  compression: lz4"
    )
    settings = parse(text, {"KAFKA_PASSWORD": "hunter2"})
    shown = [
        repr(settings),
        str(settings),
        repr(settings.public()),
        settings.model_dump_json(),
        repr(settings.model_dump()),
    ]
    assert not [form for form in shown if "hunter2" in form]
    public = settings.public()
    assert public["sink"]["security"]["password"] == "***"
    assert (public["tables"][0]["start"], public["http"]["listen"]) == ("snapshot", "127.0.0.1:9464")
    assert (str(Secret("hunter2")), repr(Secret("hunter2"))) == ("***", "Secret(***)")


# Paths


RELATIVE = """
pipeline: p
tables:
  - uri: lake/./orders
    allowed_roots: [../archive, /abs, "s3://b/c"]
  - uri: s3://lake/others
  - uri: file:///data/third
sink:
  kind: kafka
  bootstrap_servers: a:1
  security:
    protocol: SASL_SSL
    mechanism: PLAIN
    username_file: secrets/user
    password_file: secrets/password
    ca_path: tls/ca.pem
    certificate_path: tls/client.pem
    key_path: /tls/key.pem
    key_password_file: secrets/password
progress: {ledger: ./ledger}
engine: {kind: auto, spark: {checkpoint: checkpoints}}
"""


def test_relative_paths_begin_at_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "etc"
    (folder / "secrets").mkdir(parents=True)
    (folder / "secrets/user").write_text("alice\n")
    (folder / "secrets/password").write_text("hunter2\n")
    (folder / "cdfd.yaml").write_text(RELATIVE)
    (tmp_path / "link.yaml").symlink_to(folder / "cdfd.yaml")
    monkeypatch.chdir(tmp_path)
    for path in ("etc/cdfd.yaml", folder / "cdfd.yaml"):
        settings = load(path, {})
        orders, others, third = settings.tables
        assert (orders.uri, orders.name) == (f"{folder}/lake/orders", "orders")
        assert orders.allowed_roots == (f"{tmp_path}/archive", "/abs", "s3://b/c")
        assert (others.uri, third.uri) == ("s3://lake/others", "file:///data/third")
        assert isinstance(settings.sink, KafkaSettings)
        security = settings.sink.security
        assert (str(security.username), security.password.reveal()) == ("alice", "hunter2")
        assert (security.ca_path, security.certificate_path, security.key_path) == (
            f"{folder}/tls/ca.pem",
            f"{folder}/tls/client.pem",
            "/tls/key.pem",
        )
        assert settings.progress.ledger == Ledger("table", f"{folder}/ledger")
        assert settings.engine.spark.checkpoint == "checkpoints"
    # Mounted configurations are links, and the files that they name are next to the link.
    with pytest.raises(ConfigProblems, match="password_file"):
        load(tmp_path / "link.yaml", {})
    assert load(tmp_path / "link.yaml", {}, folder).tables[0].uri == f"{folder}/lake/orders"


def test_relative_paths_of_a_pipe_begin_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reading, writing = os.pipe()
    try:
        os.write(writing, MINIMAL.replace("path: /out", "path: out").encode())
        os.close(writing)
        sink = load(f"/dev/fd/{reading}", {}).sink
    finally:
        os.close(reading)
    assert isinstance(sink, FilesSettings)
    assert sink.path == f"{tmp_path}/out"


def test_places_named_by_every_example_are_absolute(tmp_path: Path) -> None:
    for example in (ROOT / "config").glob("*.yaml"):
        settings = load(example, {"KAFKA_PASSWORD": "hunter2"})
        places = [table.uri for table in settings.tables]
        if isinstance(settings.sink, FilesSettings):
            places.append(settings.sink.path)
        if settings.progress.ledger.kind == "table":
            places.append(settings.progress.ledger.uri)
        assert all(os.path.isabs(place) or "://" in place for place in places)


# The shape of rows


SHAPED = """
pipeline: p
tables:
  - uri: /data/orders
    key: [id]
    columns: [id, {name: amount, as: value}, email, name, phone]
    where: "region = 'de' AND amount > 10"
    mask:
      id: {method: hmac_sha256, hmac_key: ${KEY}}
      email: {method: truncate, length: 2}
      name: {method: constant, value: "?"}
      phone: {method: nullify}
    exclude_change_types: [update_preimage]
    headers: {x-amount: amount}
sink: {kind: kafka, bootstrap_servers: "a:1"}
"""


def test_case_of_a_key_does_not_count() -> None:
    [table] = parse(MINIMAL.replace("/data/orders", "/a, key: [ID], columns: [{name: id, as: Number}, v]")).listed
    assert table.rows.published_key == ("Number",)


def test_filter_columns_and_masks_of_a_table_are_read() -> None:
    [table] = parse(SHAPED, {"KEY": "sixteen letters!"}).listed
    shape = table.shape
    assert str(shape.where) == "region = 'de' AND amount > 10"
    assert shape.names == ("id", "amount", "email", "name", "phone")
    assert dict(shape.masks) == {
        "id": Mask("hmac_sha256", key=b"sixteen letters!"),
        "email": Mask("truncate", length=2),
        "name": Mask("constant", "?"),
        "phone": Mask("nullify"),
    }
    assert shape.excluded == ("update_preimage",)
    assert (table.rows.published_key, table.published_headers) == (("id",), {"x-amount": "value"})
    public = str(parse(SHAPED, {"KEY": "sixteen letters!"}).public())
    assert "sixteen" not in public
    assert "{'name': 'amount', 'as': 'value'}" in public


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("amount > 10", "amount >", "tables[0].where: the filter: a column or a literal is expected (character 27, at its end) (line 7)"),
        ("as: value", "az: value", "tables[0].columns[1]: expected the name of a column, or a mapping such as {name:"),
        ("as: value", "as: email", "tables[0].columns: two columns are published by the same name (line 6)"),
        ("as: value", "as: _Change_Type", "tables[0].columns: a column cannot be published as _Change_Type, the name of a change column"),
        ("method: hmac_sha256, hmac_key: ${KEY}", "method: nullify", "tables[0].mask.id: the mask nullify of column 'id' gives"),
        ("length: 2", "value: x", "tables[0].mask.email.value: has no use with truncate (line 10)"),
        ("${KEY}", "short", "tables[0].mask.id.hmac_key: expected at least 16 bytes, such as the output of `openssl rand -hex 32` (line 9)"),
        ("truncate", "hide", "tables[0].mask.email.method: expected nullify, constant, truncate or hmac_sha256"),
        ("x-amount: amount", "x-amount: region", "tables[0].headers.x-amount: names a column that `columns` leaves out (line 14)"),
        ("x-amount", "__x", "tables[0].headers.__x: expected a name that does not begin with __, found"),
        ("a:1\"", 'a:1\", format: arrow', "sink: headers of tables[0] have no use with format arrow, whose records have many rows (line 15)"),
        (
            "x-amount: amount}\nsink: {", "ce_type: amount}\nsink: {format: cloudevents, ",
            "sink: headers of tables[0] have the name ce_type, which records in format cloudevents have already",
        ),
        (
            "x-amount: amount}\nsink: {",
            "apicurio.value.contentId: amount}\nsink: {format: avro, schema_registry: {url: 'http://r', framing: apicurio}, ",
            "sink: headers of tables[0] have the name apicurio.value.contentId, which records in format avro have already",
        ),
        ("kind: kafka, bootstrap_servers: \"a:1\"", "kind: files, path: /out", "sink: headers of tables[0] need a Kafka sink (line 15)"),
        ("[update_preimage]", "[update]", "tables[0].exclude_change_types[0]: expected insert, update_preimage, update_postimage or delete"),
    ],
)  # fmt: skip
def test_shapes_that_are_refused(old: str, new: str, expected: str) -> None:
    assert problems(SHAPED.replace(old, new), {"KEY": "sixteen letters!"})[0].startswith(expected)


# The documentation


REFERENCE = ROOT / "docs" / "reference-configuration.md"


def _documented() -> list[tuple[str, str]]:
    return re.findall(r"(?m)^\| `([^`]+)` \| (.*) \|$", REFERENCE.read_text())


def _keys(section: type[Section], prefix: str = "") -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        below = [] if name == "sinks" else _sections(field.annotation)  # each of them has the keys of `sink`
        key = f"{prefix}{name}"
        if not below or field.is_required() or name == "sink":
            keys[key] = field
        for inner in below:
            # A pattern of folders has keys of tables, with the same meaning.
            mapped = ".<column>" if "Mapping[" in str(field.annotation) else ""
            keys = _keys(inner, f"{key}[]." if get_origin(field.annotation) is tuple else f"{key}{mapped}.") | keys
    return keys


def _sections(annotation: Any) -> list[type[Section]]:
    if annotation is SinkSettings:
        return [SINKS.load(kind) for kind in SINKS.names()]
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [inner for argument in get_args(annotation) for inner in _sections(argument)]


def test_every_setting_is_documented_and_nothing_else() -> None:
    documented = {key for key, _ in _documented()}
    # A sentence names the keys of overrides that are those of a table.
    *_, overrides = re.findall(r"(?m)^As in an entry with `uri`: (.*)\.$", REFERENCE.read_text())
    names = set(re.findall(r"`(\w+)`", overrides))
    tables = [key.split(".", 1) for key in documented if key.startswith("tables[].")]
    documented |= {f"tables[].overrides[].{key}" for _, key in tables if key.partition(".")[0] in names}
    assert documented == set(_keys(Settings))


def test_documented_defaults_and_marks_are_true() -> None:
    sinks = [_keys(SINKS.load(kind), "sink.") for kind in SINKS.names()]
    for key, row in _documented():
        # Sinks of several kinds have keys with the same name.
        fields = [keys[key] for keys in sinks if key in keys] or [_keys(Settings)[key]]
        name = key.rsplit(".")[-1]
        assert (name in file_settings()) == ("*file*" in row), key
        assert name == "kind" or any(_shown(key, field.default) in row for field in fields), key


def _shown(key: str, default: Any) -> str:
    """The default as its row has it; empty for one that is described."""
    if not isinstance(default, str | int) or isinstance(default, bool) or not default or "max_bytes" in key:
        return ""
    sizes = {8 << 30: "8GiB", 1 << 30: "1GiB", 128 << 20: "128MiB", 64 << 20: "64MiB"}
    return f"`{sizes.get(default, default) if isinstance(default, int) else default}`"


# Anything at all


texts = st.one_of(
    st.sampled_from(
        ["snapshot", "files", "kafka", "delta", "/a", "a:1", "1s", "${A}", "${B:-}", "12", "none", "true", "avro"]
    ),
    st.text(max_size=12),
)
keys = st.one_of(
    st.sampled_from(sorted({re.split(r"\W+", key)[-1] for key in _keys(Settings)} | {"password_file", "tables"})), texts
)
trees = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=5)),
    max_leaves=20,
)
top = st.fixed_dictionaries(
    {},
    optional={
        "pipeline": texts,
        "tables": st.lists(st.dictionaries(keys, trees, max_size=4), max_size=2) | trees,
        "sink": st.dictionaries(keys, trees, max_size=5) | trees,
        **dict.fromkeys(("progress", "poll", "catch_up", "engine", "storage", "http", "other"), trees),
    },
)


@effort(max_examples=100 // stride(4), deadline=None)
@given(top | trees)
def test_any_tree_is_settings_or_problems(tree: Any) -> None:
    text = yaml.safe_dump(tree, allow_unicode=True)
    try:
        settings = parse(text, {"A": "x"})
    except ConfigProblems:
        assert not [line for line in problems(text, {"A": "x"}) if "\n" in line]
    else:
        assert parse(text, {"A": "x"}) == settings
        repr(settings.public())


@given(st.text(alphabet=st.sampled_from("ab:- \n[]{}&*!|>'\"%@`#,?<$\\ux0\t"), max_size=60))
def test_any_text_is_settings_or_problems(text: str) -> None:
    with pytest.raises(ConfigProblems):
        parse(text, {})


class TestMechanisms:
    def said(self, security: str) -> list[str]:
        text = re.sub(r"(?m)^  security: .*$", f"  security: {security}", SHOP)
        return [line.partition(" (line")[0] for line in problems(text)]

    def test_kerberos_is_refused_by_name(self) -> None:
        for name in ("GSSAPI", "kerberos"):
            [said] = self.said(f"{{protocol: SASL_SSL, mechanism: {name}, username: u, password: p}}")
            assert said.startswith("sink.security.mechanism: Kerberos (GSSAPI) is not supported. Use SCRAM-SHA-512")

    def test_oauth_needs_a_source(self) -> None:
        begin = "{protocol: SASL_SSL, mechanism: OAUTHBEARER"
        assert self.said(begin + "}") == [
            "sink.security.oauth: required with protocol SASL_SSL and mechanism OAUTHBEARER"
        ]
        assert self.said(begin + ", oauth: {}}") == ["sink.security.oauth: either token_url or token is required"]
        assert self.said(begin + ", oauth: {token_url: 'https://i/t'}}") == [
            "sink.security.oauth.client_id: required with token_url",
            "sink.security.oauth.client_secret: required with token_url",
        ]
        client = "token_url: 'https://i/t', client_id: c, client_secret: s"
        assert self.said(f"{begin}, username: u, oauth: {{{client}}}}}") == [
            "sink.security.username: has no use with mechanism OAUTHBEARER"
        ]
        assert self.said(f"{begin}, oauth: {{{client}, parameters: {{grant_type: password}}}}}}") == [
            "sink.security.oauth.parameters.grant_type: has a key of its own, or is always the same"
        ]
        assert self.said(f"{begin}, oauth: {{{client}, extensions: {{auth: x}}}}}}")[0].startswith(
            "sink.security.oauth.extensions.auth: expected a name of letters"
        )

    def test_a_token_needs_no_client(self) -> None:
        client = "client_id: c, client_secret: s, client_authentication: post, scope: x, parameters: {audience: a}, ca_path: /c"
        oauth = f"oauth: {{token: t, {client}, extensions: {{logicalCluster: l}}}}"
        names = "client_id", "client_secret", "client_authentication", "scope", "parameters", "ca_path"
        assert self.said(f"{{protocol: SASL_SSL, mechanism: OAUTHBEARER, {oauth}}}") == [
            f"sink.security.oauth.{name}: has no use with token" for name in names
        ]

    def test_iam_needs_tls_and_no_password(self) -> None:
        assert self.said("{protocol: SASL_PLAINTEXT, mechanism: AWS_MSK_IAM}") == [
            "sink.security.protocol: expected SASL_SSL with mechanism AWS_MSK_IAM"
        ]
        assert self.said("{protocol: SASL_SSL, mechanism: AWS_MSK_IAM, password: p}") == [
            "sink.security.password: has no use with mechanism AWS_MSK_IAM"
        ]
        assert self.said("{protocol: SASL_SSL, mechanism: AWS_MSK_IAM, aws: {profile: a, role_arn: b}}") == [
            "sink.security.aws.role_arn: has no use with profile, which can name a role itself"
        ]

    def test_secrets_of_a_client_are_shown_nowhere(self) -> None:
        oauth = "{token_url: 'https://i/t', client_id: c, client_secret: cl1ent-secret}"
        text = re.sub(
            r"(?m)^  security: .*$", f"  security: {{protocol: SASL_SSL, mechanism: OAUTHBEARER, oauth: {oauth}}}", SHOP
        )
        settings = parse(text, {"KAFKA_PASSWORD": "x"})
        assert "cl1ent-secret" not in f"{settings!r}{settings}{settings.public()}"


@pytest.mark.parametrize(("share", "expected"), [("0", 0.0), ("1", 1.0), ("0.25", 0.25), ('"0.5"', 0.5)])
def test_sample_is_a_share_from_0_to_1(share: str, expected: float) -> None:
    assert parse(f"{MINIMAL_FILES}telemetry: {{otel: {{sample: {share}}}}}\n", {}).telemetry.otel.sample == expected


@pytest.mark.parametrize("share", ["-0.1", "1.1", "x", "true", ".nan", "null"])
def test_what_is_no_share(share: str) -> None:
    if share == "null":  # as everywhere: the default
        assert parse(f"{MINIMAL_FILES}telemetry: {{otel: {{sample: null}}}}\n", {}).telemetry.otel.sample == 1
        return
    with pytest.raises(ConfigError, match="expected a number from 0 to 1"):
        parse(f"{MINIMAL_FILES}telemetry: {{otel: {{sample: {share}}}}}\n", {})


MINIMAL_FILES = "pipeline: p\ntables: [{uri: t}]\nsink: {kind: files, path: o}\n"


def test_a_table_without_a_shape_needs_no_arrow() -> None:
    """The settings are checked by commands that ask the daemon and read no table."""
    program = (
        "import sys; from cdfd.config.table import Table\n"
        "Table.model_validate({'uri': 'orders', 'key': ['id'], 'where': 'id > 1'}); print('pyarrow' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "False"


TOPICS_OF_THE_DAEMON = """pipeline: p
tables:
  - {{uri: /lake/orders}}
  - {{uri: /lake/t{topic}}}
sink: {{kind: kafka, bootstrap_servers: "b:9092", oversized: {oversized}, topics: {{transactions: {on}, schemas: {on}{prefix}}}}}
heartbeat: {{interval: 5s{heartbeat}}}
controls: {{notifications: {on}}}
"""


def of_topics(topic: str = "", heartbeat: str = "", prefix: str = "", on: str = "true", oversized: str = "dlq") -> str:
    topic, heartbeat = (f", topic: {name}" if name else "" for name in (topic, heartbeat))
    prefix = f", prefix: {prefix}" if prefix else ""
    return TOPICS_OF_THE_DAEMON.format(topic=topic, heartbeat=heartbeat, prefix=prefix, on=on, oversized=oversized)


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("p.schema", "is the daemon's own, by sink.topics.schemas"),
        ("p.transactions", "is the daemon's own, by sink.topics.transactions"),
        ("p.notifications", "is the daemon's own, by controls.notifications"),
        ("_cdfd_progress.p", "is reserved: those of the daemon itself begin with _cdfd_"),
        ("_cdfd_progress.other", "is reserved: those of the daemon itself begin with _cdfd_"),
        ("_cdfd_signals.p", "is reserved: those of the daemon itself begin with _cdfd_"),
        ("_cdfd_heartbeat.p", "is reserved: those of the daemon itself begin with _cdfd_"),
        ("orders.dlq", 'is the dead letter topic of the table with the topic "orders"'),
    ],
)
def test_a_table_may_not_have_a_topic_of_the_daemon_itself(topic: str, expected: str) -> None:
    [actual] = problems(of_topics(topic))
    assert actual == f'tables[1].topic: the topic "{topic}" {expected}; give the table another topic (line 4)'


def test_a_topic_below_a_prefix_may_not_be_one_of_the_daemon_either() -> None:
    [actual] = problems(of_topics(prefix="shop.").replace("/lake/t", "/lake/schema"))
    assert actual.startswith('tables[1].topic: the topic "shop.schema" is the daemon\'s own')


@pytest.mark.parametrize("topic", ["p.schema", "p.transactions", "p.notifications", "orders.dlq"])
def test_a_table_may_have_a_topic_that_the_daemon_does_not_use(topic: str) -> None:
    config = parse(of_topics(topic, on="false", oversized="skip"), {})
    assert config.listed[1].topic == topic


@pytest.mark.parametrize(("topic", "whose"), [("p.schema", "sink.topics.schemas"), ("_cdfd_progress.p", "cdfd itself")])
def test_heartbeats_have_a_topic_of_their_own(topic: str, whose: str) -> None:
    assert problems(of_topics(heartbeat=topic)) == (
        f'heartbeat.topic: "{topic}" is the topic of {whose}; give another (line 6)',
    )


def test_heartbeats_may_not_go_to_the_topic_of_a_table_or_its_dead_letters() -> None:
    for topic in ("t", "t.dlq"):
        [actual] = problems(of_topics(heartbeat=topic))
        assert actual.startswith("tables[1].topic: ")
        assert "heartbeat.topic" in actual


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("state", [None, "/state", "relative"])
def test_default_ledger_is_where_the_user_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool, state: str | None
) -> None:
    folder = tmp_path / "lib" / "cdfd"
    if exists:
        folder.mkdir(parents=True)
    monkeypatch.setattr(sections, "STATE_FOLDER", str(folder))
    monkeypatch.setenv("HOME", "/home/shop")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if state is not None:
        monkeypatch.setenv("XDG_STATE_HOME", state)
    settings = parse("pipeline: p\ntables: [{uri: /a}]\nsink: {kind: kafka, bootstrap_servers: 'a:1'}\n", {})
    own = "/state" if state == "/state" else "/home/shop/.local/state"
    assert settings.progress.ledger.uri == (f"{folder}/ledger" if exists else f"{own}/cdfd/ledger")
    assert not (tmp_path / "lib" / "cdfd" / "ledger").exists()


def test_a_sink_that_registers_no_connector_is_named() -> None:
    class Bare(SinkSettings):
        kind: Literal["bare"] = "bare"

    with pytest.raises(ConfigError, match="the sink 'bare' has no connector"):
        Bare().connector(parse(SHOP, {"KAFKA_PASSWORD": "p"}))
