"""The first command of each page works when a reader copies it into an empty folder, after the installation."""

from pathlib import Path

import pytest

from tests.integration.docs.test_blocks import pages
from tests.integration.docs.test_pages import tour
from tests.support.docs.pages import steps

CONTINUES = {
    "backfill": "](tutorial.md)",
    "formats": "](tutorial.md)",
    "positions": "](tutorial.md)",
    "shards": "](many-tables.md)",
}
"""Pages that continue another one: its table, its configuration, its broker."""
NEEDS = {
    "s3": "AWS_ENDPOINT_URL",
    "kubernetes": "Helm",
    "spark": "PySpark",
    "spark-source": "PySpark",
    "spark-kafka": "PySpark",
    "spark-topics": "PySpark",
    "extending": "your package",
    "sizing": "your tables",
    "consume/python-cache": "Kafka",
}
"""Pages that need something besides cdfd, such as a server, and what they call it."""
FIRST = {name: page for name, page in pages() if any(steps(page.read_text())) and name not in {*CONTINUES, *NEEDS}}


@pytest.mark.parametrize("name", FIRST)
def test_first_command_works_in_an_empty_folder(name: str, tmp_path: Path) -> None:
    with tour(tmp_path) as played:
        played.play_beginning(FIRST[name])


def test_command_that_needs_another_page_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```\n$ cat a.yaml\npipeline: p\n$ cdfd tail shop/orders --until now\n```\n")
    with tour(tmp_path) as played, pytest.raises(AssertionError, match="the path does not exist"):
        played.play_beginning(page)


@pytest.mark.parametrize(("name", "text"), [*CONTINUES.items(), *NEEDS.items()])
def test_page_that_needs_more_says_so_before_its_first_command(name: str, text: str) -> None:
    page = dict(pages())[name].read_text()
    assert text in "\n".join(page.splitlines()[: next(steps(page)).first])


def test_every_exception_is_a_page_with_commands() -> None:
    assert {name for name, page in pages() if any(steps(page.read_text()))} >= {*CONTINUES, *NEEDS}
