"""The daemon's Spark session: created on demand, kept, and replaced after a failure.

Standard error of a child process, as lines of this process's log.

`logs.take_standard_error` does this for libraries that print from Python. Libraries in machine code keep the real standard error: what they
print last, before they abort the process, would be lost in a pipe that ends with the process.
"""

import atexit
import logging
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from subprocess import TimeoutExpired
from threading import Lock, RLock, Thread
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from cdfd.config.sections import SparkEngine
from cdfd.errors import CdfdError, ConfigError, SinkError
from cdfd.runtime import logs
from cdfd.spark.session import check_versions

_CHUNK = _LONGEST_LINE = 1 << 16
_DRAIN_SECONDS = 1.0
_logger = logging.getLogger("stderr")


@contextmanager
def log_standard_error() -> Iterator[int | None]:
    """A file descriptor for the standard error of a process that starts in the block. A thread logs its lines, as warnings of `stderr`.

    Returns:
        The descriptor, which is valid in the block; None if logs are not JSON, where other lines do no harm.
    """
    if not logs.writes_json():
        yield None
        return
    reading, writing = os.pipe()
    output = _ChildOutput(reading)
    Thread(target=output.run, name="stderr-spark", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)  # that of the child stays open


@dataclass(eq=False)
class _ChildOutput:
    """The lines that come out of a pipe.

    Attributes:
        pipe: its end to read from, which `run` closes.
    """

    pipe: int
    _begun: bytes = field(default=b"", init=False)
    _reading: Lock = field(default_factory=Lock, init=False)

    def run(self) -> None:
        """Log lines up to the end of the pipe."""
        atexit.register(self._drain)
        while True:
            select.select((self.pipe,), (), ())
            with self._reading:
                if not self._log_chunk():
                    break
        atexit.unregister(self._drain)
        os.close(self.pipe)

    def _drain(self) -> None:
        """Log what the child has printed, before this process ends."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        with self._reading:
            while time.monotonic() < deadline and select.select((self.pipe,), (), (), 0)[0] and self._log_chunk():
                pass
            self._log(self._begun)

    def _log_chunk(self) -> bool:
        """Log the lines that are complete. False at the end of the pipe."""
        chunk = os.read(self.pipe, _CHUNK)
        *lines, self._begun = (self._begun + chunk).split(b"\n")
        if not chunk or len(self._begun) > _LONGEST_LINE:
            lines.append(self._begun)
            self._begun = b""
        for line in lines:
            self._log(line)
        return bool(chunk)

    def _log(self, line: bytes) -> None:
        if text := line.decode(errors="replace").strip():
            _logger.warning("%s", text, extra={"program": "spark"})


log = logging.getLogger("cdfd.spark")

# A daemon should not open a web page that anyone can read.
_DEFAULTS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
_JVM_SECONDS = 5.0
_SAYS = "Spark: "
_CALLING = "An error occurred while calling"
FAILURES = (PySparkException, Py4JError, OSError)
"""The exceptions of Spark's calls, classic or Connect. A JVM that has died is an `OSError`."""


class Sessions:
    """Creates a session on the first request, and keeps it. Thread-safe. Calls block.

    Args:
        settings: location and configuration of Spark.
        name: of the application.
    """

    def __init__(self, settings: SparkEngine, name: str) -> None:
        self._settings = settings
        self._name = name
        self._lock = RLock()
        self._session: SparkSession | None = None
        self._has_started = False

    def get(self) -> SparkSession:
        """The session; another one if the last has died.

        Raises:
            ConfigError: Spark cannot be started or reached, or is too old. It is retriable if Spark was started before.
        """
        with self._lock:
            if self._session is not None and not _is_alive(self._session):
                log.warning("Spark has stopped since the last job; starting it again")
                self.drop()
            if self._session is None:
                self._session = self._create()
                self._has_started = True
            return self._session

    def drop(self) -> None:
        """Stop the session, if there is one. Does not raise."""
        with self._lock:
            session, self._session = self._session, None
            if session is not None:
                _stop(session)

    def check(self, session: SparkSession, error: CdfdError) -> None:
        """Look at a session after an error. One that is stopped, or whose JVM has died, is discarded, because it cannot recover.

        Raises:
            SinkError: it is stopped; retriable, from the error.
        """
        with self._lock:
            if _is_alive(session):
                return
            if session is self._session:
                self.drop()
        hint = "cdfd starts it again. If it stops again, see its own log, and give the driver more memory (spark.driver.memory)"
        raise SinkError(f"Spark has stopped: {error.what.removeprefix(_SAYS)}", hint=hint, retriable=True) from error

    def _create(self) -> SparkSession:
        settings = self._settings
        builder = SparkSession.builder
        options = {"spark.app.name": self._name} | ({} if settings.remote is not None else _DEFAULTS)
        for name, value in options.items():
            builder = builder.config(name, value)
        for name, secret in settings.conf.items():
            builder = builder.config(name, secret.reveal())
        if settings.remote is not None:
            builder = builder.remote(settings.remote.reveal())
        elif settings.master is not None:
            builder = builder.master(settings.master)
        if settings.remote is None:
            _choose_python(settings)
        try:
            if settings.remote is None:
                _start_jvm(settings, options)
            session = builder.getOrCreate()
            try:
                check_versions(session)
            except ConfigError:
                _stop(session)
                raise
            else:
                return session
        except (*FAILURES, ImportError) as error:
            if settings.remote is None:
                _end_jvm()  # it may keep a context that has stopped
            raise self._not_started(error) from error

    def _not_started(self, error: Exception) -> ConfigError:
        what = f"cannot start Spark: {first_line(error)}"
        if self._has_started and "PYSPARK_GATEWAY_PORT" in os.environ:
            return ConfigError(what, hint="The JVM of spark-submit has ended: run spark-submit again")
        hint = (
            "Check engine.spark, and whether the cluster can be reached. "
            "Spark needs Java 17, and for `remote` the packages of pyspark[connect]"
        )
        # Settings that worked before are right, and the cluster may come back.
        return ConfigError(what, hint=hint, retriable=self._has_started)


