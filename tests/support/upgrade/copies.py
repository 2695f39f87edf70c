"""Golden copies: what a release of cdfd has left behind, and every later one has to read. README.md lists them.

A copy is never changed. If a format changes, its copies stay with the test of their reader, and a new copy is added next to them.
"""

from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
WRITTEN_BY = "e70fa4f7e8e1"
"""The commit whose code wrote the copies. `tests/overnight/upgrade` upgrades a daemon of this commit."""


def lines(name: str) -> list[bytes]:
    """The lines of a copy."""
    return (GOLDEN / name).read_bytes().splitlines()
