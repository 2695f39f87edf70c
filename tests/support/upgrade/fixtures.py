"""Fixtures of the Kafka tests that the tests of upgrades share, and the golden tables."""

from pathlib import Path

import pytest

from tests.support.kafka.fixtures import admin, broker, create, name, needs_broker
from tests.support.upgrade.tables import copy_tables

__all__ = ["admin", "broker", "create", "lake", "name", "needs_broker"]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return copy_tables(tmp_path / "lake")
