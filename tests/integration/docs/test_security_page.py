"""The page's configuration of the HTTP server, with a real daemon, asked by the page's own commands."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.commands import CDFD
from tests.support.kafka.certificates import Certificates
from tests.support.kafka.node import free_ports

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
PASSWORD, TOKEN = "p4ss-of-the-page", "t0ken-of-the-page"


def section(language: str) -> list[str]:
    """The blocks of a language about the HTTP server."""
    text = PAGE.partition("## The HTTP server")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_configuration_and_the_commands(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("the page's commands need curl")
    certificates = Certificates.issue(tmp_path)
    [port] = free_ports(1)
    http: dict[str, Any] = yaml.safe_load(section("yaml")[0])["http"]
    assert http["listen"].endswith(":9464")
    http["listen"] = f"127.0.0.1:{port}"
    http["tls"] = {key: str(certificates.server) for key in http["tls"]}
    for name, text in (("password_file", PASSWORD), ("token_file", TOKEN)):
        http["authentication"][name] = str(tmp_path / name)
        (tmp_path / name).write_text(f"{text}\n")
    config = {
        "pipeline": "secured",
        "tables": [{"uri": str(tmp_path / "orders")}],
        "sink": {"kind": "files", "path": str(tmp_path / "out")},
        "http": http,
    }
    (tmp_path / "cdfd.yaml").write_text(json.dumps(config))
    by_password, by_token = section("sh")[0].splitlines()
    address = f"https://127.0.0.1:{port}"

    def asked(command: str) -> subprocess.CompletedProcess[str]:
        for shown, here in {
            "https://cdfd.example.com:9464": address,
            "ca.crt": str(certificates.ca),
            "-u ops": f"-u ops:{PASSWORD}",  # curl asks for it at a terminal
            "/run/secrets/prometheus": str(tmp_path / "token_file"),
        }.items():
            command = command.replace(shown, here)
        return subprocess.run(
            ["bash", "-c", command + " --silent --show-error --write-out '\\n%{http_code}'"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    with subprocess.Popen(
        [*CDFD, "run", "-c", str(tmp_path / "cdfd.yaml")], stderr=subprocess.PIPE, text=True
    ) as daemon:
        try:
            deadline = time.monotonic() + 30
            while asked(f"curl --cacert ca.crt {address}/healthz").returncode != 0 and time.monotonic() < deadline:
                time.sleep(0.1)
            status, metrics = asked(by_password).stdout, asked(by_token).stdout
            refused = asked(f"curl --cacert ca.crt {address}/status").stdout
        finally:
            daemon.terminate()
            said = daemon.communicate(timeout=30)[1]
    assert json.loads(status.rpartition("\n")[0])["pipeline"] == "secured"
    assert "cdfd_up 1.0" in metrics
    assert refused.endswith("\n401")
    for secret in (PASSWORD, TOKEN):
        assert secret not in said + status + metrics
