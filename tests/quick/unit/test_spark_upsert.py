"""The settings of a session while `apply_changes` writes, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from cdfd.spark.target import merge_settings

PARTITIONS = "spark.databricks.delta.snapshotPartitions"


class Conf:
    def __init__(self, **settings: str) -> None:
        self.settings = settings

    def get(self, name: str, default: str | None) -> str | None:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def unset(self, name: str) -> None:
        del self.settings[name]


class Session:
    def __init__(self, **settings: str) -> None:
        self.conf: Any = Conf(**settings)
        self._sc = SimpleNamespace(defaultParallelism=2)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("settings", [{}, {PARTITIONS: "7"}])
def test_threads_that_apply_changes_at_once_leave_the_session_as_it_was(first: int, settings: dict[str, str]) -> None:
    session: Any = Session(**settings)
    threads = [merge_settings(session) for _ in range(2)]
    for each in threads:
        each.__enter__()
    wanted = {"spark.databricks.delta.merge.materializeSource": "none", PARTITIONS: "2"} | settings
    assert session.conf.settings == wanted
    threads[first].__exit__(None, None, None)
    assert session.conf.settings == wanted
    threads[1 - first].__exit__(None, None, None)
    assert session.conf.settings == settings


def test_the_session_of_spark_connect_stays_as_it_is() -> None:
    """Its streams share the session of the user, in which other threads write."""
    session: Any = Session()
    del session._sc
    with merge_settings(session):
        assert session.conf.settings == {}
