"""Which tests run which lines, and how long each takes, recorded once by coverage.py.

A module of tests is recorded again if it has changed, or a file that its tests run. Tests of processes, of Spark and of servers other than a
broker are not asked: they would take longer than the others together, or never see a changed module.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.support.mutants import forks

SERVERS = frozenset({"broker_behind", "moto_server", "versitygw_server", "spark", "needs_spark"})
"""Fixtures whose tests are left out, whether they name them or ask for them as they run."""

IMPORTS = "imports"
"""The context of lines that run when modules are imported."""

_LIMIT = 900
"""Seconds for a module of tests."""


@dataclass
class Recording:
    """The lines that a module of tests ran.

    Attributes:
        digests: of the module, and of each file of which its tests ran a line.
        seconds: of each test that passed.
        lines: by file and by context (a test's id, `IMPORTS`, or the module's path for fixtures that its tests share): a bit for each line.
    """

    digests: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, int]] = field(default_factory=dict)


class Lines:
    """All recordings."""

    def __init__(self, recordings: dict[str, Recording]) -> None:
        self.recordings = recordings
        self._size: Counter[str] = Counter()
        """By test: the lines that it runs in all files."""
        for recording in recordings.values():
            for contexts in recording.lines.values():
                self._size.update({context: mask.bit_count() for context, mask in contexts.items()})

    def tests(self, file: str, lines: Iterable[int] | None) -> list[str]:
        """Tests that run one of the lines of a file, or any of it: first those that run little else."""
        mask = ~0 if lines is None else sum(1 << line for line in lines)
        ranked = []
        for module, recording in self.recordings.items():
            contexts = recording.lines.get(file, {})
            shared = contexts.get(module, 0)
            for test, seconds in recording.seconds.items():
                own = contexts.get(test, 0)
                if (own | shared) & mask:
                    here = (own | shared).bit_count() / max(1, self._size[test] + self._size[module])
                    ranked.append((-here, seconds, test))
        return [test for _, _, test in sorted(ranked)]

    def forget(self, test: str) -> None:
        """Leave a test out from here on."""
        self.recordings[test.partition("::")[0]].seconds.pop(test, None)

    def seconds(self, test: str) -> float:
        """How long a test took, while its lines were recorded."""
        return self.recordings[test.partition("::")[0]].seconds[test]


def record(root: Path, cache: Path, modules: Sequence[str], files: frozenset[str]) -> Lines:
    """The recordings of modules of tests, of those files; made where they are missing or old."""
    digests = {file: _digest(root / file) for file in (*files, *modules)}
    recordings = {}
    cache.mkdir(parents=True, exist_ok=True)
    for module in modules:
        kept = cache / f"{module.replace('/', '.')}.json"
        recording = Recording(**json.loads(kept.read_bytes())) if kept.exists() else None
        if recording is None or any(digests.get(file) != digest for file, digest in recording.digests.items()):
            start = time.monotonic()
            answer = forks.call(partial(_run, root, module, files), _LIMIT)
            if not isinstance(answer, dict):
                print(f"{module}: not recorded ({answer})", flush=True)
                continue
            recording = Recording(**answer)
            tested = (file for file, contexts in recording.lines.items() if contexts.keys() - {IMPORTS})
            recording.digests = {file: digests[file] for file in (module, *tested)}
            kept.write_text(json.dumps(recording.__dict__))
            print(f"{module}: {len(recording.seconds)} tests, {time.monotonic() - start:.0f} s", flush=True)
        recordings[module] = recording
    return Lines(recordings)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(root: Path, module: str, files: frozenset[str]) -> dict[str, Any]:
    """In a process of its own: runs the tests of a module."""
    os.chdir(root)
    measured = coverage.Coverage(data_file=None, config_file=False, include=[str(root / file) for file in files])
    recorder = _Recorder(measured, module)
    measured.start()
    measured.switch_context(IMPORTS)
    pytest.main([*forks.OPTIONS, module], plugins=[recorder])
    measured.stop()
    data = measured.get_data()
    lines: dict[str, dict[str, int]] = {}
    for path in data.measured_files():
        contexts = lines.setdefault(os.path.relpath(path, root).replace(os.sep, "/"), {})
        for line, names in data.contexts_by_lineno(path).items():
            for name in names:
                contexts[name] = contexts.get(name, 0) | 1 << line
    return {"seconds": recorder.seconds, "lines": {file: contexts for file, contexts in lines.items() if contexts}}


class _Recorder:
    def __init__(self, measured: coverage.Coverage, module: str) -> None:
        self.seconds: dict[str, float] = {}
        self._measured = measured
        self._module = module
        self._failed: set[str] = set()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._measured.switch_context(item.nodeid)
        yield
        self._measured.switch_context(IMPORTS)
        if item.nodeid in self._failed:
            self.seconds.pop(item.nodeid, None)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        if fixturedef.argname in SERVERS:
            pytest.skip("no servers")
        # Its lines count for each test that has the fixture, not just for the first.
        if fixturedef.scope != "function":
            self._measured.switch_context(self._module)
        yield
        if fixturedef.scope != "function":
            self._measured.switch_context(request._pyfuncitem.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if report.outcome != "passed":
            self._failed.add(report.nodeid)
