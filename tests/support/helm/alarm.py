"""Prometheus' rules over the samples of a real daemon: which alerts fire, and when."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support.helm.chart import FOLDER

ALERTS = FOLDER / "files" / "alerts.yaml"
QUIET_SECONDS = 2400
"""Longer than any window of a rule with its `for`, so that what was before is forgotten."""


@dataclass
class Tape:
    """Samples of all series that rules read, one a second.

    Attributes:
        series: the text of promtool's values of each series.
        seconds: how long it is.
    """

    series: dict[str, list[str]] = field(default_factory=dict)
    seconds: int = 0

    def add(self, scrape: str | Mapping[str, str | None] | None, seconds: int = 1) -> None:
        """Add a scrape that stays as it is for so many seconds; None: the daemon did not answer. Of several processes, one of each."""
        scrapes = scrape if isinstance(scrape, Mapping) else {"a": scrape}
        samples: dict[str, str] = {}
        for instance, text in scrapes.items():
            samples[f'up{{job="cdfd", instance="{instance}"}}'] = "0" if text is None else "1"
            samples |= _samples(text or "", instance)
        for name in {*self.series, *samples}:
            values = self.series.setdefault(name, [f"_x{self.seconds}"] if self.seconds else [])
            value = samples.get(name, "_")
            values.append(f"{value}x{seconds - 1}" if value != "_" else f"_x{seconds}")
        self.seconds += seconds


def _samples(scrape: str, instance: str) -> dict[str, str]:
    wanted = set(re.findall(r"\bcdfd_\w+", ALERTS.read_text()))
    samples = re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", scrape, re.MULTILINE)
    return {
        f'{name}{{job="cdfd", instance="{instance}"{", " if labels else ""}{labels}}}': f"{float(value):.15g}"
        for name, labels, value in samples
        if name in wanted
    }


def firing(promtool: Path, folder: Path, tape: Tape, every: int = 30) -> Sequence[tuple[int, str]]:
    """The alerts that fire, each with its second.

    Args:
        promtool: the program.
        folder: an existing one.
        tape: the samples.
        every: seconds between two looks.
    """
    rules = yaml.safe_load(ALERTS.read_text())
    names = [rule["alert"] for rule in rules["groups"][0]["rules"]]
    looks: list[Mapping[str, Any]] = [
        {"eval_time": f"{second}s", "alertname": name, "exp_alerts": []}
        for second in range(0, tape.seconds, every)
        for name in names
    ]
    series = [{"series": name, "values": " ".join(values)} for name, values in tape.series.items()]
    test = {"interval": "1s", "input_series": series, "alert_rule_test": looks}
    (folder / "alerts.yaml").write_text(ALERTS.read_text())
    document = {"rule_files": ["alerts.yaml"], "evaluation_interval": "15s", "tests": [test]}
    (folder / "tape.yaml").write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [promtool, "test", "rules", "tape.yaml"], cwd=folder, capture_output=True, text=True, timeout=300
    )
    said = done.stdout + done.stderr
    alerts = [(_seconds(time), name) for name, time in re.findall(r"alertname: (\w+), time: (\S+?),", said)]
    assert (done.returncode != 0) == bool(alerts), said[:4000]
    return alerts


def _seconds(text: str) -> int:
    """Of a duration such as 1h2m3s."""
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    return sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+)([dhms])", text))
