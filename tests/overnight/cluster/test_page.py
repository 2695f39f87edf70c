"""The page of Spark on a cluster: its commands run, on a cluster where they need one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc

from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.overnight.cluster.test_s3 import PROVIDER
from tests.support.cluster import environment
from tests.support.cluster.standalone import HOME, PYTHON, Standalone, sent
from tests.support.docs.pages import blocks
from tests.support.kafka.pipeline import do
from tests.support.lake import SCHEMA, rows
from tests.support.spark.installation import S3A

PAGE = Path(__file__).parents[3] / "docs" / "spark-cluster.md"
WITHIN = 240.0  # seconds until a command counts as stuck; nothing waits for it otherwise


def section() -> str:
    return PAGE.read_text().partition("\n## ")[0]


def shown() -> dict[str, str]:
    """The blocks before the first section."""
    job, pack, submit, output = ("\n".join(lines) for _, _, lines in blocks(section().splitlines()))
    return {"job": job.partition("\n")[2], "pack": pack, "submit": submit, "output": output}


def test_the_options_are_those_of_the_tests() -> None:
    words = shown()["submit"].replace("\\\n", " ").split()
    tested = sent(Path("environment.tar.gz"), Path("cdfd.zip"))
    for name, value in zip(tested[::2], tested[1::2], strict=True):
        assert words[words.index(name) + 1] == value
    for name, value in PYTHON.items():
        assert f"{name}={value}" in words


def test_a_checkpoint_in_s3_needs_what_the_tests_have() -> None:
    """Hadoop's file system, of the version of PySpark's own Hadoop, and the way to its keys."""
    (version,) = re.findall(r"hadoop-aws:([\d.]+)", PAGE.read_text())
    assert (HOME / "jars" / f"hadoop-client-api-{version}.jar").exists()
    assert f"<version>{version}</version>" in S3A.read_text()
    assert f"fs.s3a.aws.credentials.provider={PROVIDER}" in PAGE.read_text()


def test_an_environment_is_packed(tmp_path: Path) -> None:
    """From this tree, without `cdfd-native`, which would be compiled, and without dependencies, which would be downloaded."""
    pack = shown()["pack"]
    for whole, shorter in (("$CLONE/native ", "--no-deps "), ("/path/to/cdfd", str(environment.ROOT))):
        assert whole in pack
        pack = pack.replace(whole, shorter)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = os.environ | {"PATH": path}
    subprocess.run(["bash", "-ec", pack], cwd=tmp_path, env=variables, check=True, timeout=WITHIN)
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "-xzf", tmp_path / "environment.tar.gz", "-C", unpacked], check=True, timeout=WITHIN)
    asked = [unpacked / "bin" / "python", "-c", "import cdfd; print(cdfd.__file__)"]
    archive = {"PYTHONPATH": str(tmp_path / "cdfd.zip")}
    for own, place in (({}, f"{unpacked}/lib"), (archive, str(tmp_path / "cdfd.zip"))):
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        actual = subprocess.run(
            asked, cwd=unpacked, env=clean | own, capture_output=True, text=True, check=True, timeout=WITHIN
        )
        assert actual.stdout.startswith(place)


def test_the_application_runs(cluster: Standalone, tmp_path: Path) -> None:
    """The page's script and command, word for word, but for the address of the master and the place of the table."""
    table = TableWriter(LocalStorage(tmp_path / "orders", sync=False), SCHEMA)
    do(table.create())
    do(table.insert(rows(1, 2, 3)))
    do(table.update(pc.field("id") == 2, {"v": pc.scalar("paid")}))
    do(table.delete(pc.field("id") == 3))
    folder = tmp_path / "driver"
    cluster.prepare(folder)
    (folder / "environment.tar.gz").symlink_to(environment.archive())
    (folder / "cdfd.zip").symlink_to(cluster.wheel)
    (folder / "job.py").write_text(shown()["job"].replace("s3://lake/orders", str(tmp_path / "orders")))
    variables = cluster.environment()
    variables["PATH"] = f"{HOME / 'bin'}{os.pathsep}{variables['PATH']}"
    command = shown()["submit"].replace("spark://host:7077", cluster.url)
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=variables, capture_output=True, text=True, timeout=WITHIN
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip() == shown()["output"]
