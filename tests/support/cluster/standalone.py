"""A standalone cluster of Spark on this machine: a master and workers from PySpark's own jars, each a process of its own.

with Standalone(folder) as cluster:
    subprocess.run(cluster.submit("job.py"), env=cluster.environment(), cwd=...)
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.cluster import environment
from tests.support.kafka.node import free_ports
from tests.support.spark import archive
from tests.support.spark.home import spark_home
from tests.support.spark.installation import jars
from tests.support.spark.session import settings

PYTHON = {
    "spark.pyspark.python": "environment/bin/python",
    "spark.pyspark.driver.python": "environment/bin/python",
}
"""Relative to the working directory: the driver's, or an executor's."""

HOME = spark_home()
WITHIN = 60.0  # seconds until a master, a worker or an application counts as stuck
_DAEMON_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_EXECUTOR_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
_EXECUTOR_MEMORY = "1g"
# A worker whose parent is gone ends: the shell waits for the end of its input, which its parent holds.
_BOUND = '"$@" </dev/null & read -r _; kill -9 0'


class Worker:
    """A worker's process, and those of its executors."""

    def __init__(self, cluster: "Standalone", number: int) -> None:
        self.folder = cluster.folder / f"worker-{number}"
        self._cluster = cluster
        self._core = number if cluster.pinned else None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; `Standalone.wait_for_workers` waits until it is registered."""
        self.folder.mkdir(exist_ok=True)
        options = ["--cores", "1", "--memory", "2g", "--host", "127.0.0.1", "--work-dir", str(self.folder)]
        self._process = self._cluster.launch(
            "worker.Worker", ["--webui-port", "0", *options, self._cluster.url], self.folder, self._core
        )

    @property
    def session(self) -> int:
        """The id of the session of its process and those of its executors; they are all of it."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    def executors(self) -> list[int]:
        """The ids of its executors' processes."""
        processes = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                command = (place / "cmdline").read_bytes().split(b"\0")
                here = os.readlink(place / "cwd")
            except OSError:
                continue
            if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in command and here.startswith(
                f"{self.folder}/"
            ):
                processes.append(int(place.name))
        return processes

    def kill(self) -> None:
        """End it and its executors as a crash of the machine does."""
        self.stop()
        for process in self.executors():
            _kill(process)

    def stop(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None


class Standalone:
    """A master and two workers of one core each.

    Args:
        folder: an empty one, for everything.
        pinned: whether a worker's executors, JVM and Python, have one core of the machine together: that of the worker's number.
        home: of Spark.
    """

    def __init__(self, folder: Path, workers: int = 2, *, pinned: bool = False, home: Path = HOME) -> None:
        self.folder = folder
        self.home = home
        self.pinned = pinned
        self._port, self._page = free_ports(2)
        self._master: subprocess.Popen[bytes] | None = None
        self.workers = [Worker(self, number) for number in range(workers)]

    @cached_property
    def wheel(self) -> Path:
        """cdfd, for `--py-files`."""
        return environment.wheel(self.folder)

    @property
    def url(self) -> str:
        """For `--master`."""
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        (self.folder / "master").mkdir()
        options = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._page)]
        self._master = self.launch("master.Master", options, self.folder / "master")
        for worker in self.workers:
            worker.start()
        try:
            self.wait_for_workers()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        if self._master is not None:
            _end(self._master)
            self._master = None

    def wait_for_workers(self) -> None:
        """Return when the master knows all workers as alive. `TimeoutError` where it never does."""
        deadline = time.monotonic() + WITHIN
        while True:
            state = self.state()
            alive = [worker for worker in state.get("workers", []) if worker["state"] == "ALIVE"]
            if len(alive) == len(self.workers):
                return
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*/log"))
                raise TimeoutError(f"{len(alive)} of {len(self.workers)} workers after {WITHIN:.0f} s:\n{logs}")
            time.sleep(0.1)

    def state(self) -> dict[str, Any]:
        """The master's state as its page reports it: workers and applications. Empty while the page does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=10) as answer:
                page: dict[str, Any] = json.load(answer)
                return page
        except (urllib.error.URLError, ConnectionError):
            return {}

    def conf(self, folder: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The settings of an application whose driver keeps temporary files in `folder`."""
        conf = settings(str(folder)) | {
            "spark.master": self.url,
            "spark.executor.memory": _EXECUTOR_MEMORY,
            "spark.executor.cores": "1",
            "spark.executor.extraClassPath": ":".join(map(str, jars())),
            "spark.executor.extraJavaOptions": " ".join([_EXECUTOR_JAVA, *archive.options()]),
            **PYTHON,
            "spark.dynamicAllocation.executorIdleTimeout": "5s",
        }
        # An executor has its own folder for these.
        del conf["spark.local.dir"]
        return conf | dict(more or {})

    def submit(
        self, folder: Path, *command: str, more: Mapping[str, str] | None = None, packed: bool = True
    ) -> list[str]:
        """The command that runs a script in client mode, with the environment and the wheel for the executors.

        `folder` becomes the driver's working directory, with the environment unpacked: the driver runs the same as the executors. Without
        `packed`, all of them have the environment at the same place.
        """
        self.prepare(folder)
        properties = folder / "spark.properties"
        conf = self.conf(folder, more if packed else self.installed_python() | dict(more or {}))
        properties.write_text("".join(f"{name} {value}\n" for name, value in conf.items()))
        options = ["--properties-file", str(properties), *sent(environment.archive() if packed else None, self.wheel)]
        return [str(self.home / "bin" / "spark-submit"), *options, *command]

    def prepare(self, folder: Path) -> None:
        """Make `folder` the working directory of a driver: it has the environment, as `tar -x` unpacks it."""
        folder.mkdir(exist_ok=True)
        if not (folder / "environment").exists():
            os.symlink(self.installed(), folder / "environment")

    def environment(self) -> dict[str, str]:
        """For a driver. The Python processes in which Spark plans a stream ignore `--py-files`, and know only PYTHONPATH."""
        return _clean(self.home) | {"PYTHONPATH": str(self.wheel)}

    def launch(
        self, name: str, options: Sequence[str], folder: Path, core: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a master or a worker, on a core if one is given. It ends with this process."""
        pinned = [] if core is None else ["taskset", "-c", str(core)]
        command = [*pinned, str(self.home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *options]
        own = {
            "SPARK_DAEMON_JAVA_OPTS": _DAEMON_JAVA,
            # Each executor unpacks some 300 MB.
            "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=true -Dspark.worker.cleanup.interval=20 "
            "-Dspark.worker.cleanup.appDataTtl=20",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                ["bash", "-c", _BOUND, "bound", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=_clean(self.home) | own,
                start_new_session=True,
            )

    def installed_python(self) -> dict[str, str]:
        """Settings of an application: the Python of `installed` for all its processes."""
        return dict.fromkeys(PYTHON, str(self.installed() / "bin" / "python"))

    def installed(self) -> Path:
        """The environment, unpacked at one place that all processes can reach; without cdfd itself."""
        place = self.folder / "driver"
        if not place.exists():
            place.mkdir()
            environment.unpack(place)
        return place / "environment"


def sent(archive: Path | None, wheel: Path) -> list[str]:
    """The options that send an environment, if there is one, and cdfd to executors."""
    return [*(() if archive is None else ("--archives", f"{archive}#environment")), "--py-files", str(wheel)]


def _clean(home: Path) -> dict[str, str]:
    """An environment without Python or Spark paths of the repository and of the tests' interpreter, and without AWS credentials."""
    left_out = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV", "AWS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return kept | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and what it started in its session."""
    assert process.stdin is not None
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        print("it had ended already", file=sys.stderr)
    process.stdin.close()
    process.wait(WITHIN)


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return
