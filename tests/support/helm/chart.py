"""Renders the chart."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.helm.tools import ROOT, environment

FOLDER = ROOT / "helm" / "cdfd"
EXAMPLES = sorted(FOLDER.glob("ci/*-values.yaml"))
RELEASE, NAMESPACE = "shop", "data"
CONFIG: dict[str, Any] = {
    "pipeline": "shop",
    "tables": [{"uri": "s3://lake/orders"}],
    "sink": {"kind": "kafka", "bootstrap_servers": "kafka:9092"},
}

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chart:
    """The chart, and the Helm that renders it."""

    helm: Path

    def run(self, *arguments: object, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        """A command of Helm; `values` come by standard input."""
        values_from = [] if values is None else ["--values", "-"]
        return subprocess.run(
            [str(self.helm), *map(str, arguments), *values_from],
            input=None if values is None else json.dumps(values),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def objects(self, *arguments: object, **values: Any) -> list[Object]:
        """The objects that Helm renders with these values. Without `config`, a minimal configuration is added; None leaves it out.

        Raises:
            AssertionError: Helm refuses; the message is Helm's.
        """
        done = self.render(*arguments, **values)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document is not None]

    def render(self, *arguments: object, **values: Any) -> subprocess.CompletedProcess[str]:
        """The same, as Helm says it."""
        chosen = {key: value for key, value in {"config": CONFIG, **values}.items() if value is not None}
        return self.run("template", RELEASE, FOLDER, "--namespace", NAMESPACE, *arguments, values=chosen)

    def refused(self, **values: Any) -> str:
        """Helm's error for values that it refuses."""
        done = self.render(**values)
        assert done.returncode == 1, done.stdout
        return done.stderr

    def example(self, file: Path) -> list[Object]:
        """An example of `ci/`."""
        return self.objects("--values", file, config=None)


def one(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The only object of a kind, or of a kind and name."""
    (resource,) = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    return resource


def pod(objects: list[Object]) -> Object:
    """The daemon's pod."""
    (template,) = [each["spec"]["template"] for each in objects if each["kind"] in ("Deployment", "StatefulSet")]
    return dict(template)


def daemon(objects: list[Object]) -> Object:
    """The daemon's container."""
    (container,) = [each for each in pod(objects)["spec"]["containers"] if each["name"] == "cdfd"]
    return dict(container)


def configuration(objects: list[Object]) -> str:
    """The rendered configuration file."""
    (rendered,) = [
        text
        for each in objects
        for text in [(each.get("data") or each.get("stringData") or {}).get("cdfd.yaml")]
        if text is not None
    ]
    return str(rendered)
