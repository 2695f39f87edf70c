"""A mutant in a process of its own, with the tests that run its lines. The working tree never changes."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Literal

import pytest

from tests.support.mutants import forks
from tests.support.mutants.mutations import Mutant, mutate

Outcome = Literal["survived", "killed", "timeout", "died"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the tests judged a mutant, and the first of them that failed."""

    outcome: Outcome
    test: str = ""


def judge(root: Path, mutant: Mutant | None, tests: Sequence[str], seconds: float) -> Verdict:
    """The verdict of tests about a mutant, or about the original code, within a time limit."""
    finder = None if mutant is None else _Finder(root, mutant)
    verdict = forks.call(lambda: _run(root, finder, tests), seconds)
    return verdict if isinstance(verdict, Verdict) else Verdict(verdict)


def _run(root: Path, finder: _Finder | None, tests: Sequence[str]) -> Verdict:
    os.chdir(root)
    if finder is not None:
        assert finder.name not in sys.modules
        sys.meta_path.insert(0, finder)
    selected = _Selected(tests)
    modules = dict.fromkeys(test.partition("::")[0] for test in tests)
    code = pytest.main([*forks.OPTIONS, "-x", *modules], plugins=[selected])
    return Verdict("survived" if code == pytest.ExitCode.OK else "killed", selected.failed)


class _Finder:
    """Finds one module, in its mutated form."""

    def __init__(self, root: Path, mutant: Mutant) -> None:
        path = root / mutant.file
        self.name = mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self._path = str(path)
        self._code: CodeType = compile(mutate(path.read_text(encoding="utf-8"), mutant.number), self._path, "exec")

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self._path, loader=_Loader(name, self._path, self._code))


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return self._code


class _Selected:
    """Runs the chosen tests in their order, and keeps the name of the first that fails."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.failed = ""
        self._order = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order), key=lambda item: self._order[item.nodeid]
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid
