"""Row options: what they refuse, and that each one reaches the value from each syntax."""

import inspect
import pickle
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pytest
import typer

import cdfd
from cdfd.cli import app
from cdfd.config.shapes import shape_of
from cdfd.config.table import Table
from cdfd.delta.types.schema import TableSchema, from_arrow
from cdfd.errors import ConfigError
from cdfd.plan.row_options import AS_STORED, RowOptions
from cdfd.plan.shape.shape import Shape

SETTINGS = {
    "changes": "files",
    "refine": "rows",
    "key": ("id",),
    "columns": ["id", {"name": "v", "as": "value"}],
    "where": "v > 1",
    "mask": {"v": {"method": "nullify"}},
    "exclude_change_types": ("delete",),
    "drop_unchanged": True,
}
"""Each option with another value than its default, as a configuration names it."""


def of_settings(**options: Any) -> RowOptions:
    return Table.model_validate({"uri": "t", **options}).rows


def test_settings_of_all_options_give_the_value() -> None:
    rows = of_settings(**SETTINGS)
    shape = shape_of(*(SETTINGS[name] for name in ("where", "columns", "mask", "exclude_change_types")))  # type: ignore[arg-type]  # by name
    assert rows == RowOptions("files", "rows", ("id",), shape, drop_unchanged=True)
    assert all(getattr(rows, each.name) != each.default for each in fields(RowOptions))
    assert all(getattr(rows.shape, each.name) != each.default for each in fields(Shape))
    assert pickle.loads(pickle.dumps(rows)) == rows
    assert of_settings() == AS_STORED == RowOptions()


@pytest.mark.parametrize("function", [cdfd.changes, cdfd.follow])
def test_python_functions_have_all_options_of_a_configuration(function: Any) -> None:
    assert SETTINGS.keys() <= inspect.signature(function).parameters.keys()


def test_command_has_all_options_of_a_configuration() -> None:
    tail = typer.main.get_command(app).commands["tail"]  # type: ignore[attr-defined]  # a group
    assert SETTINGS.keys() <= {option.name for option in tail.params}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"changes": "cdc"}, "changes is 'cdc' (hint: One of: auto, cdf, files)"),
        ({"refine": "yes"}, "refine is 'yes' (hint: One of: off, rows, key, auto)"),
        ({"refine": "key"}, "refine is 'key', but there is no key (hint: Name the columns that identify a row: `key`)"),
    ],
)
def test_option_that_cannot_hold_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        RowOptions(**options)
    assert f"{raised.value.what} (hint: {raised.value.hint})" == message


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (RowOptions(key=("ID",)), None),
        (RowOptions(key=("no",)), "there is no column 'no'"),
        (RowOptions(shape=shape_of("no = 1")), "there is no column 'no'"),
        (RowOptions(shape=shape_of(columns=["id", "no"])), "no"),
        (RowOptions(key=("id",), shape=shape_of(mask={"id": "nullify"})), "gives different rows the same key"),
    ],
)
def test_columns_that_are_named_must_be_in_the_schema(rows: RowOptions, message: str | None) -> None:
    schema = TableSchema(from_arrow(pa.schema([("id", pa.int64()), ("v", pa.string())])))
    assert rows.names_columns
    if message is None:
        rows.check(schema)
    else:
        with pytest.raises(ConfigError, match=message):
            rows.check(schema)


def test_rows_are_plain_if_none_of_them_is_changed_or_left_out() -> None:
    assert RowOptions(key=("id",), refine="key").is_plain
    assert not RowOptions(shape=shape_of("id = 1")).is_plain
    assert not RowOptions(drop_unchanged=True).is_plain


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (AS_STORED, "net changes need a key"),
        (RowOptions(key=("id",), shape=Shape(excluded=("delete",))), "net changes need all change types"),
        (RowOptions(key=("id",), shape=shape_of(columns=["v"])), "`columns` leaves out id of the key"),
        (RowOptions(key=("id",), shape=shape_of(columns=["v", "ID"])), None),
    ],
)
def test_net_changes_need_the_key_and_all_change_types(rows: RowOptions, message: str | None) -> None:
    if message is None:
        rows.check_net()
    else:
        with pytest.raises(ConfigError, match=message):
            rows.check_net()
