"""The mutation tests themselves, on a module of a few lines."""

from __future__ import annotations

import ast
import mmap
from pathlib import Path

import pytest

from tests.support.cache import ROOT
from tests.support.mutants import forks, lines
from tests.support.mutants.__main__ import explanations, is_explained, sample
from tests.support.mutants.mutations import Mutant, mutants, mutate
from tests.support.mutants.trial import Verdict, judge

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*fork:DeprecationWarning"
)  # a child that is forked runs tests and ends

MODULE = '''
"""A page: "1 < 2 and 3" is text."""
import logging

logger = logging.getLogger(__name__)
LIMIT = 3


def total(numbers, most=LIMIT):
    """The sum."""
    result = 0
    while numbers:
        result += numbers.pop()
    if result >= most and most:
        logger.info("%s", 1 + 1)
        raise ValueError(f"{result + 1} is too much")
    return result


def is_even(number: int) -> bool:
    return number % 2 == 0
'''
TESTS = """
import pytest, toy

@pytest.fixture(scope="module")
def shared():
    return toy.is_even(3)

def test_total():
    assert toy.total([1, 1]) == 2
    with pytest.raises(ValueError):
        toy.total([3])

def test_even():
    assert toy.is_even(2)

def test_odd(shared):
    assert not shared
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "toy.py").write_text(MODULE)
    (tmp_path / "test_toy.py").write_text(TESTS)
    return tmp_path


def one(toy: Path, now: str) -> Mutant:
    (mutant,) = (each for each in mutants(toy, "toy.py") if each.now == now)
    return mutant


class TestMutations:
    def test_each_small_change_of_the_code_and_none_of_texts(self, toy: Path) -> None:
        changes = [(each.scope, each.was, each.now) for each in mutants(toy, "toy.py")]
        condition = "if result >= most and most:"
        assert changes == [
            ("", "LIMIT = 3", "LIMIT = 4"),
            ("", "LIMIT = 3", "LIMIT = 2"),
            ("total", "result = 0", "result = 1"),
            ("total", "result = 0", "result = -1"),
            ("total", "while numbers:", "while not numbers:"),
            ("total", "result += numbers.pop()", "pass"),
            ("total", "result += numbers.pop()", "result -= numbers.pop()"),
            ("total", condition, "if result >= most or most:"),
            ("total", condition, "if most:"),
            ("total", condition, "if result >= most:"),
            ("total", condition, "if result > most and most:"),
            ("total", "raise ValueError(f'{result + 1} is too much')", "pass"),
            ("is_even", "return number % 2 == 0", "return number % 2 != 0"),
            ("is_even", "return number % 2 == 0", "return True"),
            ("is_even", "return number % 2 == 0", "return False"),
            ("is_even", "return number % 2 == 0", "return number * 2 == 0"),
            ("is_even", "return number % 2 == 0", "return number % 3 == 0"),
            ("is_even", "return number % 2 == 0", "return number % 1 == 0"),
            ("is_even", "return number % 2 == 0", "return number % 2 == 1"),
            ("is_even", "return number % 2 == 0", "return number % 2 == -1"),
        ]

    def test_a_bare_statement_is_named_by_that_around_it(self, toy: Path) -> None:
        (toy / "toy.py").write_text(
            "def f(a, b):\n    if a:\n        return\n    for _ in b:\n        break\n    else:\n        return\n"
        )
        bare = [(each.was, each.now) for each in mutants(toy, "toy.py") if each.now.endswith(("pass", "continue"))]
        loop = "for _ in b:"
        assert bare == [
            ("if a: return", "if a: pass"),
            (f"{loop} break", f"{loop} continue"),
            (f"{loop} return", f"{loop} pass"),
        ]

    def test_sizes_of_memory_stay(self, toy: Path) -> None:
        (toy / "toy.py").write_text("A = 32 << 20\nB = 64 * 1024\nC = 1 << 5\n")
        assert {each.was for each in mutants(toy, "toy.py")} == {"C = 1 << 5"}

    @pytest.mark.parametrize(
        "file", ["cdfd/delta/commit.py", "cdfd/sinks/kafka/records/batches.py", "cdfd/trevni/values/lengths.py"]
    )
    def test_each_is_a_module_that_differs_in_the_named_lines(self, file: str) -> None:
        source = (ROOT / file).read_text()
        before = ast.dump(ast.parse(source))
        made = mutants(ROOT, file)
        for mutant in made[:: len(made) // 40]:
            tree = mutate(source, mutant.number)
            compile(tree, file, "exec")
            assert ast.dump(tree) != before
            assert 1 <= mutant.lines[0] <= mutant.lines[1] <= source.count("\n")

    def test_a_sample_stays_where_lines_move(self, toy: Path) -> None:
        chosen = [mutant.key for mutant in sample(mutants(toy, "toy.py"), 5, "1")]
        (toy / "toy.py").write_text(MODULE.replace("\n\n", "\n\n# a comment\n\n"))
        assert [mutant.key for mutant in sample(mutants(toy, "toy.py"), 5, "1")] == chosen
        assert [mutant.key for mutant in sample(mutants(toy, "toy.py"), 5, "2")] != chosen


class TestTrials:
    NAMES = ("test_toy.py::test_total", "test_toy.py::test_even", "test_toy.py::test_odd")

    @pytest.mark.parametrize(
        ("now", "verdict"),
        [
            ("return number % 2 != 0", Verdict("killed", NAMES[1])),
            ("return True", Verdict("killed", NAMES[2])),
            ("if result >= most:", Verdict("survived")),
            ("while not numbers:", Verdict("killed", NAMES[0])),
        ],
    )
    def test_a_mutant_is_judged_by_the_tests_and_the_file_stays(self, toy: Path, now: str, verdict: Verdict) -> None:
        assert judge(toy, one(toy, now), self.NAMES, 60) == verdict
        assert judge(toy, None, self.NAMES, 60) == Verdict("survived")
        assert (toy / "toy.py").read_text() == MODULE

    def test_only_the_chosen_tests_are_run(self, toy: Path) -> None:
        assert judge(toy, one(toy, "return number % 2 != 0"), self.NAMES[:1], 60) == Verdict("survived")

    def test_one_that_never_ends_is_ended(self, toy: Path) -> None:
        (toy / "toy.py").write_text(
            MODULE.replace("while numbers:", "while len(numbers) > 0:").replace("pop()", "pop(0)")
        )
        (toy / "test_toy.py").write_text("import toy\n\ndef test_total():\n    while toy.is_even(3):\n        pass\n")
        assert judge(toy, one(toy, "return True"), ["test_toy.py::test_total"], 5) == Verdict("timeout")


def test_a_child_gets_its_memory_beyond_what_its_parent_has_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocators of a worker that has run hundreds of modules reserve gigabytes, and a child had none left."""
    monkeypatch.setattr(forks, "_MEMORY", 256 << 20)
    with mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        assert forks.call(lambda: len(bytes(100 << 20)), 60) == 100 << 20


