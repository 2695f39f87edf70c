"""Fixtures of this room, in every tier."""

from tests.support.cluster.fixtures import *  # noqa: F403
