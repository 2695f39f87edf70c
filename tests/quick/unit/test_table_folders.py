"""Locations that cdfd writes to are compared with the folders of tables."""

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdfd.config.parser import parse
from cdfd.config.table_folders import TableFolders, canonical


def problem(place: Path, table: Path) -> tuple[int, str] | None:
    return TableFolders([str(table)]).around(str(place))


def test_a_sink_in_the_folder_of_a_table_is_refused_by_every_name(tmp_path: Path) -> None:
    table = tmp_path / "lake/good"
    (table / "_own").mkdir(parents=True)
    (table / "_seen").symlink_to("part")
    (table / "away").symlink_to("../other")
    (tmp_path / "link").symlink_to(table)
    for place in ("link", "link/out", "lake/good/out", "lake/good/_seen/out"):
        for root in (table, tmp_path / "link"):
            assert problem(tmp_path / place, root) is not None, (place, root)
    assert problem(table / "away/out", table) is not None  # a link in the folder that leads out of it
    for place in ("link/_own", "lake/good/_own/out", "lake/other"):
        assert problem(tmp_path / place, table) is None, place


LOCATIONS = st.lists(st.sampled_from(["a", "b", "_a", ".b", "_delta_log"]), max_size=4).flatmap(
    lambda names: st.sampled_from(["/nowhere/", "file:///nowhere/", "s3://", "/"]).map(
        lambda root: root + "/".join(names)
    )
)


@given(place=LOCATIONS, tables=st.lists(LOCATIONS, max_size=6))
@example(place="/nowhere", tables=["s3://nowhere", "/"])
def test_the_first_table_around_a_location_is_named(place: str, tables: list[str]) -> None:
    def is_around(table: str) -> bool:
        inner, outer = canonical(place), canonical(table)
        below = inner.removeprefix(outer).removeprefix("/").partition("/")[0]
        apart = inner != outer and not inner.startswith(f"{outer}/")
        return not apart and (not below.startswith(("_", ".")) or below == "_delta_log")

    around = TableFolders(tables).around(place)
    expected = next((index for index, table in enumerate(tables) if is_around(table)), None)
    assert (None if around is None else around[0]) == expected


@pytest.mark.parametrize("kind", ["files", "delta"])
def test_links_are_resolved_as_often_as_there_are_tables(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for each pair: a thousand tables would take a minute to load."""
    resolved = list[object]()

    realpath = os.path.realpath

    def resolve(place: str) -> str:
        resolved.append(place)
        return realpath(place)

    monkeypatch.setattr(os.path, "realpath", resolve)
    tables = "".join(f"  - uri: /lake/t{number}\n" for number in range(100))
    parse(f"pipeline: p\nsink: {{kind: {kind}, path: /out}}\ntables:\n{tables}", {})
    assert 100 < len(resolved) <= 500
