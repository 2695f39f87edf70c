"""The daemon's Spark session: created on demand, kept, and replaced after a failure."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import TimeoutExpired
from threading import Lock
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdfd.config.settings import SparkEngine
from cdfd.errors import ConfigError

log = logging.getLogger("cdfd.spark")

# A daemon should not open a web page that anyone can read.
_DEFAULTS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
_JVM_SECONDS = 5.0
_FAILURES = (PySparkException, Py4JError, OSError)


class Sessions:
    """Creates a session on the first request, and keeps it. Thread-safe. Calls block.

    Args:
        settings: location and configuration of Spark.
        name: of the application.
    """

    def __init__(self, settings: SparkEngine, name: str) -> None:
        self._settings = settings
        self._name = name
        self._lock = Lock()
        self._session: SparkSession | None = None

    def get(self) -> SparkSession:
        """The session.

        Raises:
            ConfigError: Spark cannot be started or reached.
        """
        with self._lock:
            if self._session is None:
                self._session = self._create()
            return self._session

    def drop(self) -> None:
        """Stop the session, if there is one. Does not raise."""
        with self._lock:
            session, self._session = self._session, None
            if session is not None:
                _stop(session)

    def drop_if_dead(self, session: SparkSession) -> None:
        """Discard a session that is stopped or whose JVM has died, because it cannot recover."""
        with self._lock:
            if session is not self._session or _is_alive(session):
                return
        log.warning("Spark has stopped; the next job starts a new session")
        self.drop()

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
            return builder.getOrCreate()
        except (*_FAILURES, ImportError) as error:
            line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            hint = "Check engine.spark. Spark needs Java 17, and for `remote` the packages of pyspark[connect]"
            raise ConfigError(f"cannot start Spark: {line[:500]}", hint=hint) from error


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
        with suppress(*_FAILURES):  # the session may have stopped
            remove(tag)


def interrupt(session: SparkSession, tag: str) -> None:
    """Cancel the running jobs with a tag. Does not raise."""
    with suppress(*_FAILURES):
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
    except _FAILURES:
        return False


def _stop(session: SparkSession) -> None:
    try:
        session.stop()
    except _FAILURES as error:
        log.info("Spark did not stop cleanly: %s", error)
    # `stop` leaves the JVM running, and the next session would use it again, even if it is broken.
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    with suppress(*_FAILURES):
        gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()
        try:
            process.wait(_JVM_SECONDS)
        except TimeoutExpired:
            process.kill()
