"""Alerts and dashboard: Prometheus understands them, their metrics exist, and each alert fires when it should."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdfd.daemon.http.metrics import Metrics, Reading
from cdfd.daemon.http.status import Search, Searches, daemon_families
from cdfd.deliver.headroom import Headroom
from cdfd.log.pace import PollBudget
from tests.support.helm.chart import EXAMPLES, FOLDER, Chart, one
from tests.support.helm.tools import ROOT

ALERTS = FOLDER / "files" / "alerts.yaml"
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboards" / "cdfd.json").read_text())
PAGE = (ROOT / "docs" / "alerts.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def scraped() -> str:
    """All metrics of a daemon with a table."""
    metrics = Metrics("1", native=True)
    metrics.table("t").aborted.inc()
    searches = Searches({"s3://lake/*": Search(60, 1)})
    readings = [Reading("t", "at_tip", False, 1, 1, 1, 0, 0.0, 0.0, (Headroom("log", 1, 1),))]
    further = daemon_families("shop", {"": searches}, PollBudget(720, 60))
    return metrics.render(readings, list(further)).decode()


def exported() -> set[str]:
    """Names of all series of a daemon with a table."""
    return set(re.findall(r"^(\w+)", scraped(), re.MULTILINE))


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in RULES)
    yield from (target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"])
    yield from re.findall(r"`([^`\n]*\(rate[^`\n]*)`", PAGE)


def test_their_metrics_exist() -> None:
    used = {name for text in expressions() for name in re.findall(r"\b(?:cdfd|process)_\w+", text)}
    assert used <= exported()
    assert len(used) > 10


@pytest.mark.parametrize("more", ["", "# HELP cdfd_lagMinutes Lag.\n# TYPE cdfd_lagMinutes gauge\ncdfd_lagMinutes 1\n"])
def test_names_of_metrics_follow_the_conventions_of_prometheus(promtool: Path, more: str) -> None:
    scrape = (scraped() + more).encode()
    done = subprocess.run([promtool, "check", "metrics"], input=scrape, capture_output=True, timeout=60)
    assert (done.returncode == 0) == (more == ""), done.stdout + done.stderr


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    name = rule["alert"]
    assert rule["annotations"]["runbook"] == f"docs/alerts.md#{name.lower()}"
    assert f"\n## {name}\n" in PAGE
    assert {"summary", "description"} < rule["annotations"].keys()
    assert rule["labels"]["severity"] in ("critical", "warning")


def test_the_page_of_operations_lists_the_alerts_that_page_a_person() -> None:
    listed = re.findall(r"^\| \[(\w+)\]\(alerts\.md#\w+\) \| critical \|", OPERATIONS, re.MULTILINE)
    assert listed == [rule["alert"] for rule in RULES if rule["labels"]["severity"] == "critical"]


def test_there_is_no_page_for_an_alert_that_is_gone() -> None:
    assert re.findall(r"^## (\w+)$", PAGE, re.MULTILINE) == [rule["alert"] for rule in RULES]


def test_prometheus_takes_them_and_they_fire_when_they_should(promtool: Path, tmp_path: Path) -> None:
    """`alerts_test.yaml` has for each alert a time when it fires and one when it is silent."""
    checked = subprocess.run([promtool, "check", "rules", ALERTS], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr
    tests = Path(__file__).with_name("alerts_test.yaml")
    (tmp_path / "alerts.yaml").write_text(ALERTS.read_text())
    (tmp_path / tests.name).write_text(tests.read_text())
    done = subprocess.run(
        [promtool, "test", "rules", tests.name], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tried = [
        (check["alertname"], bool(check["exp_alerts"]))
        for group in yaml.safe_load(tests.read_text())["tests"]
        for check in group["alert_rule_test"]
    ]
    assert {(rule["alert"], fires) for rule in RULES for fires in (True, False)} == set(tried)


def test_the_expressions_of_the_dashboard_are_promql(promtool: Path, tmp_path: Path) -> None:
    rules = [
        {"record": "a:b", "expr": target["expr"].replace("$__rate_interval", "1m"), "labels": {"n": f"{number}"}}
        for panel in DASHBOARD["panels"]
        for number, target in enumerate(panel["targets"], panel["id"] * 10)
    ]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", "rules.yaml"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_variables_ask_for_metrics_and_labels_that_exist() -> None:
    for each in DASHBOARD["templating"]["list"]:
        if each["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", each["definition"]).groups()
            assert metric in exported()
            assert label in ("job", "instance", "table")
            assert each["query"]["query"] == each["definition"]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_every_panel_uses_the_chosen_data_source_and_says_what_it_shows() -> None:
    (source,) = [each for each in DASHBOARD["templating"]["list"] if each["type"] == "datasource"]
    for place in (*DASHBOARD["panels"], *(target for panel in DASHBOARD["panels"] for target in panel["targets"])):
        assert place["datasource"] == {"type": "prometheus", "uid": f"${{{source['name']}}}"}
    for panel in DASHBOARD["panels"]:
        assert panel["description"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_rule_of_the_chart(chart: Chart) -> None:
    def rules(**values: Any) -> list[dict[str, Any]]:
        rule = one(chart.objects(prometheusRule={"enabled": True, **values}), "PrometheusRule")
        (group,) = rule["spec"]["groups"]
        return list(group["rules"])

    assert rules() == RULES
    (example,) = [file for file in EXAMPLES if "everything" in file.name]
    values = yaml.safe_load(example.read_text())["prometheusRule"]
    changed = rules(**values)
    assert [rule.get("alert", rule.get("record")) for rule in changed] == [
        *(rule["alert"] for rule in RULES if rule["alert"] != "CdfdSlow"),
        "cdfd:rows:rate5m",
    ]
    assert changed[0]["labels"] == {"severity": "critical", "team": "data"}
    assert changed[0]["annotations"]["runbook_url"] == "https://example.com/alerts#cdfddown"
    assert "runbook" not in changed[0]["annotations"]
