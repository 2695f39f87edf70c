"""Every block of code on the pages is run by a test, or there is a reason why not."""

from collections.abc import Iterator
from pathlib import Path

from tests.quick.docs.test_configurations import is_configuration
from tests.support.docs.pages import Block, blocks, is_step
from tests.support.docs.played import PLAYED

ROOT = Path(__file__).parents[3]
WHOLE = {
    "cli": "generated from the code: test_reference.py",
    "extending": "installed as a package, and delivers a table: test_extending.py",
    "consume/jdbc-sink": "tests/integration/consumers/test_jdbc_sink.py runs with these settings",
    "consume/flink": "tests/integration/consumers/test_flink.py runs with these options",
    "consume/python-cache": "tests/integration/consumers/test_cache.py runs this class",
    "consume/clickhouse": "needs ClickHouse",
    "consume/elasticsearch": "needs a connector that cannot be fetched",
    "consume/ksqldb": "needs ksqlDB",
}
"""Pages that a test uses as a whole."""
REASONS = {
    ("README", "python3 -m venv .venv"): "installs from a clone, as `make test` does",
    (
        "controls",
        '{"id": "ops-7", "type": "execute-snapshot",',
    ): "tests/integration/kafka/test_controls.py sends such a record",
    (
        "dependencies",
        "KafkaProducer.send_batch(partition, data, record_count) -> Future",
    ): "an interface that is proposed",
    ("docker", "docker build -t cdfd ."): "needs Docker: tests/image runs the steps of the Dockerfile",
    ("docker", "docker run --read-only --cap-drop ALL \\"): "needs Docker: tests/image runs the daemon in the same way",
    ("docker", "FROM cdfd"): "needs Docker",
    ("docker", "docker buildx imagetools inspect IMAGE --format '{{ json .SBOM }}'"): "needs a released image",
    ("formats", '{"id":7}  {"id":7,...,"_change_type":"delete",...,"_change_ordinal":0}   __cdfd.newkey: {"id":8}'): (
        "shortened; tests/kafka reads such records"
    ),
    (
        "positions",
        '{"pipeline":"shop","table":"orders"}  {"table_id":"3d3c9c23-...","version":8,',
    ): "shortened; tests/kafka reads such a record",
    ("kafka-topics", '{"order_id":2}  {"reason":"the record is larger than the topic takes",'): (
        "needs a topic that takes only small records: tests/standard/kafka/test_sink.py has one"
    ),
    (
        "kafka-errors",
        "cdfd: the topic _cdfd_progress.shop has no position, but the ledger",
    ): "needs a cluster that lost its topics",
    ("kafka-topics", '{"pipeline": "shop", "table": "orders", "topic": "shop.orders", "ts_ms"'): (
        "has the time of its writing; tests/standard/kafka/test_heartbeats.py reads such records"
    ),
    (
        "kubernetes",
        "make helm      # Helm, built by Go, if you have none",
    ): "run by tests/integration/helm/test_page.py",
    (
        "kubernetes",
        "kubectl create namespace data",
    ): "needs a cluster: tests/integration/helm/test_page.py checks names and options",
    ("kubernetes", "helm upgrade shop helm/cdfd --namespace data --reuse-values"): "the same",
    ("kubernetes", "http:"): "values of the chart, rendered by tests/integration/helm/test_page.py",
    (
        "many-tables",
        "ALTER TABLE orders SET TBLPROPERTIES",
    ): "a statement of Spark; tests/quick/unit/test_discovery.py reads the property",
    (
        "shards",
        "cdfd run -c shop.yaml --shard 0/4",
    ): "needs several processes: tests/integration/kafka/test_shards.py runs them",
    ("architecture", "  cli, demo"): "a drawing",
    (
        "catalogs",
        "export UC_ENDPOINT",
    ): "needs a Unity Catalog: tests/standard/cli/test_catalog.py runs them with a stand-in",
    ("metrics", "scrape_configs:"): "a configuration of Prometheus",
    ("status", "{"): "an error that has passed, with the time of its retry: needs a lost file",
    ("recovery", "cdfd: another daemon has taken over this table"): "needs two daemons and a broker: tests/kafka",
    ("s3", "{"): "a policy, which AWS evaluates",
    ("spark-cluster", "$ cat job.py"): "run by tests/overnight/cluster/test_page.py",
    ("spark-cluster", "CLONE=/path/to/cdfd"): "run by tests/overnight/cluster/test_page.py",
    ("spark-cluster", "PYTHONPATH=cdfd.zip spark-submit"): "run by tests/overnight/cluster/test_page.py, on a cluster",
    ("spark-cluster", "+----------------+-----+"): "the output of that command",
    (
        "spark-cluster",
        "spark-submit --packages org.apache.hadoop:hadoop-aws:",
    ): "tests/cluster compares it with what it runs",
    (
        "spark-recipes",
        "spark-submit deliver.py --uri",
    ): "needs a cluster: test_recipes.py checks it, and tests/spark runs deliver.py",
    ("spark-kafka", "cdfd run -c shop.yaml"): "needs a cluster: tests/integration/spark/test_feed.py runs such a feed",
    ("security", "curl --cacert ca.crt -u ops"): "run by test_security_page.py",
    ("security", "scrape_configs:"): "a configuration of Prometheus",
    (
        "spark-topics",
        "[USER_RAISED_EXCEPTION] cdfd: topic shop.orders,",
    ): "needs a record that is wrong: tests/integration/spark/test_topics.py",
    ("spark-topics", "DELETE FROM delta.`/lake/copies/orders` WHERE _cdfd_version < N"): "N is a version of yours",
    ("consume/clients", "import kafkajs"): "tests/support/consumers/node/kafkajs.mjs has the same codec",
    (
        "consume/clients",
        "import { FetchIsolationLevels }",
    ): "tests/support/consumers/node/platformatic.mjs has the same setting",
    ("consume/clients", "kcat -C"): "tests/integration/consumers/test_clients.py runs kcat",
    ("install", "pip install --requirement docker/requirements/base.txt"): "installs, as `make demo` does",
    ("standby", "cdfd run -c shop.yaml --standby"): "tests/standard/kafka/test_standby.py runs two such processes",
    ("install", "python3 -m venv .venv"): "installs from a clone, as `make test` does",
}
"""Why no test runs a block, by page and the beginning of the block."""


