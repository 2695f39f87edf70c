"""The functions of `pyarrow.compute`, which is imported when one of them is first needed.

Importing it takes 50 ms, because it makes a Python function for each of its hundreds of kernels. The first read of a short table needs none.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyarrow import compute  # noqa: TID251 # here alone

    function = getattr(compute, name)
    globals()[name] = function
    return function
