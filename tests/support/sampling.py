"""A sample of a test's cases in `make test`, and all of them in `make integration ONLY=sweeps`.

Tests of many cases of one kind use it: hostile files, random lives, and each step at which a process may die.
"""

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

ALL = os.environ.get("CDFD_TEST_CASES") == "all"


def sample(cases: Iterable[T], count: int) -> list[T]:
    """`count` of the cases at equal distances, or all of them in the long form."""
    every = list(cases)
    count = len(every) if ALL else min(count, len(every))
    return [every[len(every) * place // count] for place in range(count)]


def stride(steps: int) -> int:
    """The distance of the steps at which a test lets something fail, or a divisor of its examples: 1 in the long form."""
    return 1 if ALL else steps
