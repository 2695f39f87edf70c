"""The options of change rows: their source, how updates are found, and their shape. Pure.

Configuration, commands, the Python API and Spark each build the value from what users write. It travels whole to the places where rows are
planned (`cdfd.log.stream`) and made (`cdfd.scan.execute`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from cdfd.delta.types.schema import TableSchema
from cdfd.errors import ConfigError
from cdfd.model.plan import Changes
from cdfd.model.refinement import Refine
from cdfd.plan.shape.shape import AS_IT_IS, Shape


@dataclass(frozen=True, slots=True)
class RowOptions:
    """The options of change rows. A value; it pickles, with the keys of masks.

    Attributes:
        changes: the source of change rows; see `cdfd.model.plan`.
        refine: how updates are found in versions without change data files; see `cdfd.plan.refining`.
        key: columns that identify a row.
        shape: columns, filter, masks and excluded change types.
        drop_unchanged: whether to leave out updates that change nothing.

    Raises:
        ConfigError: `changes` or `refine` is unknown, or `refine` is `key` and there is none.
    """

    changes: Changes = "auto"
    refine: Refine = "auto"
    key: tuple[str, ...] = ()
    shape: Shape = AS_IT_IS
    drop_unchanged: bool = False

    def __post_init__(self) -> None:
        for name, value, words in (("changes", self.changes, Changes), ("refine", self.refine, Refine)):
            if value not in get_args(words):
                raise ConfigError(f"{name} is {value!r:.100}", hint=f"One of: {', '.join(get_args(words))}")
        if self.refine == "key" and not self.key:
            raise ConfigError(
                "refine is 'key', but there is no key", hint="Name the columns that identify a row: `key`"
            )

    @property
    def is_plain(self) -> bool:
        """Whether rows stay as they were read, but for a choice of columns."""
        return self.shape.is_plain and not self.drop_unchanged

    @property
    def names_columns(self) -> bool:
        """Whether `check` depends on the schema."""
        return bool(self.key) or self.shape != AS_IT_IS

    @property
    def published_key(self) -> tuple[str, ...]:
        """The columns of the key by their published names."""
        return self.shape.published_key(self.key)

    def check(self, schema: TableSchema, *others: TableSchema) -> None:
        """Check that a table has all that is named, and that types fit. `others` are as in `Shape.check_rows`.

        Raises:
            ConfigError: a column is missing, a filter does not fit, or a mask hides the key or a type that it cannot hide.
        """
        if self.key:
            schema.select(self.key)
        self.shape.check(schema, self.key, *others)

    def check_net(self) -> None:
        """Check what net changes need.

        Raises:
            ConfigError: there is no key, the columns leave one of it out, or change types are excluded.
        """
        if self.shape.excluded:
            raise ConfigError("net changes need all change types", hint="Leave `exclude_change_types` out")
        if not self.key:
            raise ConfigError("net changes need a key", hint="Name the columns that identify a row: `key`")
        check_key_is_read(self.key, self.shape.names)


AS_STORED = RowOptions()
"""All rows and columns as the table has them."""


def check_key_is_read(key: Sequence[str], columns: Sequence[str] | None) -> None:
    """Check that the columns to read, or None for all, have those of a key.

    Raises:
        ConfigError: they leave one out.
    """
    chosen = {name.lower() for name in (key if columns is None else columns)}
    left = [name for name in key if name.lower() not in chosen]
    if left:
        raise ConfigError(f"`columns` leaves out {', '.join(left):.200} of the key", hint="Add the key to `columns`")
