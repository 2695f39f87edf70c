"""Fixtures of this room, in every tier."""

from tests.support.docs.fixtures import *  # noqa: F403
