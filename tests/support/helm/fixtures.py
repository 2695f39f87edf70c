"""Tests of the chart need Helm, and those of alerts promtool."""

import os
from pathlib import Path

import pytest

from tests.support.helm import tools
from tests.support.helm.chart import Chart


@pytest.fixture(scope="session")
def needs_tools() -> None:
    reason = tools.missing()
    if reason is not None:
        assert "CI" not in os.environ, reason
        pytest.skip(reason)


@pytest.fixture(scope="session")
def chart(needs_tools: None) -> Chart:
    return Chart(tools.helm())


@pytest.fixture(scope="session")
def promtool(needs_tools: None) -> Path:
    return tools.promtool()
