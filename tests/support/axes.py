"""Second implementations of ports: another producer, another S3 server, numpy instead of kernels.

Tests run with the first implementation. `make overnight` runs the same tests with the second ones, which `CDFD_TEST_SECOND` names:
`producer`, `s3`, `numpy`, with commas.
"""

import os
from collections.abc import Iterable
from typing import Literal, TypeVar

T = TypeVar("T")
Axis = Literal["producer", "s3", "numpy"]

SECOND = frozenset(filter(None, os.environ.get("CDFD_TEST_SECOND", "").split(",")))


def under_test(axis: Axis, implementations: Iterable[T]) -> list[T]:
    """The first of the implementations, or all others if this run is for them."""
    first, *others = implementations
    return others if axis in SECOND else [first]
