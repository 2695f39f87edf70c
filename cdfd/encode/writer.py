"""The walk through a payload that all encodings share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from cdfd.encode.cells.pieces import Booleans, Cell, Integers, is_constant, join, join_between, literal
from cdfd.encode.payload import Constant, Group, Images, Joined, Payload, Value
from cdfd.encode.records import Wrapping
from cdfd.encode.values import Rules, cells
from cdfd.errors import CdfdError
from cdfd.runtime.arrays import array_of

_MOST_CONSTANTS: Final = 1_000


class Named(Protocol):
    """A field of a struct."""

    @property
    def name(self) -> str:
        """Its name in the table."""


FieldT = TypeVar("FieldT", bound=Named)


class Places(NamedTuple):
    """Where the structs of records are.

    Attributes:
        total: how many there are.
        rows: of each record its; None: each is the next one.
        nulls: which records have none, or None if all have one.
    """

    total: int
    rows: Integers | None = None
    nulls: Booleans | None = None


_Batches: TypeAlias = dict[int, list[Cell]]
"""The cells of batches, by the id of each. Several fields have rows of the same batch."""


class Writer(Generic[FieldT]):
    """Makes cells of values. Threads may share it."""

    def __init__(self) -> None:
        # With each field, so that no other one gets its id.
        self._constants: dict[tuple[int, str | int | None], tuple[FieldT, Cell]] = {}

    def rows(self, payload: Payload, fields: Sequence[FieldT], prefix: bytes = b"", suffix: bytes = b"") -> pa.Array:
        """One text per record, between the prefix and the suffix.

        Raises:
            DataError: a value that the encoding cannot represent.
        """
        separators = list(self.separators(fields))
        separators[0] = prefix + separators[0]
        separators[-1] += suffix
        return join(separators, self._cells(payload.values, fields, payload.count, {}), payload.count)

    def rows_between(self, payload: Payload, fields: Sequence[FieldT]) -> tuple[pa.Array, Wrapping]:
        """`rows` without what all of them begin and end with, and these two. Raises as `rows` does."""
        cells = self._cells(payload.values, fields, payload.count, {})
        return join_between(self.separators(fields), cells, payload.count)

    def _cells(self, values: Sequence[Value], fields: Sequence[FieldT], count: int, batches: _Batches) -> list[Cell]:
        return [self._cell(value, field, count, batches) for value, field in zip(values, fields, strict=True)]

    def _cell(self, value: Value, field: FieldT, count: int, batches: _Batches) -> Cell:
        if isinstance(value, Constant):
            # Most constants of a batch are those of the one before.
            cached = self._constants.get((id(field), value.value))
            if cached is None:
                alone = pa.nulls(1) if value.value is None else array_of([value.value])
                cell = self._cell(alone, field, count, batches)
                cached = field, literal(join([b"", b""], [cell], 1)[0].as_py())
                if len(self._constants) >= _MOST_CONSTANTS:
                    self._constants.clear()
                self._constants[id(field), value.value] = cached
            return cached[1]
        if isinstance(value, Group):
            inside = self._cells(value.values, self.fields(field), count, batches)
            return self.struct(field, inside, Places(count))
        if isinstance(value, Images):
            if id(value.batch) not in batches:
                batches[id(value.batch)] = self._cells(value.batch.columns, self.fields(field), count, batches)
            return self.struct(field, batches[id(value.batch)], Places(value.batch.num_rows, value.index, value.nulls))
        if isinstance(value, Joined):
            digits: list[Cell] = [
                literal(b"%d" % numbers[0]) if is_constant(numbers) else cells(array_of(numbers), Rules())
                for numbers in value.numbers
            ]
            return self.text(field, value.separators, digits, count)
        try:
            return self.array(value, field)
        except CdfdError as error:
            error.what = f"column {field.name}: {error.what}"
            raise

    @abstractmethod
    def fields(self, field: FieldT) -> Sequence[FieldT]:
        """The fields of a field that is a struct."""

    def separators(self, fields: Sequence[FieldT]) -> Sequence[bytes]:
        """The text before, between and after the cells of a struct; by default, there is none."""
        return [b""] * (len(fields) + 1)

    @abstractmethod
    def array(self, array: pa.Array, field: FieldT) -> Cell:
        """The cells of a column. `DataError` where a value cannot be represented."""

    @abstractmethod
    def text(self, field: FieldT, separators: Sequence[str], numbers: list[Cell], count: int) -> Cell:
        """The cells of texts, of which none is null: separators, and the cells of numbers between them."""

    @abstractmethod
    def struct(self, field: FieldT, cells: list[Cell], places: Places) -> Cell:
        """The cells of a struct, out of those of its fields."""
