"""Aligned rows of `cdfd tail --pretty`: values of all kinds, changed columns, hostile texts."""

from io import BytesIO

import pyarrow as pa
import pytest

from cdfd.cli.commands.tail_pretty import PrettyOutput
from cdfd.model.columns import VersionColumns, constant_type


def changes(columns: dict[str, pa.Array], version: int = 1) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))
    table = pa.RecordBatch.from_pydict({**columns, "_change_type": constant_type("insert", count)})
    return VersionColumns(version, 0).complete(table, 0)


def lines(*batches: pa.RecordBatch) -> list[str]:
    out = BytesIO()
    output = PrettyOutput(out, meta=False)
    for batch in batches:
        output.write(batch)
    return out.getvalue().decode().split("\n")[:-1]


def test_numbers_keep_all_their_digits() -> None:
    decimal = pa.array(["12345678901234567890.10"]).cast(pa.decimal128(38, 2))
    assert lines(changes({"d": decimal, "n": pa.array([2**63 - 1])}))[1].split() == [
        "12345678901234567890.10",
        "9223372036854775807",
    ]


def test_nested_values_are_json_and_nulls_are_named() -> None:
    nested = pa.array([{"a": [1, 2], "b": "x"}])
    assert lines(changes({"s": nested, "t": pa.array([None], pa.string())}))[1] == '{"a":[1,2],"b":"x"}  null'


def test_texts_cannot_control_the_terminal() -> None:
    text = "\x1b[2J\n[bold]x[/bold] :smile: \u202e"
    assert lines(changes({"t": pa.array([text])}))[1] == r"\x1b[2J\n[bold]x[/bold] :smile: \u202e"


def test_long_text_lacks_its_middle() -> None:
    text = lines(changes({"t": pa.array(["x" * 10_000 + "y"])}))[1]
    assert len(text) <= 200
    assert " characters … " in text
    assert text.endswith("xy")


def test_names_come_again_when_columns_change_and_widths_only_grow() -> None:
    wide, narrow = (
        changes({"a": pa.array(["long text"]), "b": pa.array([1])}),
        changes({"a": pa.array(["x"]), "b": pa.array([2])}),
    )
    assert lines(wide, narrow, changes({"a": pa.array(["y"])})) == [
        "a          b",
        "long text  1",
        "x          2",
        "a",
        "y",
    ]


def test_wide_characters_take_two_columns() -> None:
    assert lines(changes({"t": pa.array(["日本", "abcd"]), "n": pa.array([1, 2])}))[1:] == ["日本  1", "abcd  2"]


def test_rows_are_printed_although_a_terminal_has_no_room_for_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = BytesIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    PrettyOutput(out, meta=True).write(changes({f"c{number}": pa.array([8]) for number in range(50)}))
    header, row = out.getvalue().decode().split("\n")[:-1]
    assert (header.count("c"), row.count("8")) == (51, 50)
