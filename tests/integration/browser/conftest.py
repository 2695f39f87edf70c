"""Fixtures of this room, in every tier."""

from tests.support.browser.fixtures import *  # noqa: F403
