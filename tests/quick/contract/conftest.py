"""Fixtures of this room, in every tier."""

from tests.support.contract.fixtures import *  # noqa: F403
