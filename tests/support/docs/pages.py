"""Runs what pages show, in a folder, and compares what happens with what they say.

- A block with lines that begin with `$ ` is a terminal: each such line is a command, and what follows it is its output.
- `$ cat FILE` of a file that is not there writes the file.
- `$ cdfd demo FOLDER` of a folder that an earlier page made does nothing: pages of one tour share the table.
- A block of Python is a script. A plain block after it is its output.
- Lines that begin with `>>> ` are typed into a console, and what follows them is their output. On pages that have a console, blocks of Python
  run in it too.
- A line `...` in an output stands for any number of lines.
- What never ends (`cdfd run`, `cdfd tail`, a consumer) runs until it has printed what the page says; a daemon until the end of the page,
  or until a last line `^C`.
- Times, ids, sizes and durations are masked, and so are widths of columns of times. Places are put back to what the page calls them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from tests.support.docs.console import Console

WITHIN = 90.0  # seconds until a page is given up; nothing waits for it otherwise
TYPED_WITHIN = 20.0  # the same for what is typed into a console: commits and queries of a few rows
ELISION = "..."
INTERRUPT = "^C"

_FENCE = re.compile(r"```(\w*)")
_ENDLESS = re.compile(r"^cdfd run |^cdfd tail (?!.*--until)|^for .* in records:", re.MULTILINE)
_DEMO = re.compile(r"cdfd demo (\w+)")
_MASKS = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z", "<time>"),
    # Tables of Spark: their columns of times are as wide as the longest one, which has no zeros at its end.
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:(\.\.\.|\d\d(\.\d+)?) *(?=\|)", "<time>"),
    (r"_commit_timestamp *(?=\|)", "_commit_timestamp"),
    (r"^(\+-+)+\+$", "<border>"),
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>"),
    (r"\d+\.\d m?s\b", "<duration>"),
    (r"[\d,]+ bytes", "<size>"),
    (r'(?<="ts_[mun]s":)\d+', "<time>"),
    (r'(?<="digest": ")[0-9a-f]+', "<digest>"),
    (r"(?<=\"uptime_seconds\": )[\d.]+", "<duration>"),
)


class Kind(Enum):
    """The interpreter of a step: a shell, Python, or a Python console that prints the values of expressions."""

    COMMAND = auto()
    PYTHON = auto()
    TYPED = auto()


_PROMPTS = {"$ ": Kind.COMMAND, ">>> ": Kind.TYPED}


@dataclass(frozen=True, slots=True)
class Step:
    """Something to run, and what the page says comes of it.

    Attributes:
        script: a command of the shell, or Python.
        kind: what runs it.
        shown: the output's lines.
        first: number of the page's line (from 0) at which the output begins.
    """

    script: str
    kind: Kind
    shown: tuple[str, ...]
    first: int


def steps(text: str) -> Iterator[Step]:
    """The steps of a page, in order."""
    listed = list(blocks(text.splitlines()))
    for number, (first, language, block) in enumerate(listed):
        if language == "python":
            output = _output(text.splitlines(), listed, number)
            yield Step("\n".join(block), Kind.PYTHON, tuple(output[2]), output[0])
        elif language == "":
            prompts = [(at, prompt) for at, line in enumerate(block) for prompt in _PROMPTS if line.startswith(prompt)]
            ends = [at for at, _ in prompts][1:]
            for (at, prompt), end in zip(prompts, [*ends, len(block)], strict=False):
                yield Step(block[at].removeprefix(prompt), _PROMPTS[prompt], tuple(block[at + 1 : end]), first + at + 1)


def is_step(lines: Sequence[str], listed: Sequence[Block], number: int) -> bool:
    """Whether `steps` has a block: to run it, or as the output of the one before it."""
    _, language, block = listed[number]
    if language == "":
        before = (
            number > 0 and listed[number - 1][1] == "python" and _output(lines, listed, number - 1) == listed[number]
        )
        return before or any(line.startswith(tuple(_PROMPTS)) for line in block)
    return language == "python"


Block = tuple[int, str, list[str]]
"""Number of the first line, language, lines."""


def blocks(lines: Sequence[str]) -> Iterator[Block]:
    at = 0
    while at < len(lines):
        if (fence := _FENCE.fullmatch(lines[at])) is not None:
            end = lines.index("```", at + 1)
            yield at + 1, fence[1], list(lines[at + 1 : end])
            at = end
        at += 1


def _output(lines: Sequence[str], listed: Sequence[Block], number: int) -> Block:
    """The plain block right after a block, an empty one where there is none."""
    end = listed[number][0] + len(listed[number][2]) + 1
    following = listed[number + 1] if number + 1 < len(listed) else (0, "none", [])
    near = following[1] == "" and not any(line.strip() for line in lines[end : following[0] - 1])
    return following if near and not any(line.startswith(tuple(_PROMPTS)) for line in following[2]) else (end, "", [])


@dataclass(slots=True)
class Tour:
    """A folder in which pages are played, one after the other. Use it in a `with` statement.

    Attributes:
        folder: where commands run.
        places: what pages call things, and what they are called here: addresses, ports.
        settings: lines that every configuration file gets besides.
        update: rewrite outputs instead of comparing them.
        variables: of the environment, besides those of this process.
        console: where Python runs. Without it, each block of Python is a process of its own.
        python: the interpreter of such a process.
    """

    folder: Path
    places: Mapping[str, str] = field(default_factory=dict)
    settings: str = ""
    update: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    console: Console | None = None
    python: str = sys.executable
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Tour:
        programs = self.folder.parent / "bin"
        programs.mkdir()
        # As on a terminal, where log lines are text.
        (programs / "cdfd").write_text(f'#!/bin/sh\nexec {sys.executable} -m cdfd --log-format text "$@"\n')
        (programs / "cdfd").chmod(0o755)
        self.folder.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(self, command: str) -> None:
        """Run a command that is on another page. A daemon runs until the end of the next page."""
        lines, _ = self._played(Step(command, Kind.COMMAND, (ELISION,), 0))
        assert lines, command

    def play(self, page: Path) -> None:
        """Run everything that a page shows.

        Raises:
            AssertionError: something else happens than it says.
        """
        text = page.read_text()
        try:
            played = [(step, *self._played(step)) for step in steps(text)]
        finally:
            self._stop()
        wrong = [(step, actual) for step, actual, agrees in played if not agrees]
        if self.update:
            lines = text.splitlines()
            for step, actual in reversed(wrong):
                if ELISION not in step.shown:
                    lines[step.first : step.first + len(step.shown)] = actual
            page.write_text("\n".join([*lines, ""]))
            return
        told = [
            "\n".join([f"{page.name}:{step.first + 1}: {step.script}", *actual, "-- but the page says:", *step.shown])
            for step, actual in wrong
        ]
        assert not told, "\n\n".join(told)

    def play_beginning(self, page: Path) -> None:
        """Run the steps of a page up to its first command that does more than show a file.

        Raises:
            AssertionError: something else happens than the page says.
        """
        try:
            for step in steps(page.read_text()):
                output, agrees = self._played(step)
                assert agrees, "\n".join([f"{page.name}: {step.script}", *output])
                if not step.script.startswith("cat "):
                    return
        finally:
            self._stop()

    def _played(self, step: Step) -> tuple[list[str], bool]:
        """The output of a step, and whether it matches the page."""
        if (demo := _DEMO.fullmatch(step.script)) is not None and (self.folder / demo[1]).exists():
            return list(step.shown), True
        if step.script.startswith("cat ") and not (file := self.folder / step.script[4:]).exists():
            file.write_text(self._here("\n".join([*step.shown, self.settings, ""])))
            return list(step.shown), True
        if _ENDLESS.search(step.script):
            return self._watched(step)
        return self._ran(step)

    def _ran(self, step: Step) -> tuple[list[str], bool]:
        """To its end. While a daemon is under way, again until the page is right: what the daemon does takes its time."""
        deadline = time.monotonic() + (TYPED_WITHIN if step.kind is Kind.TYPED else WITHIN)
        while True:
            output, done = self._once(step)
            # Spark's `show` ends with an empty line, which pages leave out.
            actual = self._lines(output if step.kind is Kind.COMMAND else output.rstrip())
            failed = step.kind is Kind.PYTHON and not done
            agrees = not failed and (_agree(step.shown, actual) or (step.kind is Kind.PYTHON and not step.shown))
            awaited = self._running or step.kind is Kind.TYPED  # the console may have a daemon of its own
            if agrees or not awaited or time.monotonic() > deadline:
                assert not failed, "\n".join([step.script, *actual])
                return actual, agrees
            time.sleep(0.2)

    def _once(self, step: Step) -> tuple[bytes, bool]:
        """Output, and whether it ended without an error."""
        if step.kind is not Kind.COMMAND and self.console is not None:
            return self.console.run(self._here(step.script), shows=step.kind is Kind.TYPED)
        done = subprocess.run(
            self._command(step),
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=WITHIN,
            check=False,
        )
        # A process that a signal ends says nothing itself.
        ending = b"" if done.returncode >= 0 else f"\nended by signal {-done.returncode}".encode()
        return done.stdout + ending, done.returncode == 0

    def _watched(self, step: Step) -> tuple[list[str], bool]:
        """Until it has said what the page says."""
        deadline = time.monotonic() + WITHIN
        output = self.folder.parent / f"output-{len(self._running)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                self._command(step),
                cwd=self.folder,
                env=self.environment(),
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._running.append(process)
        interrupted = step.shown[-1:] == (INTERRUPT,)
        shown = step.shown[:-1] if interrupted else step.shown
        while True:
            ended = process.poll() is not None
            actual = self._lines(output.read_bytes())
            agrees = _agree((*shown, ELISION), actual)
            if agrees or ended or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        if step.kind is Kind.PYTHON and not ended:
            self._running.remove(process)
            process.kill()
            process.wait(WITHIN)
        if interrupted:
            self._running.remove(process)
            process.send_signal(signal.SIGINT)
            return [*actual, INTERRUPT], process.wait(WITHIN) == 130 and agrees
        return actual, agrees

    def _command(self, step: Step) -> list[str]:
        assert step.kind is not Kind.TYPED, f"there is no console for {step.script}"
        script = self._here(step.script)
        return [self.python, "-u", "-c", script] if step.kind is Kind.PYTHON else ["bash", "-c", script]

    def environment(self) -> dict[str, str]:
        """Of the processes that pages start."""
        paths = [str(self.folder.parent / "bin"), os.environ["PATH"]]
        own = {"PATH": os.pathsep.join(paths), "PYTHONPATH": os.pathsep.join(sys.path)}
        return os.environ | own | dict(self.variables)

    def _here(self, text: str) -> str:
        for there, here in self.places.items():
            text = text.replace(there, here)
        return text

    def _lines(self, output: bytes) -> list[str]:
        """Lines with places as pages call them."""
        text = output.decode()
        for there, here in {"/tmp/tour": str(self.folder), **self.places}.items():
            text = text.replace(here, there)
        return text.splitlines()

    def _stop(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()


def _agree(shown: Sequence[str], actual: Sequence[str]) -> bool:
    """Whether an output is what a page shows, but for what is masked and left out."""
    pattern = "".join("(?:.*\n)*?" if line == ELISION else re.escape(_masked(line)) + "\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{_masked(line)}\n" for line in actual)) is not None


def _masked(line: str) -> str:
    for pattern, name in _MASKS:
        line = re.sub(pattern, name, line)
    return line
