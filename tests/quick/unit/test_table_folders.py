"""Locations that cdfd writes to are compared with the folders of tables."""

from pathlib import Path

from cdfd.config.table_folders import inside_table


def test_a_sink_in_the_folder_of_a_table_is_refused_by_every_name(tmp_path: Path) -> None:
    table = tmp_path / "lake/good"
    (table / "_own").mkdir(parents=True)
    (table / "_seen").symlink_to("part")
    (table / "away").symlink_to("../other")
    (tmp_path / "link").symlink_to(table)
    for place in ("link", "link/out", "lake/good/out", "lake/good/_seen/out"):
        for root in (table, tmp_path / "link"):
            assert inside_table(str(tmp_path / place), [str(root)]) is not None, (place, root)
    assert inside_table(str(table / "away/out"), [str(table)]) is not None  # a link in the folder that leads out of it
    for place in ("link/_own", "lake/good/_own/out", "lake/other"):
        assert inside_table(str(tmp_path / place), [str(table)]) is None, place