def first_line(error: BaseException) -> str:
    """The first line of an error of Spark's that says something, and not too much of it."""
    lines = [text for line in str(error).splitlines() if (text := line.strip(" :"))]
    return next((line for line in lines if not line.startswith(_CALLING)), type(error).__name__)[:500]


def _choose_python(settings: SparkEngine) -> None:
    """Choose the Python of executors. PySpark takes it from the environment: only `spark-submit` looks at the setting."""
    chosen = settings.conf.get("spark.pyspark.python")
    if chosen is not None:
        os.environ.setdefault("PYSPARK_PYTHON", chosen.reveal())
    elif (settings.master or "local").startswith("local"):
        # By default executors on this machine run `python3` of the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@contextmanager
def with_tag(session: SparkSession, tag: str) -> Iterator[None]:
    """Tag the Spark jobs of this thread within the block."""
    if _is_remote(session):
        add, remove = session.addTag, session.removeTag
    else:
        # Tags of a session belong to one thread. Only tags of the context work across threads.
        add, remove = session.sparkContext.addJobTag, session.sparkContext.removeJobTag
    add(tag)
    try:
        yield
    finally:
        with suppress(*FAILURES):  # the session may have stopped
            remove(tag)


def interrupt(session: SparkSession, tag: str) -> None:
    """Cancel the running jobs with a tag. Does not raise."""
    with suppress(*FAILURES):
        if _is_remote(session):
            session.interruptTag(tag)
        else:
            session.sparkContext.cancelJobsWithTag(tag)


def _is_remote(session: SparkSession) -> bool:
    """Whether it is a session of Spark Connect."""
    return hasattr(session, "is_stopped")


def _is_alive(session: SparkSession) -> bool:
    if _is_remote(session):
        remote: Any = session
        return not remote.is_stopped
    try:
        context = session.sparkContext._jsc
        return context is not None and not context.sc().isStopped()
    except FAILURES:
        return False


def _stop(session: SparkSession) -> None:
    try:
        session.stop()
    except FAILURES as error:
        log.info("Spark did not stop cleanly: %s", first_line(error))
    _end_jvm()


def _start_jvm(settings: SparkEngine, options: Mapping[str, str]) -> None:
    """Start the JVM as PySpark would, if what it prints is to become lines of the log. The session then uses it."""
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    conf = SparkConf().setAll([*options.items(), *((name, value.reveal()) for name, value in settings.conf.items())])
    if settings.master is not None:
        conf.setMaster(settings.master)
    with log_standard_error() as standard_error:
        if standard_error is not None:
            SparkContext._gateway = launch_gateway(conf, {"stderr": standard_error})  # type: ignore[no-untyped-call]
            SparkContext._jvm = SparkContext._gateway.jvm


def _end_jvm() -> None:
    """End the context and the JVM of this process, if there are any. The next session would use them again, even if they are broken.

    The JVM of `spark-submit` stays. It cannot be replaced, and takes another context.
    """
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if context is not None:
        with suppress(*FAILURES):
            context.stop()
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    with suppress(*FAILURES):
        gateway.shutdown()
    process.stdin.close()
    try:
        process.wait(_JVM_SECONDS)
    except TimeoutExpired:
        process.kill()
