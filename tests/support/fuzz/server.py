"""Cases in child processes with limits of time and memory.

The parent forks a child for a batch of cases and uses nothing of Arrow itself, whose threads a fork would lose. A child
reports the outcome of each case on a pipe. If it dies, hangs or grows, the cause is the case after the last one that it reported.
"""

import gc
import json
import os
import resource
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.support.fuzz.cases import Case, Target, Violation, signature

MEMORY = 1 << 30
"""Bytes that a case may need above what the process had."""
CPU_SECONDS, WALL_SECONDS, IDLE_SECONDS = 10.0, 120.0, 0.5
"""A case that computes for longer hangs; so does one that takes longer and computes next to nothing. A busy machine is no hang."""


@dataclass(frozen=True)
class Outcome:
    """How a case ended. `finding` is its signature where it is one."""

    number: int
    word: str = ""
    finding: str | None = None
    detail: str = ""


@dataclass
class Child:
    """A batch under way; `used` are the seconds of a processor that it took, once it has ended."""

    pid: int
    pipe: int
    target: Target
    numbers: range
    next: int
    since: float = field(default_factory=time.monotonic)
    cpu: float = 0.0
    unread: bytes = b""
    used: float = 0.0

    def limits(self) -> str | None:
        """Why it is to be killed."""
        waited = time.monotonic() - self.since
        if waited < 1.0:
            return None
        used = cpu_seconds(self.pid)
        self.cpu = self.cpu or used
        if used - self.cpu > CPU_SECONDS:
            return "hang (computes)"
        return "hang (waits)" if waited > WALL_SECONDS and used - self.cpu < IDLE_SECONDS else None


def make(target: Target, seed: str, number: int) -> Case:
    """The case of a number: always the same."""
    return target.make(Random(f"{seed}:{target.name}:{number}"))


def cpu_seconds(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fork(target: Target, cases: Callable[[int], Case], numbers: range, core: int | None = None) -> Child:
    """Begin a batch."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            _run(target, cases, numbers, writing, core)
        finally:
            os._exit(0)
    os.close(writing)
    os.set_blocking(reading, False)
    return Child(pid, reading, target, numbers, numbers.start)


def _run(target: Target, cases: Callable[[int], Case], numbers: range, pipe: int, core: int | None) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    # With one core there is one thread that reads, and half the time is spent. Some batches have all.
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    gc.freeze()
    base = _peak()
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    # The limit also counts memory that is only reserved: stacks of threads, heaps of the allocator.
    resource.setrlimit(resource.RLIMIT_AS, (size + 2 * MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in numbers:
        outcome = attempt(target, lambda number=number: cases(number), number)
        grown = _peak() - base
        if grown > MEMORY and outcome.finding is None:
            outcome = Outcome(number, finding="memory", detail=f"{grown >> 20} MiB more than before ({outcome.word})")
        _say(pipe, outcome)
        if grown > MEMORY:
            return


def _say(pipe: int, outcome: Outcome) -> None:
    if outcome.finding is None:
        line = f"{outcome.number} {outcome.word}"
    else:
        line = json.dumps([outcome.number, outcome.finding, outcome.detail])
    data = line.replace("\n", " ").encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


def attempt(target: Target, case: Callable[[], Case], number: int = 0) -> Outcome:
    """Try a case here."""
    try:
        return Outcome(number, target.check(case()))
    except BaseException as error:  # noqa: BLE001 - whatever a case raises is a finding
        text = "".join(traceback.format_exception(error)[-12:])
        detail = str(error) if isinstance(error, Violation) else text
        return Outcome(
            number, finding=signature(error), detail=detail[-3000:].encode(errors="backslashreplace").decode()
        )


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def outcomes(children: Iterable[Child], refill: Callable[[Child], Child | None]) -> Iterator[tuple[Child, Outcome]]:
    """How the cases of these batches end, and of those that come after them."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.pipe, selectors.EVENT_READ, child)
        while selector.get_map():
            ready = {key.data.pid: key.data for key, _ in selector.select(0.2)}
            for child in [key.data for key in selector.get_map().values()]:
                why = child.limits()
                ended = False
                if child.pid in ready:
                    data = os.read(child.pipe, 1 << 16)
                    ended = not data
                    yield from ((child, outcome) for outcome in _heard(child, data))
                if not ended and why is None:
                    continue
                selector.unregister(child.pipe)
                died = _end(child, why)
                if died is not None:
                    yield child, died
                following = refill(child)
                if following is not None:
                    selector.register(following.pipe, selectors.EVENT_READ, following)


def _heard(child: Child, data: bytes) -> Iterator[Outcome]:
    *lines, child.unread = (child.unread + data).split(b"\n")
    for line in lines:
        text = line.decode()
        if text.startswith("["):
            number, finding, detail = json.loads(text)
            outcome = Outcome(number, finding=finding, detail=detail)
        else:
            number, _, word = text.partition(" ")
            outcome = Outcome(int(number), word)
        child.next, child.since, child.cpu = outcome.number + 1, time.monotonic(), 0.0
        yield outcome


def _end(child: Child, why: str | None) -> Outcome | None:
    """The outcome that a child could not tell any more, where it ended before its batch."""
    if why is not None:
        os.kill(child.pid, signal.SIGKILL)
    os.close(child.pipe)
    _, status, used = os.wait4(child.pid, 0)
    child.used = used.ru_utime + used.ru_stime
    if why is None and os.WIFSIGNALED(status):
        why = f"signal {signal.Signals(os.WTERMSIG(status)).name}"
    if why is None and child.next == child.numbers.start:
        why = "exit without a word"
    if why is None or child.next >= child.numbers.stop:
        return None
    child.next += 1
    return Outcome(child.next - 1, finding=why)


def alone(target: Target, case: Case) -> Outcome:
    """Try one case in a child of its own."""
    results = [outcome for _, outcome in outcomes([fork(target, lambda _: case, range(1), 0)], lambda _: None)]
    return results[0] if results else Outcome(0, finding="exit without a word")


def elsewhere(work: Callable[[], Any]) -> Any:
    """The result of some work in a child process. It is pickled, because JSON is too slow."""
    import pickle

    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            with open(writing, "wb") as file:
                pickle.dump(work(), file)
        except BaseException:  # noqa: BLE001 - said here: the parent only sees that nothing came
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    return pickle.loads(data)
