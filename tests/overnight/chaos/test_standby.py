"""Two processes of one pipeline, of which one delivers, and a writer. Whatever happens to one of them, the other one takes its place.

Every change arrives once and in order, and no line of either process is an error. With `-s`, the test prints how long take-overs took.
"""

import contextlib
import time
from collections import defaultdict
from datetime import datetime
from random import Random

from tests.support.chaos.faults import share, while_writing
from tests.support.kafka.broker import Broker
from tests.support.kafka.daemon_process import Daemon, Line
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.proxy import Proxy

FAULTS = share(50, 8)
KINDS = ("kill", "stop", "pause", "partition", "roll", "kill standby", "pause standby", "partition standby")
LEADS, STANDS_BY = "leading the pipeline", ("standing by", "another process leads the pipeline; standing by")
PAUSE_SECONDS = 5.0
WITHIN_SECONDS = 60.0
"""Longest take-over. On a busy machine, a process may be replaced although it lives, and then take its place again."""


class Pair:
    """Two processes: the first one reaches the broker through a proxy, and the second one directly.

    Attributes:
        all: processes that ran, with their logs.
    """

    def __init__(self, pipeline: Pipeline, proxy: Proxy, stack: contextlib.ExitStack) -> None:
        self.proxy = proxy
        self.all: list[Daemon] = []
        self._stack = stack
        directly = pipeline.folder / "directly.yaml"
        directly.write_text(pipeline.config.read_text().replace(pipeline.servers, pipeline.direct))
        self._configs = [pipeline.config, directly]
        self.running = [self.start(0), self.start(1)]

    def start(self, place: int) -> Daemon:
        daemon = self._stack.enter_context(Daemon(self._configs[place], "--standby"))
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

    def strike(self, kind: str, random: Random) -> tuple[float, float] | None:
        """Let something happen; seconds until another process leads, and delivers. None if the leader stays."""
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
            case "partition" if place == 0:
                (self.proxy.refuse if random.random() < 0.5 else self.proxy.stall)()
                time.sleep(PAUSE_SECONDS)
                self.proxy.resume()
            case _:
                with struck.paused():
                    time.sleep(PAUSE_SECONDS)
        took = takeover(began, others, before) if place == leader else None
        if kind == "roll":
            self.running[place] = others[1]
        elif not struck.running:
            self.running[place] = self.start(place)
        return took


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


def test_one_of_two_processes_delivers_whatever_fails(
    proxied_pipeline: Pipeline, proxied: tuple[Proxy, Broker]
) -> None:
    proxied_pipeline.configure(sink={"transaction_timeout": "10s"})
    took: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with contextlib.ExitStack() as stack, proxied[1].explaining():
        with while_writing("standby", FAULTS, proxied_pipeline) as random:
            pair = Pair(proxied_pipeline, proxied[0], stack)
            for number in range(FAULTS):
                kind = KINDS[number % len(KINDS)] if number < len(KINDS) else random.choice(KINDS)
                if (seconds := pair.strike(kind, random)) is not None:
                    took[kind].append(seconds)
                time.sleep(random.uniform(0, 1))
            for place in (1 - pair.leader, pair.leader):
                pair.running[place].stop()
        report(took)
        errors = [line for daemon in pair.all for line in daemon.lines if line["level"] in ("error", "critical")]
    assert errors == []


def report(took: dict[str, list[tuple[float, float]]]) -> None:
    """Percentiles of the times, by kind: until a process leads, and until it delivers."""
    for kind, seconds in took.items():
        columns = [sorted(column) for column in zip(*seconds, strict=True)]
        said = ", ".join(
            f"{name} p50 {column[len(column) // 2]:.2f} s, p99 {column[min(len(column) * 99 // 100, len(column) - 1)]:.2f} s"
            for name, column in zip(("leads", "delivers"), columns, strict=True)
        )
        print(f"{kind}: {len(seconds)} times; {said}")
