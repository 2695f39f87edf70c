"""The page of Spark shows the options with which the tests of this folder start their applications."""

import re
from pathlib import Path

from tests.cluster.standalone import PYTHON, sent

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_the_options_are_those_of_the_tests() -> None:
    section = PAGE.read_text().partition("## On a cluster")[2]
    (command,) = re.findall(r"^PYTHONPATH=cdfd.zip spark-submit (?:.*\\\n)*.*", section, re.MULTILINE)
    shown = command.replace("\\\n", " ").split()
    tested = sent(Path("environment.tar.gz"), Path("cdfd.zip"))
    for name, value in zip(tested[::2], tested[1::2], strict=True):
        assert shown[shown.index(name) + 1] == value
    for name, value in PYTHON.items():
        assert f"{name}={value}" in shown
