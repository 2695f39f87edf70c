"""Fixtures of this room, in every tier."""

from tests.support.spark.fixtures import *  # noqa: F403
