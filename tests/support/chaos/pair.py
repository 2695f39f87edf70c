"""Two processes of one pipeline, of which one delivers. Something happens to one of them, and the other one takes its place."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from random import Random

from tests.support.kafka.daemon_process import Daemon, Line
from tests.support.kafka.proxy import Proxy

LEADS, STANDS_BY = "leading the pipeline", ("standing by", "another process leads the pipeline; standing by")
PAUSE_SECONDS = 5.0
WITHIN_SECONDS = 60.0
"""Longest take-over. On a busy machine, a process may be replaced although it lives, and then take its place again."""


class Pair:
    """Two processes of one pipeline.

    Args:
        configs: the file of each.
        stack: ends them.
        proxy: between the first one and the sink; None if nothing can be cut off.
        within: a command that runs each process.

    Attributes:
        all: processes that ran, with their logs.
        took: for each kind of fault of a leader, seconds until another process leads, and until it delivers.
    """

    def __init__(
        self,
        configs: tuple[Path, Path],
        stack: contextlib.ExitStack,
        proxy: Proxy | None = None,
        within: Sequence[str] = (),
    ) -> None:
        self.all: list[Daemon] = []
        self.took: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._proxy = proxy
        self._stack = stack
        self._configs = configs
        self._within = within
        self.running = [self.start(0), self.start(1)]

    def start(self, place: int) -> Daemon:
        daemon = self._stack.enter_context(Daemon(self._configs[place], "--standby", within=self._within))
        # On a machine with other work, the start takes long.
        daemon.wait_for(lambda line: line["message"] in (LEADS, *STANDS_BY), timeout=180)
        self.all.append(daemon)
        return daemon

    @property
    def leader(self) -> int:
        """The place of the process that leads, waited for."""
        deadline = time.monotonic() + WITHIN_SECONDS
        while time.monotonic() < deadline:
            leaders = [place for place, daemon in enumerate(self.running) if daemon.running and leads(daemon)]
            if len(leaders) == 1:
                return leaders[0]
            time.sleep(0.05)
        raise TimeoutError("not one leader:\n" + "\n---\n".join(daemon.log() for daemon in self.running))

    def strike(self, kind: str, random: Random) -> None:
        """Let something happen. If it happens to the leader, wait until another process delivers."""
        leader = self.leader
        place = leader if "standby" not in kind else 1 - leader
        struck, others = self.running[place], [self.running[1 - place]]
        if kind == "roll":
            others.append(self.start(place))
        before, began = [len(each.lines) for each in others], time.time()
        match kind.split()[0]:
            case "kill":
                struck.kill()
            case "stop" | "roll":
                struck.stop()
            case "partition" if place == 0 and self._proxy is not None:
                (self._proxy.refuse if random.random() < 0.5 else self._proxy.stall)()
                time.sleep(PAUSE_SECONDS)
                self._proxy.resume()
            case _:
                with struck.paused():
                    time.sleep(PAUSE_SECONDS)
        if place == leader:
            self.took[kind].append(takeover(began, others, before))
        if kind == "roll":
            self.running[place] = others[1]
        elif not struck.running:
            self.running[place] = self.start(place)

    def end(self) -> None:
        """End both in good order, the leader last."""
        for place in (1 - self.leader, self.leader):
            self.running[place].stop()

    @property
    def errors(self) -> list[Line]:
        """The lines that would wake a person."""
        return [line for daemon in self.all for line in daemon.lines if line["level"] in ("error", "critical")]


def takeover(began: float, others: list[Daemon], before: list[int]) -> tuple[float, float]:
    """Seconds from `began` until one of several processes leads, and delivers."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while time.monotonic() < deadline:
        for each, count in zip(others, before, strict=True):
            lines = list(each.lines)[count:]
            # Of two standbys, one may lead for a moment until it reads the claim of the other one.
            delivers = [line for line in lines if "at version" in line["message"]]
            if delivers:
                leads = next(line for line in lines if line["message"] == LEADS)
                return at(leads) - began, at(delivers[0]) - began
        time.sleep(0.02)
    raise TimeoutError("no process delivers:\n" + "\n---\n".join(each.log() for each in others))


def leads(daemon: Daemon) -> bool:
    last = [line["message"] for line in list(daemon.lines) if line["message"] in (LEADS, *STANDS_BY)]
    return last[-1:] == [LEADS]


def at(line: Line) -> float:
    return datetime.fromisoformat(line["ts"].replace("Z", "+00:00")).timestamp()


def report(took: dict[str, list[tuple[float, float]]]) -> None:
    """Percentiles of the times, by kind: until a process leads, and until it delivers."""
    for kind, seconds in took.items():
        columns = [sorted(column) for column in zip(*seconds, strict=True)]
        said = ", ".join(
            f"{name} p50 {column[len(column) // 2]:.2f} s, p99 {column[min(len(column) * 99 // 100, len(column) - 1)]:.2f} s"
            for name, column in zip(("leads", "delivers"), columns, strict=True)
        )
        print(f"{kind}: {len(seconds)} times; {said}")