class TestLines:
    FILES = frozenset({"toy.py"})

    def test_tests_by_the_lines_that_they_run(self, toy: Path, tmp_path: Path) -> None:
        recorded = lines.record(toy, tmp_path / "cache", ["test_toy.py"], self.FILES)
        even = one(toy, "return True")
        # The line of a fixture that tests share counts for all of them.
        assert set(recorded.tests("toy.py", range(even.lines[0], even.lines[1] + 1))) == set(TestTrials.NAMES)
        summed = one(toy, "result = 1")
        assert not summed.imported
        assert TestTrials.NAMES[0] in recorded.tests("toy.py", [summed.lines[0]])
        assert one(toy, "LIMIT = 4").imported

    def test_it_is_recorded_again_where_a_test_or_a_file_of_its_lines_has_changed(
        self, toy: Path, tmp_path: Path
    ) -> None:
        cache = tmp_path / "cache"
        (toy / "other.py").write_text("")

        def record() -> set[str]:
            return set(
                lines.record(toy, cache, ["test_toy.py"], self.FILES | {"other.py"}).recordings["test_toy.py"].seconds
            )

        assert record() == set(TestTrials.NAMES)
        (kept,) = cache.iterdir()
        before = kept.read_bytes()
        (toy / "other.py").write_text("x = 1")
        assert record() == set(TestTrials.NAMES)
        assert kept.read_bytes() == before
        (toy / "toy.py").write_text(MODULE + "\n")
        record()
        assert kept.read_bytes() != before
        (toy / "test_toy.py").write_text(TESTS.replace("def test_even", "def test_other"))
        assert "test_toy.py::test_other" in record()


def test_each_survivor_that_is_explained_is_a_mutant_of_today() -> None:
    explained = explanations()
    keys = {mutant.key for file in {key[0] for key in explained} for mutant in mutants(ROOT, file)}
    assert explained - keys - {(*key[:3], "") for key in keys} == set()


def test_explanation_of_a_statement_is_one_of_each_change(toy: Path) -> None:
    first, second, third = mutants(toy, "toy.py")[:3]
    statement = frozenset({("toy.py", "", "LIMIT = 3", "")})
    assert [is_explained(mutant, statement) for mutant in (first, second, third)] == [True, True, False]
    assert [is_explained(mutant, frozenset({first.key})) for mutant in (first, second)] == [True, False]
