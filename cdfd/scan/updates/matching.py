"""Matches the rows that a version removes with those that it adds: what only moved, what was updated, and the rest. Pure.

    removed  (1, a) (2, b) (3, c)
    added    (1, a) (2, x) (4, d)      by key:  1 moved, 2 is an update, 3 a delete, 4 an insert

Keys may repeat. Then rows are multisets: equal rows leave and come back in pairs, and what is left over is paired in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdfd.runtime.arrays import array_of
from cdfd.scan.file_reader import rows_at_once
from cdfd.scan.updates.equality import Integers, Mask, codes, same

_NO_ROWS: Integers = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Matched:
    """Rows by what happened to them, as positions among the removed and the added rows. Each in ascending order.

    Attributes:
        deleted: of the removed rows.
        before, after: the images of updates, of the removed and the added rows. Pairs are in the order of `after`.
        inserted: of the added rows.
        left, came: the images of updates that move a row to another key, in pairs.
    """

    deleted: Integers
    before: Integers
    after: Integers
    inserted: Integers
    left: Integers
    came: Integers

    @classmethod
    def of(cls, gone: Mask, come: Mask, before: Integers, after: Integers) -> Matched:
        """From the rows that are left: `gone` and `come` are the removed and the added rows that did not only move."""
        deleted, inserted = gone.copy(), come.copy()
        deleted[before] = False
        inserted[after] = False
        order = np.argsort(after, kind="stable")
        inserts = np.flatnonzero(inserted)
        return cls(np.flatnonzero(deleted), before[order], after[order], inserts, _NO_ROWS, _NO_ROWS)


def match(left: Integers, right: Integers, *, unique: bool = False) -> tuple[Integers, Integers]:
    """Positions of equal codes in both: the first of `left` with the first of `right`, the second with the second.

    Args:
        left, right: codes, from 0 on and dense.
        unique: whether it is known that no code is there twice on one side.
    """
    if not len(left) or not len(right):
        return _NO_ROWS, _NO_ROWS
    most = int(max(left.max(), right.max())) + 1
    if unique or not (_repeats(left, most) or _repeats(right, most)):
        places = np.full(most, -1, np.int64)
        places[right] = np.arange(len(right))
        positions = places[left]
        kept = np.flatnonzero(positions >= 0)
        return kept, positions[kept]
    left_order, right_order = np.argsort(left, kind="stable"), np.argsort(right, kind="stable")
    left_sorted, right_sorted = left[left_order], right[right_order]
    # The n-th of its code on the left goes with the n-th of that code on the right, if there is one.
    rank = np.arange(len(left)) - np.searchsorted(left_sorted, left_sorted)
    place = np.searchsorted(right_sorted, left_sorted) + rank
    there = place < len(right)
    there[there] = right_sorted[place[there]] == left_sorted[there]
    return left_order[there], right_order[place[there]]


def _repeats(numbers: Integers, most: int) -> bool:
    return bool(np.bincount(numbers, minlength=most).max() > 1)


def by_key(removed: pa.Table, added: pa.Table, key: Sequence[str]) -> Matched:
    """Match by the columns `key`, and compare all columns. Without a key, rows are equal or not, and there are no updates.

    Args:
        removed, added: rows in the same schema.
        key: columns of that schema.
    """
    count = removed.num_rows
    both = pa.concat_tables([removed, added])
    keys = codes([both.column(name) for name in key], both.num_rows, key=True)
    gone, come = np.ones(count, np.bool_), np.ones(added.num_rows, np.bool_)
    several = np.ones(both.num_rows, np.bool_)
    if key:
        # Only of keys that are there twice on a side.
        most = int(keys.max(initial=-1)) + 1
        repeats = [np.bincount(side, minlength=most) > 1 for side in (keys[:count], keys[count:])]
        several = (repeats[0] | repeats[1])[keys]
    if several.any():
        rows = np.flatnonzero(several)
        chosen = both.take(array_of(rows))
        row_codes = codes(chosen.columns, len(rows))
        first = int(np.searchsorted(rows, count))
        moved, arrived = match(row_codes[:first], row_codes[first:])
        gone[rows[:first][moved]] = False
        come[rows[first:][arrived] - count] = False
    if not key:
        return Matched.of(gone, come, _NO_ROWS, _NO_ROWS)
    left, right = np.flatnonzero(gone), np.flatnonzero(come)
    before, after = match(keys[:count][left], keys[count:][right])
    before, after = left[before], right[after]
    unchanged = equal_rows(removed, before, added, after)
    gone[before[unchanged]] = False
    come[after[unchanged]] = False
    return Matched.of(gone, come, before[~unchanged], after[~unchanged])


def by_row_id(
    removed: Integers, added: Integers, removed_versions: Integers, added_versions: Integers
) -> tuple[Mask, Mask, Integers, Integers]:
    """Match by row ids, which are unique on each side.

    Args:
        removed, added: row ids as dense numbers.
        removed_versions, added_versions: the commit version of each row: the last version that changed it.

    Returns:
        Which of the removed and the added rows did not only move, and the positions of both images of updates.
    """
    before, after = match(removed, added, unique=True)
    moved = removed_versions[before] == added_versions[after]
    gone, come = np.ones(len(removed), np.bool_), np.ones(len(added), np.bool_)
    gone[before[moved]] = False
    come[after[moved]] = False
    return gone, come, before[~moved], after[~moved]


def images_by_key(
    removed: pa.Table,
    added: pa.Table,
    key: Sequence[str],
    sides: tuple[Mask, Mask],
    before: Integers,
    after: Integers,
    lone: tuple[Integers, Integers] = (_NO_ROWS, _NO_ROWS),
) -> Matched:
    """Pair the images of updates by their keys. The images that are left are deletes and inserts.

    A consumer that keeps the last change of each key sees a chain of moved rows, such as 1 to 2 and 2 to 3, as a deleted row 1, an updated
    row 2 and an inserted row 3: no key is both left and reached.

    Args:
        removed, added: all rows of each side.
        key: columns of the rows.
        sides: which rows of each side did not only move.
        before, after: pre-images and post-images that are known to belong to one update each.
        lone: other pre-images and post-images.
    """
    left, came = _NO_ROWS, _NO_ROWS
    if any(map(len, lone)) or not equal_rows(removed, before, added, after, key).all():
        both = pa.concat_tables([removed.select(key), added.select(key)])
        keys = codes(both.columns, both.num_rows, key=True)
        olds, news = keys[: removed.num_rows], keys[removed.num_rows :]
        stays = olds[before] == news[after]
        left, came = before[~stays], after[~stays]
        old, new = np.concatenate([left, lone[0]]), np.concatenate([came, lone[1]])
        most = int(max(olds[old].max(initial=-1), news[new].max(initial=-1))) + 1
        # Keys that repeat are not unique: nothing says which of their images belong together.
        leaving, coming = np.bincount(olds[old], minlength=most), np.bincount(news[new], minlength=most)
        once = (leaving == 1) & (coming == 1)
        mine, theirs = old[once[olds[old]]], new[once[news[new]]]
        mine, theirs = mine[np.argsort(olds[mine])], theirs[np.argsort(news[theirs])]
        before, after = np.concatenate([before[stays], mine]), np.concatenate([after[stays], theirs])
        order = np.argsort(after, kind="stable")
        before, after = before[order], after[order]
        occupied = (leaving > 0) & (coming > 0)
        apart = occupied[olds[left]] | occupied[news[came]]
        left, came = left[~apart], came[~apart]
    gone, come = sides
    gone[before] = gone[left] = False
    come[after] = come[came] = False
    return Matched(np.flatnonzero(gone), before, after, np.flatnonzero(come), left, came)


def equal_rows(
    left: pa.Table, left_rows: Integers, right: pa.Table, right_rows: Integers, names: Sequence[str] | None = None
) -> Mask:
    """For each pair of rows, whether they are equal in the columns `names` (None: all)."""
    columns = left.column_names if names is None else list(names)
    left, right = left.select(columns), right.select(columns)
    equal = np.ones(len(left_rows), np.bool_)
    step = min(rows_at_once(side.num_rows, side.nbytes) for side in (left, right))
    for start in range(0, len(left_rows), step):
        block = slice(start, start + step)
        mine, theirs = left.take(array_of(left_rows[block])), right.take(array_of(right_rows[block]))
        for pair in zip(mine.columns, theirs.columns, strict=True):
            equal[block] &= same(*pair)
    return equal
