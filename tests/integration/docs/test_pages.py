"""Commands and Python code on pages give the outputs that the pages show.

`make docs` rewrites the outputs on pages, except those with a line `...`.
"""

import os
import socket
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.support.docs.pages import Tour
from tests.support.docs.played import ALONE, CONTROLS, DEMO, FIVE_MINUTES, FRONT, MANY, SIZING, TREVNI
from tests.support.docs.sized_tables import create_sized_tables
from tests.support.kafka.shared import SharedBroker
from tests.support.spark import environments

ROOT = Path(__file__).parents[3]


def tour(folder: Path, broker: str = "localhost:9092") -> Tour:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # The daemon's default port may be in use on this machine.
    places = {f"{host}:9464": f"{host}:{port}" for host in ("localhost", "127.0.0.1")}
    settings = f"http: {{listen: 127.0.0.1:{port}}}"
    update = os.environ.get("CDFD_DOCS") == "update"
    return Tour(folder / "tour", places | {"localhost:9092": broker}, settings, update)


@pytest.mark.parametrize(
    ("page", "agrees"),
    [
        ("$ echo a; echo 2026-01-01T00:00:00.000Z\na\n2026-12-31T23:59:59.000Z", True),
        ("$ echo a\na\n$ echo b\nb", True),
        ("$ echo a; echo b; echo c\n...\nc", True),
        ("$ cat new\nwritten\n$ grep written new\nwritten", True),
        ("$ echo a\nb", False),
        ("$ echo a\n", False),
        ("$ echo a; echo b\na", False),
        ("$ echo a; echo b\n...\na", False),
        ("$ echo a\na\n...\nb", False),
    ],
)
def test_a_terminal(page: str, agrees: bool, tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(f"Text\n\n```\n{page}\n```\n\n```yaml\nno: terminal\n```\n")
    with tour(tmp_path) as played, nullcontext() if agrees else pytest.raises(AssertionError, match="the page says"):
        played.play(file)


def test_python(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("```python\nprint(6 * 7)\n```\n\n```\n41\n```\n")
    with tour(tmp_path) as played:
        with pytest.raises(AssertionError, match="42\n-- but the page says:\n41"):
            played.play(file)
        played.update = True
        played.play(file)
        assert file.read_text() == "```python\nprint(6 * 7)\n```\n\n```\n42\n```\n"
        file.write_text("```python\nraise SystemExit(3)\n```\n")
        with pytest.raises(AssertionError, match="SystemExit"):
            played.play(file)


def test_the_table_of_the_demo(tmp_path: Path) -> None:
    with tour(tmp_path) as played:
        played.python = str(environments.python(*environments.FRAMES))
        for page in DEMO:
            played.play(ROOT / "docs" / f"{page}.md")


def test_the_front_page(tmp_path: Path) -> None:
    with tour(tmp_path) as played:
        for page in FRONT:
            played.play(ROOT / f"{page}.md")


@pytest.mark.parametrize("page", ALONE)
def test_a_page_with_a_table_of_its_own(tmp_path: Path, page: str) -> None:
    with tour(tmp_path) as played:
        played.play(ROOT / "docs" / f"{page}.md")


def test_trevni(tmp_path: Path) -> None:
    with tour(tmp_path) as played:
        for page in TREVNI:
            played.play(ROOT / "docs" / f"{page}.md")


def test_controls(tmp_path: Path) -> None:
    with tour(tmp_path) as played:
        for page in CONTROLS:
            played.play(ROOT / "docs" / f"{page}.md")


def test_sizing(tmp_path: Path) -> None:
    with tour(tmp_path) as played:
        create_sized_tables(played.folder / "lake")
        for page in SIZING:
            played.play(ROOT / "docs" / f"{page}.md")


def test_many_tables(tmp_path: Path) -> None:
    with tour(tmp_path) as played:
        for page in MANY:
            played.play(ROOT / "docs" / f"{page}.md")


def test_five_minutes_and_what_follows_them(broker: SharedBroker, tmp_path: Path) -> None:
    with tour(tmp_path, broker.bootstrap_servers) as played:
        for page in FIVE_MINUTES:
            played.play(ROOT / "docs" / f"{page}.md")
