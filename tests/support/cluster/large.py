"""Large versions for the engines of a cluster: each of their files is a part, and the driver is in the process of `cdfd`."""

import json
import subprocess
from pathlib import Path
from typing import Any, Self

import pyarrow.compute as pc
from deltalake import DeltaTable

import cdfd
from cdfd.demo.writer import TableWriter
from tests.support.cluster.standalone import Standalone
from tests.support.commands import CDFD
from tests.support.kafka import history
from tests.support.kafka.daemon_process import Daemon
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.lake import rows

WITHIN = 480.0  # seconds until a test gives up; nothing waits for it otherwise
FILES = 6


def engine(
    cluster: Standalone, folder: Path, kind: str, conf: dict[str, str] | None = None, **more: object
) -> dict[str, Any]:
    """The section `engine` of a pipeline. Executors have a Python of their own, and cdfd in an archive.

    Args:
        cluster: where it runs.
        folder: for the driver's temporary files.
        kind: of the engine.
        conf: more settings of Spark.
        more: of the section `engine.spark`.
    """
    own = cluster.conf(folder, cluster.installed_python())
    own |= {"spark.executorEnv.PYTHONPATH": str(cluster.wheel)} | (conf or {})
    for name in ("spark.master", "spark.app.name", "spark.pyspark.driver.python"):
        del own[name]
    spark = {"master": cluster.url, "conf": own, "threshold": "1KB", "part_size": "1KB"}
    return {"kind": kind, "spark": spark | more}


def append(table: TableWriter, files: int = FILES) -> None:
    """A large version."""
    first = 1000 * table.version
    parts = [rows(*range(start, start + 20)) for start in range(first, first + 20 * files, 20)]
    do(table.commit("WRITE", [do(table._add(part)) for part in parts]))


def change(table: TableWriter) -> None:
    """A version that updates rows of all files, and one that deletes some."""
    bits = pc.bit_wise_and(pc.field("id"), pc.scalar(7))
    do(table.update(bits == 0, {"v": pc.scalar(f"u{table.version}")}))
    do(table.delete(bits == 3))


def delivered(pipeline: Pipeline) -> int:
    """Wait until all that the table has is delivered, and check that it is there once; the number of rows."""
    pipeline.read(len(history.history(pipeline.place)), timeout=WITHIN)
    return pipeline.check()


class Backfill:
    """`cdfd backfill --engine spark`, under way, of all versions."""

    def __init__(self, pipeline: Pipeline) -> None:
        options = ["-c", str(pipeline.config), "orders", "--from", "0", "--id", "again", "--engine", "spark"]
        self.process = subprocess.Popen([*CDFD, "backfill", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def ended(self) -> tuple[int, str]:
        """Its exit code, and all that it wrote; waited for."""
        said, _ = self.process.communicate(timeout=WITHIN)
        return self.process.returncode, said.decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


class DeltaTarget:
    """A Delta table that a daemon of its own fills with the changes that come from now on.

    Args:
        pipeline: whose table and engine it has.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._uri = pipeline.uri
        self._folder = pipeline.folder / "targets" / "orders"
        config = json.loads(pipeline.config.read_text())
        config["pipeline"] = "target"
        config["tables"] = [{"uri": pipeline.uri, "start": "latest"}]
        config["sink"] = {"kind": "delta", "path": str(self._folder.parent)}
        config["progress"] = {"ledger": "none"}
        self._config = pipeline.folder / "target.yaml"
        self._config.write_text(json.dumps(config))
        self._first = DeltaTable(pipeline.uri).version() + 1

    def daemon(self) -> Daemon:
        """The daemon, started."""
        return Daemon(self._config)

    def version(self) -> int | None:
        """The last version of the source whose changes are in the target."""
        there = DeltaTable.is_deltatable(str(self._folder))
        return DeltaTable(self._folder).transaction_version("cdfd/target/orders") if there else None

    def unnamed(self) -> set[str]:
        """The data files that no version names: those of tasks that run, and of tasks that died."""
        there = DeltaTable.is_deltatable(str(self._folder))
        named = {Path(uri).name for uri in DeltaTable(self._folder).file_uris()} if there else set()
        return {file.name for file in self._folder.glob("*.parquet")} - named

    def check(self) -> None:
        """Each change is there once, in its place."""
        content = DeltaTable(self._folder).to_pyarrow_table().select(["_commit_version", "_change_ordinal", "id", "v"])
        rows = cdfd.changes(self._uri, self._first).read_all().select(content.schema.names)
        order = [("_commit_version", "ascending"), ("_change_ordinal", "ascending")]
        assert content.sort_by(order).to_pylist() == rows.sort_by(order).to_pylist()
