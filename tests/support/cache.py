"""Where programs, jars and environments are kept that tests fetch or build: outside the checkout, so that a second one starts in seconds.

Each entry has its version, or a hash of all that it is made from, in its name.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""Of the checkout."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cdfd"


@contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """A folder of the cache, which exists then. Other processes wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
