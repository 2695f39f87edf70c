"""The release workflow: what it trusts, what it may do, and that its steps name things that are there."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / ".github" / "workflows" / "release.yml").read_text()
WORKFLOW: dict[Any, Any] = yaml.safe_load(TEXT)
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]


def test_actions_are_pinned_to_commits() -> None:
    used = re.findall(r"uses: (.*)", TEXT)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", action), action


def test_jobs_may_do_what_they_need_and_no_more() -> None:
    assert WORKFLOW["permissions"] == {}
    for name, job in JOBS.items():
        steps = str(job["steps"])
        needed = {
            "contents": "write" if "gh release create" in steps else "read",
            "packages": "write" if "docker login" in steps or "helm push" in steps else None,
            "attestations": "write" if "actions/attest@" in steps else None,
            "id-token": "write" if "actions/attest@" in steps or "pypi-publish" in steps else None,
        }
        assert job["permissions"] == {scope: level for scope, level in needed.items() if level}, name


def test_what_anybody_can_set_is_not_put_into_scripts() -> None:
    """A tag's name in `${{ }}` would be part of the script; as a variable it is a value."""
    for job in JOBS.values():
        for step in job["steps"]:
            assert "${{" not in step.get("run", "").replace("'{{", ""), step


def test_nothing_is_published_before_the_tests() -> None:
    def after(name: str) -> set[str]:
        needs = JOBS[name].get("needs", [])
        names = [needs] if isinstance(needs, str) else needs
        return set(names).union(*(after(earlier) for earlier in names))

    for name in JOBS:
        assert name == "test" or "test" in after(name)
    assert after("publish") == set(JOBS) - {"publish"}


def test_extras_and_files_are_there() -> None:
    for variant in JOBS["image"]["strategy"]["matrix"]["variant"]:
        for extra in variant["extras"].split():
            assert (ROOT / "docker" / "requirements" / f"{extra}.txt").exists()
    suffixes = [variant["suffix"] for variant in JOBS["image"]["strategy"]["matrix"]["variant"]]
    assert JOBS["manifest"]["strategy"]["matrix"]["suffix"] == suffixes


def test_the_checks_of_what_was_built_run() -> None:
    checks = re.findall(r'python -c "(.*)"', TEXT)
    assert checks
    for check in checks:
        subprocess.run([sys.executable, "-c", check], cwd=ROOT, timeout=60, check=True)
