"""Fixtures of this room, in every tier."""

from tests.support.upgrade.fixtures import *  # noqa: F403
