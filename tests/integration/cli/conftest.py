"""Fixtures of this room, in every tier."""

from tests.support.cli.fixtures import *  # noqa: F403
