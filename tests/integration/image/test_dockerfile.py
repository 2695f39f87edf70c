"""The Dockerfile follows the rules, and each rule finds what it forbids."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.support.image.dockerfile import stages
from tests.support.image.lint import problems

ROOT = Path(__file__).parents[3]
OURS = (ROOT / "Dockerfile").read_text()


def test_it_follows_the_rules() -> None:
    assert problems(OURS) == []


@pytest.mark.parametrize(
    ("ours", "instead", "message"),
    [
        ("WORKDIR /srv/build", "WORKDIR srv/build", "DL3000"),
        ("install -d /etc/cdfd", "cd /etc", "DL3003"),
        ("apt-get update", "sudo apt-get update", "DL3004"),
        ("# hadolint ignore=DL3008\n", "", "DL3008"),
        ("rm -rf /var/lib/apt/lists/*", "true", "DL3009"),
        ("install -y --no", "install --no", "DL3014"),
        (" --no-install-recommends", "", "DL3015"),
        ("COPY cdfd/", "ADD cdfd/", "DL3020"),
        ('CMD ["run", "--config", "/etc/cdfd/cdfd.yaml"]', "CMD run", "DL3025"),
        ("apt-get update", "apt update", "DL3027"),
        ("install -d /etc/cdfd", "ls | cat", "DL4006"),
        ("RUN set -eu;", "RUN", "shell fails late"),
        ("--require-hashes --only-binary=:all:", "", "index without hashes"),
        ("--no-index --no-deps", "", "index without hashes"),
        ('CMD ["/opt/cdfd/bin/python", ', "CMD curl localhost # ", "health check by a shell"),
        ("USER 65532:65532", "USER cdfd", "user by name"),
        ("USER 65532:65532", "USER 0:0", "user by name"),
        ("USER 65532:65532\n", "", "DL3002"),
        ("HEALTHCHECK", "EXPOSE", "DL3057"),
        ("CMD [", 'ENTRYPOINT ["x"]\nCMD [', "more than one ENTRYPOINT"),
        (":3.13-slim@", "@", "DL3006"),
        ("@sha256:", "@sha1:", "digest"),
        (":3.13-slim@", ":latest@", "DL3007"),
        ("org.opencontainers.image.licenses", "licenses", "DL3048: no label licenses"),
    ],
)
def test_a_rule_finds_what_it_forbids(ours: str, instead: str, message: str) -> None:
    assert ours in OURS
    assert any(message in problem for problem in problems(OURS.replace(ours, instead)))


def test_its_version_is_ours() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"ARG VERSION={project['version']}\n" in OURS
    assert f'__version__ = "{project["version"]}"' in (ROOT / "cdfd" / "__init__.py").read_text()
    assert f'licenses="{project["license"]}"' in OURS
    # The base image's Python is one that is supported.
    minor = re.search(r"python:(3\.\d+)-", OURS)
    assert minor is not None
    assert f"Programming Language :: Python :: {minor[1]}" in project["classifiers"]


def test_what_it_copies_is_sent_to_the_builder() -> None:
    _, actual = stages(OURS)
    copied = {
        name.split("/")[0]
        for stage in actual
        for one in stage.instructions
        if one.name == "COPY" and "--from" not in one.text
        for name in one.text.split()[:-1]
    }
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == copied
    assert "*" in ignored
