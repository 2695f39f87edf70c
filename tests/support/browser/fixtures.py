"""Tests of the page need a browser."""

import os

import pytest

from tests.support.browser import chromium


@pytest.fixture(scope="session", autouse=True)
def needs_browser() -> None:
    reason = chromium.missing()
    if reason is not None:
        assert "CI" not in os.environ, reason
        pytest.skip(reason)
    chromium.chromium()
