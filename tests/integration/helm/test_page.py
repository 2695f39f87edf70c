"""The page shows Helm's real output."""

import os
import re
import subprocess
from pathlib import Path

import yaml

from tests.support.docs.pages import Tour
from tests.support.helm.chart import Chart, Object, one
from tests.support.helm.tools import ROOT

PAGE = ROOT / "docs" / "kubernetes.md"


def test_the_page(chart: Chart, tmp_path: Path) -> None:
    with Tour(tmp_path / "tour", update=os.environ.get("CDFD_DOCS") == "update") as tour:
        (tmp_path / "bin" / "helm").symlink_to(chart.helm)
        (tour.folder / "helm").symlink_to(ROOT / "helm")
        tour.play(PAGE)


def test_what_it_runs_in_a_cluster_is_there(chart: Chart, tmp_path: Path) -> None:
    """Commands that need a cluster: the objects that they name are rendered, and Helm knows their options."""
    values = re.search(r"\$ cat values.yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert values is not None
    (tmp_path / "values.yaml").write_text(values[1])
    objects: list[Object] = chart.objects("--values", tmp_path / "values.yaml", config=None)
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL))
    deployments = set(re.findall(r"deployment/(\S+)", blocks))
    assert deployments == {one(objects, "Deployment")["metadata"]["name"]}
    for command in re.findall(r"^helm .*", blocks, re.MULTILINE):
        known = subprocess.run([chart.helm, command.split()[1], "--help"], capture_output=True, text=True, check=True)
        for option in re.findall(r"--[\w-]+", command):
            assert f"{option} " in known.stdout, command


def test_the_values_for_tls_and_authentication(chart: Chart) -> None:
    block = re.search(r"## TLS and authentication.*?```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    objects: list[Object] = chart.objects(**yaml.safe_load(block[1]))
    [endpoint] = one(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]["serverName"]) == ("https", "shop-cdfd.data.svc")
    assert endpoint["authorization"] == {"credentials": {"name": "shop-cdfd-page", "key": "token"}}


def test_first_two_commands_of_the_page(chart: Chart) -> None:
    commands = re.search(r"```\n(make helm.*)\n(\.cache/helm/helm template .*)\n```", PAGE.read_text())
    assert commands is not None
    subprocess.run(["bash", "-c", commands[1]], cwd=ROOT, check=True, capture_output=True, timeout=60)
    done = subprocess.run(["bash", "-c", commands[2]], cwd=ROOT, check=True, capture_output=True, timeout=60)
    kinds = {each["kind"] for each in yaml.safe_load_all(done.stdout)}
    assert {"Deployment", "ConfigMap", "PodDisruptionBudget"} <= kinds
