"""Fixtures of this room, in every tier."""

from tests.support.kafka.fixtures import *  # noqa: F403
from tests.support.s3.fixtures import *  # noqa: F403