def pages() -> Iterator[tuple[str, Path]]:
    """All pages, with their names: `README`, `kafka`, `consume/flink`."""
    yield "README", ROOT / "README.md"
    for page in sorted((ROOT / "docs").rglob("*.md")):
        yield str(page.relative_to(ROOT / "docs").with_suffix("")), page


def unplayed() -> Iterator[tuple[str, Block]]:
    """Blocks that no test runs, with the names of their pages."""
    for name, page in pages():
        lines = page.read_text().splitlines()
        listing = [] if name in WHOLE else list(blocks(lines))
        for number, block in enumerate(listing):
            loads = block[1] == "yaml" and is_configuration(block[2])
            if not loads and not (name in PLAYED and is_step(lines, listing, number)):
                yield name, block


def reasons(page: str, block: Block) -> list[tuple[str, str]]:
    return [(name, start) for name, start in REASONS if name == page and block[2][0].startswith(start)]


def test_every_block_is_run_or_has_a_reason() -> None:
    bare = [f"{page}.md:{block[0]}: {block[2][0]}" for page, block in unplayed() if not reasons(page, block)]
    assert not bare, "neither run nor excepted:\n" + "\n".join(bare)


def test_every_reason_is_one_of_a_block() -> None:
    used = {reason for page, block in unplayed() for reason in reasons(page, block)}
    assert used == set(REASONS)


def test_every_played_page_exists() -> None:
    assert {name for name, _ in pages()} >= {*PLAYED, *WHOLE}


def test_every_fence_is_one_that_is_found() -> None:
    """A fence in a list, or with more words after its language, would not be played."""
    for name, page in pages():
        lines = page.read_text().splitlines()
        fences = sum(line.lstrip().startswith(("```", "~~~")) for line in lines)
        assert fences == 2 * len(list(blocks(lines))), name
