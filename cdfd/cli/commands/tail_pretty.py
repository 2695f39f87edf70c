"""Rows for people: `cdfd tail --pretty` aligns them in columns, the change type first, and colours them by it on a terminal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import BinaryIO, Final

import pyarrow as pa
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from cdfd.encode.json import LineEncoder
from cdfd.escaping import one_line
from cdfd.model.columns import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, without_change_columns

_TITLES: Final = {CHANGE_TYPE: "change", COMMIT_VERSION: "version", COMMIT_TIMESTAMP: "time"}
_STYLES: Final = {"insert": "green", "update_preimage": "dim yellow", "update_postimage": "yellow", "delete": "red"}
_LEAST: Final = {CHANGE_TYPE: max(map(len, _STYLES))}
"""Least widths of columns: a later row needs them."""
_ROWS: Final = 500
"""Rows that are aligned together. Columns are at least as wide as for the rows before."""
_LONGEST: Final = 200
"""Longest text of a value, in characters. A longer one lacks its middle."""
_NARROWEST: Final = 4
"""Narrowest column that is left of a wider one on a narrow terminal."""
_GAP: Final = "  "


class PrettyOutput:
    """Writes change rows as aligned columns.

    On a terminal, values that do not fit its width are cut, and colours show the change type, unless `NO_COLOR` is set.

    Args:
        out: receives UTF-8.
        meta: whether the change type, the version and its time come before the table's columns.
    """

    def __init__(self, out: BinaryIO, *, meta: bool) -> None:
        self._out = out
        self._meta = meta
        self._lines = LineEncoder()
        self._terminal = out.isatty()
        self._names: list[str] = []
        self._widths: list[int] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows. The names of columns come before the first rows, and again when they change."""
        table = without_change_columns(rows)
        if self._meta:
            fields = [rows.schema.field(name) for name in _TITLES]
            columns = [rows.column(name) for name in _TITLES]
            table = pa.RecordBatch.from_arrays([*columns, *table.columns], schema=pa.schema([*fields, *table.schema]))
        for start in range(0, table.num_rows, _ROWS):
            self._write(table.slice(start, _ROWS), rows.column(CHANGE_TYPE).slice(start, _ROWS).to_pylist())

    def _write(self, rows: pa.RecordBatch, change_types: Sequence[str]) -> None:
        names = [one_line(_TITLES.get(name, name), _LONGEST) for name in rows.schema.names]
        cells = [list(_cells(line)) for line in self._lines(rows).to_pybytes().decode().split("\n")[:-1]]
        styles = [_STYLES.get(change_type, "") for change_type in change_types]
        if names != self._names:
            self._names, self._widths = names, [_LEAST.get(name, 0) for name in rows.schema.names]
            cells, styles = [names, *cells], ["bold", *styles]
        columns = zip(self._widths, *cells, strict=True)
        self._widths = [max(width, *map(cell_len, column)) for width, *column in columns]
        widths, room = self._widths, shutil.get_terminal_size().columns
        if self._terminal:
            # Widths of columns that together have `room`, if that is possible: the widest ones lose most.
            limit = max([*widths, _NARROWEST])
            room -= len(_GAP) * (len(widths) - 1)
            while limit > _NARROWEST and sum(min(width, limit) for width in widths) > room:
                limit -= 1
            widths = [min(width, limit) for width in widths]
        kinds, is_a = rows.schema.types, pa.types
        right = [is_a.is_integer(kind) or is_a.is_floating(kind) or is_a.is_decimal(kind) for kind in kinds]
        lines = [_line(row, style, widths, right) for row, style in zip(cells, styles, strict=True)]
        text = StringIO()
        # Lines have their final form: the console only writes the colours that the terminal knows. It wraps nothing, and would write
        # nothing with a width below 1, which is what many columns leave of a terminal.
        console = Console(file=text, force_terminal=self._terminal, width=1, highlight=False, emoji=False)
        console.print(Text("\n").join(lines), soft_wrap=True)
        self._out.write(text.getvalue().encode())


def _cells(line: str) -> Iterator[str]:
    """The values of a JSON object without white space: strings without quotes, all others as they are in JSON."""
    decoder, at = json.JSONDecoder(), 1
    while at < len(line) - 1:
        _, colon = decoder.raw_decode(line, at)
        value, end = decoder.raw_decode(line, colon + 1)
        yield one_line(value if isinstance(value, str) else line[colon + 1 : end], _LONGEST)
        at = end + 1


def _line(cells: Sequence[str], style: str, widths: Sequence[int], right: Sequence[bool]) -> Text:
    texts = []
    for cell, width, is_right in zip(cells, widths, right, strict=True):
        text = Text(cell, end="")
        text.truncate(width, overflow="ellipsis")
        text.align("right" if is_right else "left", width)
        texts.append(text)
    line = Text(_GAP).join(texts)
    line.rstrip()
    line.stylize(style)
    return line
