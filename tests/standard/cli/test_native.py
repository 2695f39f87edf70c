"""Reports of the command and the daemon about `cdfd-native`. Both work without it."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from cdfd import __version__
from cdfd.runtime.native import VERSION
from tests.support.commands import ALL, WITHIN, brief, cdfd, history, started

REASONS = {
    "it is not installed": None,
    "its version is 0.0.9, not ": "__version__ = '0.0.9'\njson_rows = kafka_records = parquet = trevni = None\n",
    "no symbol of it": "raise ImportError('no symbol of it')\n",
}


@pytest.fixture(params=REASONS)
def reason(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Why `cdfd-native` cannot be used: a module of its name comes first, or its name cannot be imported."""
    text = REASONS[request.param]
    folder = tmp_path / "first"
    folder.mkdir()
    if text is None:
        (folder / "sitecustomize.py").write_text("import sys\nsys.modules['cdfd_native'] = None\n")
    else:
        (folder / "cdfd_native.py").write_text(text)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    return str(request.param)


def test_version_names_cdfd_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CDFD_NATIVE", raising=False)
    asked = cdfd("--version").out
    if "CI" in os.environ or "without" not in asked:
        assert asked == f"cdfd {__version__} (cdfd-native {VERSION})\n"
    monkeypatch.setenv("CDFD_NATIVE", "0")
    assert cdfd("--version").out == f"cdfd {__version__} (without cdfd-native: CDFD_NATIVE is 0; slower)\n"


def test_version_says_why_cdfd_native_is_not_used(reason: str) -> None:
    said = cdfd("--version").out
    assert said.startswith(f"cdfd {__version__} (without cdfd-native: {reason}")
    assert said.endswith("; slower)\n")
    assert cdfd("version").lines()[0] == said.rstrip("\n")


def test_tail_prints_the_same_without_cdfd_native(tmp_path: Path, reason: str) -> None:
    asyncio.run(history(tmp_path / "orders"))
    assert brief(cdfd("tail", tmp_path / "orders", "--until", "now")) == ALL


def test_daemon_without_cdfd_native_warns_and_tells_its_metrics(tmp_path: Path, reason: str) -> None:
    asyncio.run(history(tmp_path / "orders"))
    settings = {
        "pipeline": "p",
        "tables": [{"uri": str(tmp_path / "orders"), "start": "earliest"}],
        "sink": {"kind": "files", "path": str(tmp_path / "out")},
        "progress": {"ledger": str(tmp_path / "ledger")},
        "http": {"listen": "127.0.0.1:0"},
    }
    config = tmp_path / "cdfd.yaml"
    config.write_text(yaml.safe_dump(settings))
    with started("--log-format", "json", "run", "-c", config) as daemon:
        address = re.search(r"http://[0-9.:]+", daemon.log_line("metrics, health and status"))
        warning = json.loads(daemon.log_line("cdfd-native"))
        assert warning["level"].lower() == "warning"
        assert reason in warning["message"]
        assert address is not None
        with urlopen(f"{address[0]}/metrics", timeout=WITHIN) as answer:
            assert f'cdfd_build_info{{native="false",version="{__version__}"}} 1.0\n' in answer.read().decode()
        assert daemon.end(signal.SIGTERM).code == 0
