"""Reports of commands as aligned columns."""

import sys
from collections.abc import Sequence

from cdfd.escaping import one_line


def align_columns(rows: Sequence[Sequence[str]], numbers: int = sys.maxsize) -> str:
    """Rows of cells as aligned lines. Cells are escaped, because they may contain text from a table or a broker.

    Args:
        rows: of cells.
        numbers: columns from this one on are aligned to the right.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = ""
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        aligned = (cell.rjust(width) if place >= numbers else cell.ljust(width) for place, (cell, width) in cells)
        text += f"{'  '.join(aligned).rstrip()}\n"
    return text
