"""A scan: which rows of a file to read, and what they are. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdfd.delta.actions import DeletionVectorDescriptor, PartitionValues
from cdfd.delta.types.schema import TableSchema

ChangeType = Literal["insert", "delete"]
ImagePhase = Literal["early", "late", "as_written"]


@dataclass(frozen=True, slots=True)
class RowIds:
    """The row ids of a file that does not store them.

    Attributes:
        base: id of the file's first row; each following row has the next one.
        version: commit version of its rows.
    """

    base: int
    version: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """A part of a refined version.

    Attributes:
        number: of the bucket.
        of: how many there are.
        ordinal: `_change_ordinal` of the first row, or less than that of the row before.
    """

    number: int
    of: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class FileScan:
    """Rows of one file, all of one change type, or each with its own (`change_type` None: a change data file).

    Attributes:
        path: as in the log, URI-decoded.
        change_type: of all rows; None if the file's `_change_type` column has it.
        partition_values: of the file, by physical column name.
        size: in bytes; 0 if the log does not say.
        only: the rows to read; None for all.
        without: of those, the rows to leave out; None for none.
        schema: the schema to read the file in, if it is not the plan's: rows that a version deletes while it replaces the schema.
        image_phase: of a change data file, the phase to read (see `cdfd.scan.image_order`). None for both phases, one after the other;
            `as_written` for rows in the order of the file, for consumers that need no order.
        pairs: False if adjacent images of a change data file are known not to be pairs.
        piece: (number, of how many) of a data file that is read in pieces, by its row groups; None for all of it.
        row_ids: of a data file whose rows are matched by their ids; None for all others.
        bucket: the rows of a refined version that this is, from all of its files (see `cdfd.model.refinement`). None for a scan of a file.
        num_records: rows of the file, as the log says; None if it does not.
    """

    path: str
    change_type: ChangeType | None
    partition_values: PartitionValues
    size: int
    only: DeletionVectorDescriptor | None = None
    without: DeletionVectorDescriptor | None = None
    schema: TableSchema | None = None
    image_phase: ImagePhase | None = None
    pairs: bool = True
    piece: tuple[int, int] | None = None
    row_ids: RowIds | None = None
    bucket: Bucket | None = None
    num_records: int | None = None

    @property
    def share(self) -> int:
        """Bytes of the file that count for this scan. A file that is read in two phases or in pieces counts once in total."""
        if self.piece is not None:
            number, pieces = self.piece
            return self.size * (number + 1) // pieces - self.size * number // pieces
        if self.image_phase not in ("early", "late"):
            return self.size
        return self.size // 2 if self.image_phase == "late" else self.size - self.size // 2
