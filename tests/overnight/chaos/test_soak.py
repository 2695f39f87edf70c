"""A day of the daemon in compressed time: what it holds of the machine must not grow.

Its clock runs `SPEED` times as fast, so polls, intervals and back-offs of 24 hours pass in 15 minutes. Meanwhile a writer commits, one table
fails and comes back, and connections break. `CDFD_SOAK` is the number of minutes (`make soak`: 15); `make test` has a short one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import time
from dataclasses import astuple, dataclass
from pathlib import Path

from tests.overnight.chaos.test_tables import created
from tests.support.chaos.faults import SEED, while_writing
from tests.support.kafka.broker import Broker
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.proxy import Proxy

MINUTES = float(os.environ.get("CDFD_SOAK", "0.4"))
SPEED = 96
SAMPLES = 36


@dataclass(frozen=True, slots=True)
class Held:
    """The resources that a process holds."""

    mebibytes: float
    threads: int
    descriptors: int
    connections: int

    @classmethod
    def of(cls, pid: int) -> Held:
        process = Path(f"/proc/{pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        opened = []
        for each in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                opened.append(os.readlink(each))
        sockets = sum(name.startswith("socket:") for name in opened)
        return cls(int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"]), len(opened), sockets)


def test_a_day_in_compressed_time(proxied_pipeline: Pipeline, proxied: tuple[Proxy, Broker], tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    created(victim, 0, 3)
    beside = [{"uri": str(victim), "start": "snapshot"}]
    proxied_pipeline.configure(beside=beside, http={"listen": "127.0.0.1:0"})
    faster = [sys.executable, "-m", "tests.support.chaos.clock", str(tmp_path / "offset"), str(SPEED)]
    what = f"{MINUTES * SPEED / 60:.1f} hours"
    with (
        while_writing(what, 0, proxied_pipeline, proxied_pipeline.writing(SEED, pause=0.4)),
        proxied_pipeline.daemon(within=faster) as daemon,
    ):
        daemon.wait_for("at version")
        held = []
        for number in range(SAMPLES):
            time.sleep(MINUTES * 60 / SAMPLES)
            disturb(number, victim, proxied[0])
            assert daemon.running, daemon.log()
            held.append(Held.of(daemon.pid))
        daemon.stop()
    report(held)
    third = SAMPLES // 3
    early, late = (
        Held(*map(statistics.median, zip(*map(astuple, part), strict=True)))
        for part in (held[third:-third], held[-third:])
    )
    assert late.threads <= early.threads + 2
    assert late.descriptors <= early.descriptors + 4
    assert late.connections <= early.connections + 4
    if MINUTES >= 10:  # before, buffers are still being filled for the first time
        assert late.mebibytes <= early.mebibytes * 1.1 + 5


def disturb(number: int, victim: Path, proxy: Proxy) -> None:
    """Every few samples the other table goes away and comes back, and connections break."""
    away = victim.with_name("away")
    match number % 6:
        case 1:
            victim.rename(away)
        case 3:
            shutil.rmtree(victim, ignore_errors=True)
            away.rename(victim)
        case 5:
            proxy.cut()


def report(held: list[Held]) -> None:
    """A table for `-s`: hours of the daemon's clock, and what it held."""
    print("\n| hours | MiB | threads | descriptors | sockets |\n|---|---|---|---|---|")
    for number in range(SAMPLES // 6 - 1, SAMPLES, SAMPLES // 6):
        hours = (number + 1) / SAMPLES * MINUTES * SPEED / 60
        each = held[number]
        print(f"| {hours:.1f} | {each.mebibytes:.0f} | {each.threads} | {each.descriptors} | {each.connections} |")
