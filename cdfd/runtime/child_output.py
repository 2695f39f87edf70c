"""Standard error of a child process, as lines of this process's log.

`logs.take_standard_error` does this for libraries that print from Python. Libraries in machine code keep the real standard error: what they
print last, before they abort the process, would be lost in a pipe that ends with the process.
"""

import atexit
import logging
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, Thread

from cdfd.runtime import logs

_CHUNK = _LONGEST_LINE = 1 << 16
_DRAIN_SECONDS = 1.0
_logger = logging.getLogger("stderr")


@contextmanager
def log_standard_error(program: str) -> Iterator[int | None]:
    """A file descriptor for the standard error of a process that starts in the block. A thread logs its lines, as warnings of `stderr`.

    Args:
        program: the name of the process, for the lines.

    Returns:
        The descriptor, which is valid in the block; None if logs are not JSON, where other lines do no harm.
    """
    if not logs.writes_json():
        yield None
        return
    reading, writing = os.pipe()
    output = _ChildOutput(reading, program)
    Thread(target=output.run, name=f"stderr-{program}", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)  # that of the child stays open


class _ChildOutput:
    """The lines that come out of a pipe.

    Args:
        pipe: its end to read from, which `run` closes.
        program: the name of the process.
    """

    def __init__(self, pipe: int, program: str) -> None:
        self._pipe = pipe
        self._program = program
        self._begun = b""
        self._reading = Lock()

    def run(self) -> None:
        """Log lines up to the end of the pipe."""
        atexit.register(self._drain)
        while True:
            select.select((self._pipe,), (), ())
            with self._reading:
                if not self._log_chunk():
                    break
        atexit.unregister(self._drain)
        os.close(self._pipe)

    def _drain(self) -> None:
        """Log what the child has printed, before this process ends."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        with self._reading:
            while time.monotonic() < deadline and select.select((self._pipe,), (), (), 0)[0] and self._log_chunk():
                pass
            self._log(self._begun)

    def _log_chunk(self) -> bool:
        """Log the lines that are complete. False at the end of the pipe."""
        chunk = os.read(self._pipe, _CHUNK)
        *lines, self._begun = (self._begun + chunk).split(b"\n")
        if not chunk or len(self._begun) > _LONGEST_LINE:
            lines.append(self._begun)
            self._begun = b""
        for line in lines:
            self._log(line)
        return bool(chunk)

    def _log(self, line: bytes) -> None:
        if text := line.decode(errors="replace").strip():
            _logger.warning("%s", text, extra={"program": self._program})
