"""Calls in a child process that is forked, so that nothing is imported twice, with limits of time and of memory."""

from __future__ import annotations

import importlib
import os
import pickle
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

PRELOADED = (
    *(
        "aiohttp",
        "crc32c",
        "deltalake",
        "hypothesis",
        "rpds",
        "kafka",
        "lz4.frame",
        "numpy",
        "orjson",
        "prometheus_client",
    ),
    *(
        "pyarrow.compute",
        "pyarrow.dataset",
        "pyarrow.parquet",
        "pydantic",
        "pyroaring",
        "pytest",
        "typer",
        "watchdog.observers",
        "yaml",
    ),
)
"""Whatever tests need and no mutant changes: a child finds it imported."""
OPTIONS = (
    "-q",
    "-p",
    "no:cacheprovider",
    "--hypothesis-seed=0",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
    "--no-summary",
)
_MEMORY = 6 << 30
"""Bytes that a child may take beyond those of its parent: a mutant may ask for all there is."""


def prepare(cache: Path) -> None:
    """Imports what children need, and lets them keep what they compile."""
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(cache)
    for name in PRELOADED:
        importlib.import_module(name)


def call(function: Callable[[], Any], seconds: float) -> Any | Literal["timeout", "died"]:
    """The function's result in a child process. After `seconds`, the child and its own children are killed."""
    readable, writable = os.pipe()
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        child = os.fork()
        if child == 0:
            try:
                os.close(readable)
                _answer(function, writable, folder)
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(1)
        os.setpgid(child, child)
        os.close(writable)
        try:
            return _read(readable, time.monotonic() + seconds)
        finally:
            os.close(readable)
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _answer(function: Callable[[], Any], writable: int, folder: str) -> None:
    os.setpgid(0, 0)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(silence, stream)
    most = _reserved() + _MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tempfile.tempdir = os.environ["TMPDIR"] = os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
    answer = function()
    with os.fdopen(writable, "wb") as pipe:
        pickle.dump(answer, pipe)
    os._exit(0)  # whatever threads and servers a mutant may have left


def _reserved() -> int:
    """Bytes that count for the limit already: allocators reserve gigabytes that they do not touch."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData"))


def _read(readable: int, until: float) -> Any:
    parts: list[bytes] = []
    while True:
        if not select.select([readable], [], [], max(0.0, until - time.monotonic()))[0]:
            return "timeout"
        part = os.read(readable, 1 << 20)
        if not part:
            return pickle.loads(b"".join(parts)) if parts else "died"
        parts.append(part)
