"""Simulated lives log thousands of lines. They are left out."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
