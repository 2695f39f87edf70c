"""Memory and threads of cdfd's own processes: the allocators of Arrow and of cdfd-native, Python's garbage collector and lock.

Programs that import the library keep theirs.
"""

import ctypes
import gc
import os
import sys

_POOL = "ARROW_DEFAULT_MEMORY_POOL"
_NATIVE = {"MIMALLOC_PURGE_DELAY": "100", "MIMALLOC_ALLOW_THP": "0"}
"""Of cdfd-native's allocator: milliseconds until it returns memory, and no huge pages. With its own choices, a second and huge pages of which
parts are in use, a daemon that delivers a large version has 80 MB more."""
_THREADS = {"OPENBLAS_NUM_THREADS": "1"}
"""Of numpy's linear algebra, which nothing here uses. Its threads turn for a tenth of a second of processor time before they sleep."""
_THRESHOLDS = 5_000, 20, 10
"""Of the garbage collector. With Python's own, 700 and 10, objects that live as long as a delivery reach the oldest generation, and its
collection, which stops hundreds of tables for half a second, begins every few seconds."""
_SWITCH_SECONDS = 0.0005
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""glibc's numbers of these options of malloc."""
_KEPT_BYTES = 32 << 20
"""Of the end of an arena that is free; and the size from which memory is mapped for itself. By itself, malloc returns each buffer of some
megabytes at once, and the system clears its pages again for the next one."""


def choose() -> None:
    """Choose Arrow's allocator, what that of cdfd-native keeps, and numpy's threads. Call it before their imports, which read the choice.

    If you set `ARROW_DEFAULT_MEMORY_POOL`, `MIMALLOC_PURGE_DELAY`, `MIMALLOC_ALLOW_THP` or `OPENBLAS_NUM_THREADS`, your choice counts.

    Some threads create batches and others free them. Arrow's default, mimalloc, then keeps much more memory than is in use, and jemalloc
    about twice as much. glibc's malloc keeps less, at the same speed, if it has as many arenas as there are cores. By default, it has eight
    times as many. Without glibc, jemalloc is the best one.
    """
    libc, chosen = _glibc(), _POOL in os.environ
    choices = _NATIVE | _THREADS
    if libc is not None and not chosen:
        libc.mallopt(_ARENA_MAX, max(2, os.cpu_count() or 2))
        libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
        choices[_POOL] = "system"
    own = {name: value for name, value in choices.items() if name not in os.environ}
    os.environ.update(own)
    try:
        import pyarrow as pa

        import cdfd.runtime.native  # noqa: F401

        pool = pa.default_memory_pool()
    finally:
        for name in own:  # child processes choose for themselves
            del os.environ[name]
    if libc is None and not chosen and pool.backend_name == "mimalloc" and "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())


def settle() -> None:
    """Settle a process that has imported its modules and begins to work.

    Modules live as long as the process, so the garbage collector leaves them alone. In catch-up, it had a tenth of the time of planning.

    A thread that computes gives Python's lock up ten times as soon as by default. The event loop waits for it after each call of a thread:
    beside a large version, busy tables took seconds.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def release() -> None:
    """Return memory that is not in use to the system. By itself, glibc's malloc returns the end of an arena only."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library of the process, if it is glibc."""
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None
