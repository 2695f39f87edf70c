"""Change rows with their keys: the images of an update that changes the key are split.

Images are a pair where the post-image directly follows the pre-image, in one version and in `_change_ordinal`. Where
their keys differ, the pre-image becomes a delete and the post-image an insert: under its old key there is no such row
any more.

    update_preimage  {"id":1}        delete {"id":1}
    update_postimage {"id":2}   ->   insert {"id":2}
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.encode.cells.pieces import Integers
from cdfd.encode.encoding import Rows
from cdfd.encode.records import HeaderColumn, HeaderColumns
from cdfd.errors import DataError
from cdfd.model.columns import CHANGE_NAMES, CHANGE_TYPE, change_codes
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of, to_numpy
from cdfd.scan.image_order import DELETE, INSERT
from cdfd.scan.updates.whole_pairs import pairs_of, with_codes


@dataclass(frozen=True, slots=True, eq=False)
class KeyedRows:
    """Change rows and their keys.

    Attributes:
        batch: change rows.
        codes: their change types, as positions in `CHANGE_TYPES`.
        keys: their keys, without their wrapping; None where there is no key.
        moved: the deletes that were pre-images of a changed key; the row after each is the insert.
    """

    batch: pa.RecordBatch
    codes: npt.NDArray[np.int8]
    keys: pa.Array | None = None
    moved: Integers = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def of(cls, batch: pa.RecordBatch, make_keys: Rows | None) -> KeyedRows:
        """Rows with the keys that a function makes of them; None for no keys.

        Raises:
            DataError: the batch does not end in the change columns, or what making the keys raises.
        """
        check_change_columns(batch.schema)
        codes = change_codes(batch.column(CHANGE_TYPE))
        if make_keys is None:
            return cls(batch, codes)
        keys = make_keys(batch)
        pairs = pairs_of(batch, codes)
        if len(pairs):
            differs = pc.not_equal(keys.take(array_of(pairs)), keys.take(array_of(pairs + 1)))
            pairs = pairs[to_numpy(differs)]
        if not len(pairs):
            return cls(batch, codes, keys)
        codes = codes.copy()
        codes[pairs], codes[pairs + 1] = DELETE, INSERT
        return cls(with_codes(batch, codes), codes, keys, pairs)

    def pairs(self) -> Integers:
        """The pre-images of updates that keep their key; the row after each is the post-image."""
        return pairs_of(self.batch, self.codes)

    def key_headers(self, prefix: str) -> HeaderColumns:
        """`<prefix>.newkey` of deletes and `<prefix>.oldkey` of inserts that were one update. None where there is none.

        They have keys without the schema around them: Kafka Connect's default converter guesses the type of a header, and fails at a key
        with a schema.
        """
        if self.keys is None or not len(self.moved):
            return ()
        old, new = self.moved, self.moved + 1
        columns = []
        for name, rows, others in (("newkey", old, new), ("oldkey", new, old)):
            index, absent = np.zeros(len(self.keys), np.int64), np.ones(len(self.keys), np.bool_)
            index[rows], absent[rows] = others, False
            columns.append(HeaderColumn(f"{prefix}.{name}", self.keys.take(array_of(index, mask=absent))))
        return tuple(columns)


def check_change_columns(schema: pa.Schema) -> None:
    """`DataError` where rows do not end in the four change columns."""
    if schema.names[-len(CHANGE_NAMES) :] != CHANGE_NAMES:
        raise DataError(f"change rows have to end in {', '.join(CHANGE_NAMES)}, not in {schema.names[-4:]}")
