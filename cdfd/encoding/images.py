"""Change rows with their keys: the two images of an update are kept together, those of a changed key are split.

Images are a pair where the post-image directly follows the pre-image, in one version and in `_change_ordinal`. Where
their keys differ, the pre-image becomes a delete and the post-image an insert: under its old key there is no such row
any more.

    update_preimage  {"id":1}        delete {"id":1}
    update_postimage {"id":2}   ->   insert {"id":2}

Writers may put the images of an update apart (see `cdfd.changes.image_order`). Those of one key that meet in a batch can be
brought together again.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdfd.changes.columns import CHANGE_COLUMNS, CHANGE_TYPES, types_from_file
from cdfd.changes.image_order import DELETE, INSERT, POST_IMAGE, PRE_IMAGE
from cdfd.encoding.keys import Rows
from cdfd.encoding.numbers import raw_values
from cdfd.encoding.pieces import Integers
from cdfd.encoding.records import HeaderColumns
from cdfd.errors import DataError

__all__ = [
    "DELETE",
    "INSERT",
    "POST_IMAGE",
    "PRE_IMAGE",
    "KeyedBatches",
    "KeyedRows",
    "change_codes",
    "check_change_columns",
]

HELD_ROWS: Final = 8_192
"""Pre-images that wait for their post-images, at most."""
_CHANGE_NAMES: Final = [each.name for each in CHANGE_COLUMNS]


@dataclass(frozen=True, slots=True, eq=False)
class KeyedRows:
    """Rows with nothing between them and what they belong to.

    Attributes:
        batch: change rows.
        codes: their change types, as positions in `CHANGE_TYPES`.
        keys: their keys; None where there is no key.
        moved: the deletes that were pre-images of a changed key; the row after each is the insert.
    """

    batch: pa.RecordBatch
    codes: npt.NDArray[np.int8]
    keys: pa.Array | None = None
    moved: Integers = field(default_factory=lambda: np.empty(0, np.int64))

    def key_headers(self, prefix: str) -> HeaderColumns:
        """`<prefix>.newkey` of deletes and `<prefix>.oldkey` of inserts that were one update. None where there is none."""
        if self.keys is None or not len(self.moved):
            return ()
        old, new = self.moved, self.moved + 1
        return (f"{prefix}.newkey", _spread(self.keys, old, new)), (f"{prefix}.oldkey", _spread(self.keys, new, old))


class KeyedBatches:
    """Gives rows their keys, batch after batch. With a key, a pre-image that ends a batch waits for what follows it.

    Args:
        keys: what makes keys of rows; None for none.
        reunite: whether a pre-image goes to just before the post-image of its key, where they are apart in a batch. It
            then takes the ordinal before that of the post-image.
    """

    def __init__(self, keys: Rows | None, *, reunite: bool = False) -> None:
        self._keys = keys
        self._reunite = reunite
        self._held: pa.RecordBatch | None = None

    def rows(self, batch: pa.RecordBatch) -> list[KeyedRows]:
        """The rows held back and these, but for pre-images at the end; none, or one or two lots of them.

        Raises:
            DataError: the batch does not end in the change columns, or what making the keys raises.
        """
        check_change_columns(batch.schema)
        if not batch.num_rows:
            return []
        if self._keys is None:
            return [KeyedRows(batch, change_codes(batch))]
        earlier, held = [], self._held
        if held is not None and held.schema == batch.schema:
            batch = pa.concat_batches([held, batch])
        elif held is not None:
            earlier = [self._keyed(held, change_codes(held), self._keys)]
        self._held = None
        codes = change_codes(batch)
        if codes[-1] == PRE_IMAGE:
            first = self._waiting(codes)
            # `take` copies: the batch must not live on for a few rows of it.
            self._held = batch.take(pa.array(np.arange(first, len(codes))))
            batch, codes = batch.slice(0, first), codes[:first]
        return [*earlier, self._keyed(batch, codes, self._keys)] if batch.num_rows else earlier

    def flush(self) -> list[KeyedRows]:
        """The rows held back, if there are any: nothing followed them."""
        held, self._held = self._held, None
        if held is None or self._keys is None:
            return []
        return [self._keyed(held, change_codes(held), self._keys)]

    def _waiting(self, codes: npt.NDArray[np.int8]) -> int:
        """The first of the pre-images at the end that wait for what follows."""
        if not self._reunite:
            return len(codes) - 1
        others = np.flatnonzero(codes != PRE_IMAGE)
        first = int(others[-1]) + 1 if len(others) else 0
        return first if len(codes) - first <= HELD_ROWS else len(codes) - 1

    def _keyed(self, batch: pa.RecordBatch, codes: npt.NDArray[np.int8], make_keys: Rows) -> KeyedRows:
        keys = make_keys(batch)
        pairs = _pairs(batch, codes)
        if self._reunite and (apart := _apart(batch, codes, pairs, keys)) is not None:
            order, batch = apart
            codes, keys = codes[order], keys.take(pa.array(order))
            pairs = _pairs(batch, codes)
        if len(pairs):
            differs = pc.not_equal(keys.take(pa.array(pairs)), keys.take(pa.array(pairs + 1)))
            pairs = pairs[differs.to_numpy(zero_copy_only=False)]
        if not len(pairs):
            return KeyedRows(batch, codes, keys)
        codes = codes.copy()
        codes[pairs], codes[pairs + 1] = DELETE, INSERT
        return KeyedRows(_with_codes(batch, codes), codes, keys, pairs)


def _pairs(batch: pa.RecordBatch, codes: npt.NDArray[np.int8]) -> Integers:
    """The pre-images that the post-image of the same update directly follows."""
    pairs = np.flatnonzero((codes[:-1] == PRE_IMAGE) & (codes[1:] == POST_IMAGE))
    if not len(pairs):
        return pairs
    versions, ordinals = _versions(batch), _ordinals(batch)
    follows = (versions[pairs] == versions[pairs + 1]) & (ordinals[pairs + 1] - ordinals[pairs] == 1)
    found: Integers = pairs[follows]
    return found


def _versions(batch: pa.RecordBatch) -> Integers:
    return raw_values(batch.column(batch.num_columns - 3), np.int64)


def _ordinals(batch: pa.RecordBatch) -> Integers:
    return raw_values(batch.column(batch.num_columns - 1), np.int64)


def _apart(
    batch: pa.RecordBatch, codes: npt.NDArray[np.int8], pairs: Integers, keys: pa.Array
) -> tuple[Integers, pa.RecordBatch] | None:
    """The order in which images of one key that are apart are together, and the batch in it. None where there are none.

    Keys that several such pre-images have, or several post-images, stay as they are: which belong together is not known.
    """
    lone = (codes == PRE_IMAGE) | (codes == POST_IMAGE)
    lone[pairs] = lone[pairs + 1] = False
    old, new = np.flatnonzero(lone & (codes == PRE_IMAGE)), np.flatnonzero(lone & (codes == POST_IMAGE))
    if not len(old) or not len(new):
        return None
    same = keys.take(pa.array(np.concatenate((old, new)))).dictionary_encode()
    numbers, different = same.indices.to_numpy(), len(same.dictionary)
    of_old, of_new = numbers[: len(old)], numbers[len(old) :]
    once = (np.bincount(of_old, minlength=different) == 1) & (np.bincount(of_new, minlength=different) == 1)
    place = np.zeros(different, np.int64)
    place[of_old] = old
    new, old = new[once[of_new]], place[of_new[once[of_new]]]
    versions = _versions(batch)
    found = (old < new) & (versions[old] == versions[new])
    old, new = old[found], new[found]
    if not len(new):
        return None
    places = 2 * np.arange(len(codes))
    places[old] = places[new] - 1
    order = np.argsort(places, kind="stable")
    ordinals = _ordinals(batch).copy()
    ordinals[old] = ordinals[new] - 1
    position = batch.num_columns - 1
    numbered = batch.set_column(position, batch.schema.field(position), pa.array(ordinals))
    return order, numbered.take(pa.array(order))


def check_change_columns(schema: pa.Schema) -> None:
    """`DataError` where rows do not end in the four change columns."""
    if schema.names[-len(_CHANGE_NAMES) :] != _CHANGE_NAMES:
        raise DataError(f"change rows have to end in {', '.join(_CHANGE_NAMES)}, not in {schema.names[-4:]}")


def change_codes(batch: pa.RecordBatch) -> npt.NDArray[np.int8]:
    """The change types of rows, as positions in `CHANGE_TYPES`. `DataError` where one is none of them."""
    types = batch.column(batch.num_columns - len(_CHANGE_NAMES))
    if not (pa.types.is_dictionary(types.type) and types.dictionary.equals(CHANGE_TYPES) and not types.null_count):
        types = types_from_file(types)
    codes: npt.NDArray[np.int8] = types.indices.to_numpy().astype(np.int8, copy=False)
    return codes


def _with_codes(batch: pa.RecordBatch, codes: npt.NDArray[np.int8]) -> pa.RecordBatch:
    position = batch.num_columns - len(_CHANGE_NAMES)
    types = pa.DictionaryArray.from_arrays(pa.array(codes), CHANGE_TYPES)
    return batch.set_column(position, batch.schema.field(position), types.cast(batch.schema.field(position).type))


def _spread(keys: pa.Array, rows: Integers, others: Integers) -> pa.Array:
    """For each of `rows` the key of the row in `others`, null for all other rows."""
    index, absent = np.zeros(len(keys), np.int64), np.ones(len(keys), np.bool_)
    index[rows], absent[rows] = others, False
    return keys.take(pa.array(index, mask=absent))
