"""Fixtures of this room, in every tier."""

from tests.support.chaos.fixtures import *  # noqa: F403
