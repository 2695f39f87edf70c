"""Fixtures of this room, in every tier."""

from tests.support.kafka.fixtures import *  # noqa: F403
