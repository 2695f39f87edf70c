"""Fixtures of this room."""

from tests.support.consumers.fixtures import *  # noqa: F403
from tests.support.kafka.fixtures import *  # noqa: F403
