"""Fixtures of this room, in every tier."""

from tests.support.helm.fixtures import *  # noqa: F403
