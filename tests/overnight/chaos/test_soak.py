"""A day of the daemon in compressed time: what it holds of the machine must not grow.

Its clock runs `SPEED` times as fast, so polls, intervals and back-offs of 24 hours pass in 15 minutes. Meanwhile a writer commits, one table
fails and comes back, and connections break; or two processes take the pipeline from each other every ten minutes. `CDFD_SOAK` is the number
of minutes (`make soak`: 15); `make test` has a short one.
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
from tests.support.chaos.pair import Pair
from tests.support.chaos.pair import report as report_takeovers
from tests.support.kafka.broker import Broker
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.proxy import Proxy

MINUTES = float(os.environ.get("CDFD_SOAK", "0.4"))
SPEED = 96
WHAT = f"{MINUTES * SPEED / 60:.1f} hours"
SAMPLES = 36
SWAP_SECONDS = 10 * 60 / SPEED


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
        names = []
        for each in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                names.append(os.readlink(each))
        sockets = sum(name.startswith("socket:") for name in names)
        return cls(int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"]), len(names), sockets)


def test_a_day_in_compressed_time(proxied_pipeline: Pipeline, proxied: tuple[Proxy, Broker], tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    created(victim, 0, 3)
    beside = [{"uri": str(victim), "start": "snapshot"}]
    proxied_pipeline.configure(beside=beside, http={"listen": "127.0.0.1:0"})
    with (
        while_writing(WHAT, 0, proxied_pipeline, proxied_pipeline.writing(SEED, pause=0.4)),
        proxied_pipeline.daemon(within=faster(tmp_path)) as daemon,
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
    check_growth(held)


def test_a_day_of_two_processes_that_take_over_from_each_other(
    proxied_pipeline: Pipeline, proxied: tuple[Proxy, Broker], tmp_path: Path
) -> None:
    """A leader that is paused for some seconds has been replaced when it continues, and stands by."""
    pipeline = proxied_pipeline
    pipeline.configure(
        http={"listen": "127.0.0.1:0"},
        sink={"transaction_timeout": "10s"},
        standby={"takeover_after": f"{2500 * SPEED}ms", "poll": f"{100 * SPEED}ms"},
    )
    held: list[list[Held]] = [[], []]
    with contextlib.ExitStack() as stack, proxied[1].explaining():
        with while_writing(WHAT, 0, pipeline, pipeline.writing(SEED, pause=0.4)) as random:
            pair = Pair((pipeline.config, pipeline.config), stack, within=faster(tmp_path))
            began = time.monotonic()
            for number in range(max(2, round(MINUTES * 60 / SWAP_SECONDS))):
                time.sleep(max(0.0, began + number * SWAP_SECONDS - time.monotonic()))
                pair.strike("pause", random)
                for place, daemon in enumerate(pair.running):
                    held[place].append(Held.of(daemon.pid))
            pair.end()
        report_takeovers(pair.took)
    for each in held:
        report(each)
    assert not pair.errors, pair.errors
    for each in held:
        check_growth(each)


def faster(folder: Path) -> list[str]:
    """The command that runs a daemon with the fast clock."""
    return [sys.executable, "-m", "tests.support.chaos.clock", str(folder / "offset"), str(SPEED)]


def check_growth(held: list[Held]) -> None:
    """Compare the last third of a day with the second one."""
    third = max(1, len(held) // 3)
    early, late = (
        Held(*map(statistics.median, zip(*map(astuple, part), strict=True)))
        for part in (held[third:-third] or held[:third], held[-third:])
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
    sixth = max(1, len(held) // 6)
    for number in range(sixth - 1, len(held), sixth):
        hours = (number + 1) / len(held) * MINUTES * SPEED / 60
        each = held[number]
        print(f"| {hours:.1f} | {each.mebibytes:.0f} | {each.threads} | {each.descriptors} | {each.connections} |")
