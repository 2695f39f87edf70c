"""Fixtures of this room, in every tier."""

from tests.support.unit.fixtures import *  # noqa: F403
