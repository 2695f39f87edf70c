"""An interactive Python that pages are typed into, such as the shell of `make spark`."""

import os
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_END = "-- end of the step"
# An error is an output like others. A statement of one line shows its value, as when it is typed.
_PLAY = f"""
def _play(script, kind):
    import sys, traceback
    try:
        exec(compile(script, "<page>", kind), globals())
    except Exception:
        traceback.print_exc(file=sys.stdout)
        print({_END!r}, "failed", flush=True)
    else:
        print({_END!r}, flush=True)
"""


@dataclass(slots=True)
class Console:
    """One that runs, and answers within `seconds`; see `console`."""

    process: subprocess.Popen[bytes]
    seconds: float
    _buffer: bytearray = field(default_factory=bytearray)

    def run(self, script: str, *, shows: bool = False) -> tuple[bytes, bool]:
        """Run a script among the console's names.

        Args:
            script: a statement of one line if it shows its value, otherwise any number of statements.
            shows: whether the value is printed, as after the prompt.

        Returns:
            Its output, and whether it ended without an error.
        """
        self._send(f"_play({script!r}, {'single' if shows else 'exec'!r})")
        deadline = time.monotonic() + self.seconds
        while (at := self._buffer.find(_END.encode())) < 0 or b"\n" not in self._buffer[at:]:
            self._read(deadline)
        end = self._buffer.index(b"\n", at) + 1
        output, last = bytes(self._buffer[:at]), self._buffer[at:end]
        del self._buffer[:end]
        return output, b"failed" not in last

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def _read(self, deadline: float) -> None:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            ready = waiting.select(max(0.0, deadline - time.monotonic()))
        assert ready, f"no answer within {self.seconds:.0f} s: {self._buffer.decode()}"
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        assert data, f"the console ended: {self._buffer.decode()}"
        self._buffer += data


@contextmanager
def console(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], errors: Path, seconds: float
) -> Iterator[Console]:
    """Start one, and end it by the end of its input.

    Args:
        command: starts a Python that reads statements from its standard input.
        folder: where it runs.
        environment: of the process.
        errors: file for its standard error: prompts, warnings.
        seconds: within which it starts, answers and ends.
    """
    with errors.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
        )
    running = Console(process, seconds)
    with process:
        try:
            running._send(f"exec({_PLAY!r})")
            running.run("")
            yield running
            assert process.stdin is not None
            process.stdin.close()
            code = process.wait(seconds)
            assert code == 0, f"exit code {code}: {errors.read_text()}"
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(seconds)
