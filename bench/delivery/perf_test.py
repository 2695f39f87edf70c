"""Kafka's own `kafka-producer-perf-test`: how fast its producer takes rows that are ready to be sent."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

from bench import tables
from tests.support.kafka.installation import installed

LINES = 20_000
SECONDS = 300
BATCHES = ("batch.size=262144", "linger.ms=5")


def payloads(uri: str) -> Path:
    """Change rows of a table as JSON lines, as many as are enough to choose from."""
    path = tables.DATA / "payloads.jsonl"
    if not path.exists():
        command = [sys.executable, "-m", "cdfd", "tail", uri, "--from", "0", "--until", "now"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            path.write_bytes(b"".join(islice(process.stdout, LINES)))
    return path


def rows_per_second(servers: str, topic: str, rows: int, payload: Path | int) -> float:
    """By its own account: from the first row to the last acknowledgement, the JVM's start left out.

    The rows are lines of a file, drawn at random, or so many random letters each.
    """
    properties = [f"bootstrap.servers={servers}", "acks=all", "compression.type=lz4", *BATCHES]
    arguments = ["--topic", topic, "--num-records", str(rows), "--throughput", "-1"]
    arguments += ["--record-size", str(payload)] if isinstance(payload, int) else ["--payload-file", str(payload)]
    tool = "org.apache.kafka.tools.ProducerPerformance"
    command = installed().command(tool, *arguments, "--command-property", *properties, jvm=())
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    rates = re.findall(rf"^{rows} records sent, ([0-9.]+) records/sec", done.stdout, re.MULTILINE)
    if done.returncode or not rates:
        raise SystemExit(f"{tool} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return float(rates[-1])
