"""The key of a record: chooses its columns."""

import difflib
from collections.abc import Callable, Sequence

import pyarrow as pa

from cdfd.delta.types.datatypes import ByName
from cdfd.errors import MissingColumnError
from cdfd.model.columns import CHANGE_COLUMNS

Rows = Callable[[pa.RecordBatch], pa.Array]
"""Encodes rows, or some columns of them, of any schema that comes: `large_binary`, none null."""

Choice = Callable[[pa.Schema], Sequence[int]]
"""From a schema, the positions of the columns to encode."""


def every_column(schema: pa.Schema) -> Sequence[int]:
    """All of them, for values."""
    return range(len(schema))


class KeyColumns:
    """Finds the key's columns in the schema of each version; case does not count, as elsewhere in Delta.

    Args:
        names: the configured key, not empty.
        setting: the name of the setting, for messages.
    """

    def __init__(self, names: Sequence[str], setting: str = "key") -> None:
        self._names = tuple(names)
        self._setting = setting

    def __call__(self, schema: pa.Schema) -> Sequence[int]:
        """Their positions, in the order of the key.

        Raises:
            MissingColumnError: the table has no such column at this version.
        """
        table = schema.names[: -len(CHANGE_COLUMNS)]
        find = ByName({name: position for position, name in enumerate(table)})
        positions = []
        for name in self._names:
            places = find(name)
            if not places:
                near = difflib.get_close_matches(name, table, n=1)
                advice = f"Did you mean {near[0]!r:.200}?" if near else f"It has {', '.join(table[:50])}"
                remedy = f"change `{self._setting}`, and give the table a new topic"
                raise MissingColumnError(
                    f"the table has no column {name!r:.200}, which is in its `{self._setting}`",
                    hint=f"{advice}. If a writer renamed or dropped it, {remedy}",
                )
            positions.append(places[0])
        return positions
