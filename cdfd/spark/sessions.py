"""The daemon's own Spark: made when there is work for it, kept, and made anew where it broke."""

from __future__ import annotations

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

# Nobody expects a web page of a daemon, open to all.
_DEFAULTS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
_JVM_SECONDS = 5.0
_FAILURES = (PySparkException, Py4JError, OSError)


class Sessions:
    """A session, from the first call that asks for one on. Thread-safe; calls block.

    Args:
        settings: where Spark is, and what it is told.
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
            ConfigError: there is none to be had.
        """
        with self._lock:
            if self._session is None:
                self._session = self._made()
            return self._session

    def drop(self) -> None:
        """Let go of it, if there is one. Does not raise."""
        with self._lock:
            session, self._session = self._session, None
            if session is not None:
                _stop(session)

    def drop_if_dead(self, session: SparkSession) -> None:
        """Let go of a session that is stopped, or whose JVM died: what is wrong with it stays wrong."""
        with self._lock:
            if session is not self._session or _lives(session):
                return
        log.warning("Spark is gone; the next job begins with a new one")
        self.drop()

    def _made(self) -> SparkSession:
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
        if settings.remote is None and (settings.master or "local").startswith("local"):
            # Executors on this machine run `python3` of the PATH where nothing is said.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        try:
            return builder.getOrCreate()
        except (*_FAILURES, ImportError) as error:
            line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            hint = "Check engine.spark. Spark needs Java 17, and for `remote` the packages of pyspark[connect]"
            raise ConfigError(f"there is no Spark to be had: {line[:500]}", hint=hint) from error


@contextmanager
def tagged(session: SparkSession, tag: str) -> Iterator[None]:
    """What this thread has Spark do bears a tag meanwhile."""
    if _is_remote(session):
        add, remove = session.addTag, session.removeTag
    else:
        # Tags of the session are of its thread: only the context's reach from one to another.
        add, remove = session.sparkContext.addJobTag, session.sparkContext.removeJobTag
    add(tag)
    try:
        yield
    finally:
        with suppress(*_FAILURES):  # of a session that is gone
            remove(tag)


def interrupt(session: SparkSession, tag: str) -> None:
    """End what bears a tag, as far as it has begun. Does not raise."""
    with suppress(*_FAILURES):
        if _is_remote(session):
            session.interruptTag(tag)
        else:
            session.sparkContext.cancelJobsWithTag(tag)


def _is_remote(session: SparkSession) -> bool:
    """Whether it is one of Spark Connect."""
    return hasattr(session, "is_stopped")


def _lives(session: SparkSession) -> bool:
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
        log.info("Spark did not end in good order: %s", error)
    # `stop` leaves the JVM, which the next session would get again, dead or alive.
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
