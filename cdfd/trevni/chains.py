"""Finds where items begin that can only be found one after the other: strings after their lengths, and rows after their counts.

The begin of an item depends on the item before it, so a chain of them cannot be cut. But each block begins a chain of its own:

* With many blocks, the chains of all blocks go forward together: each step finds one item of every block.
* Text seldom has control characters, and short lengths are some. So a byte that is one, after a byte that is none, probably begins an item.
  Blocks are cut at some of these places, which gives many chains. If each chain ends where the next one begins, all places were right.
* With few blocks, the step from every byte is computed, as if an item began there, and then steps of two, four, eight items and so on.
  Positions 0 to 3 and the step of four give positions 4 to 7.

A step is a function from positions to the next positions. The fast ones know short items alone, and say `BEYOND` for others: then a slower
one takes over.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cdfd.errors import TrevniError
from cdfd.trevni.varints import Bytes, Numbers

Step: TypeAlias = Callable[[Numbers], Numbers]
Mask: TypeAlias = npt.NDArray[np.bool_]

BEYOND = 1 << 40
"""The next position of an item that a step does not know, or that is damaged; more than any position."""
TOGETHER = 24
"""Blocks from which their chains go forward together."""
TOGETHER_IN_NUMBERS = 200
"""The same for chains over numbers that are decoded already, whose steps take little time to compute."""
CUT_BYTES = 1024
"""Bytes between the places where a block of text is cut."""
_SEARCHED = 64
"""Bytes in which such a place is searched."""
WINDOW = 1 << 17
"""Bytes of a block whose steps are computed together."""
_ROUND = 64
"""Steps between two looks at the chains that have ended."""


def text_positions(
    data: Bytes, blocks: Numbers, steps: Sequence[Step], wide: int | None = None
) -> tuple[Numbers, Numbers]:
    """As `positions`, for items of text in `data`."""
    cuts = np.union1d(blocks, _places(data, int(blocks[-1])))
    if len(cuts) >= max(TOGETHER, len(blocks)):
        try:
            found, _ = positions(cuts, steps, wide)
        except TrevniError:
            # One of the places was none. The blocks themselves say whether they are damaged.
            pass
        else:
            return found, np.diff(np.searchsorted(found, blocks))
    return positions(blocks, steps, wide)


def _places(data: Bytes, end: int) -> Numbers:
    """Places that probably begin an item, about `CUT_BYTES` apart."""
    starts = np.arange(CUT_BYTES, end - _SEARCHED, CUT_BYTES)
    if not len(starts):
        return starts
    seen = data[starts[:, None] + np.arange(_SEARCHED)]
    control = (seen < 0x20) & (seen != 0x0A)
    begins = control[:, 1:] & (seen[:, :-1] >= 0x20)
    first = begins.argmax(axis=1)
    found: Numbers = (starts + first + 1)[begins.any(axis=1)]
    return found


def positions(
    blocks: Numbers, steps: Sequence[Step], wide: int | None = None, together: int = TOGETHER
) -> tuple[Numbers, Numbers]:
    """Where the items of all blocks begin, in order, and the number of items of each block.

    Args:
        blocks: where each block begins, and the end of the last.
        steps: from the fastest to the one that knows all items.
        wide: how many of the steps take little time for any byte, and can be computed for all bytes; None for all of them.
        together: blocks from which their chains go forward together.

    Raises:
        TrevniError: an item is damaged, or ends after its block; it names the block, counted from the first of `blocks`.
    """
    lanes = np.flatnonzero(blocks[1:] > blocks[:-1])
    counts = np.zeros(len(blocks) - 1, np.int64)
    if len(lanes) >= together:
        found = _together(blocks[lanes], blocks[lanes + 1], lanes, steps, counts)
    else:
        parts = [np.zeros(0, np.int64)]
        for lane in lanes:
            parts.append(_one(int(blocks[lane]), int(blocks[lane + 1]), int(lane), steps, wide))
            counts[lane] = len(parts[-1])
        found = np.concatenate(parts)
    return found, counts


def _together(starts: Numbers, ends: Numbers, lanes: Numbers, steps: Sequence[Step], counts: Numbers) -> Numbers:
    """The chains of many blocks. Sets their `counts`."""
    at, level = starts.copy(), 0
    rounds: list[tuple[Numbers, Numbers]] = []
    while len(at):
        path = np.empty((_ROUND + 1, len(at)), np.int64)
        path[0] = at
        step = steps[level]
        for number in range(_ROUND):
            path[number + 1] = step(path[number])
        inside = path < ends
        if (path[-1] >= BEYOND).any() and (unknown := _unknown(path, inside)).any():
            if level + 1 == len(steps):
                raise _damaged(int(lanes[np.flatnonzero(unknown)[0]]))
            level += 1
            continue
        over = path[-1] >= ends
        if over.any():
            _check_ends(path[:, over], ends[over], lanes[over])
        rounds.append((path, lanes))
        counts[lanes] += inside[:-1].sum(axis=0)
        at, ends, lanes = path[-1][~over], ends[~over], lanes[~over]
    return _ordered(rounds, counts)


def _unknown(path: Numbers, inside: Mask) -> Mask:
    """Chains that come to an item that the step does not know before they end."""
    known = path < BEYOND
    last = known.sum(axis=0) - 1
    return np.asarray(~known[-1] & np.take_along_axis(inside, last[None, :], 0)[0])


def _check_ends(path: Numbers, ends: Numbers, lanes: Numbers) -> None:
    """Check that the chains of ended blocks come to their ends exactly."""
    late = ~(path == ends).any(axis=0)
    if late.any():
        raise _late(int(lanes[np.flatnonzero(late)[0]]))


def _ordered(rounds: Sequence[tuple[Numbers, Numbers]], counts: Numbers) -> Numbers:
    """The positions of all rounds, block by block."""
    found = np.empty(int(counts.sum()), np.int64)
    place = np.cumsum(counts) - counts
    last = place + counts
    for path, lanes in rounds:
        target = place[lanes] + np.arange(_ROUND)[:, None]
        taken = target < last[lanes]
        found[target[taken]] = path[:-1][taken]
        place[lanes] += _ROUND
    return found


def _one(start: int, end: int, lane: int, steps: Sequence[Step], wide: int | None) -> Numbers:
    """The chain of one block."""
    parts, at, level = [], start, 0
    while at < end:
        if level == wide:
            rest = np.zeros(lane + 1, np.int64)
            one = (np.array([at]), np.array([end]), np.array([lane]))
            parts.append(_together(*one, steps[level:], rest)[-int(rest[lane]) :])
            at = end
            break
        size = min(WINDOW, end - at)
        following = steps[level](np.arange(at, at + size))
        found = _enumerated(following, at, size)
        after = int(following[found[-1]])
        found += at
        if after >= BEYOND:
            if level + 1 == len(steps):
                raise _damaged(lane)
            level += 1
            parts.append(found[:-1])
            at = int(found[-1])
            continue
        parts.append(found)
        at = after
    if at != end:
        raise _late(lane)
    return np.concatenate(parts)


def _enumerated(following: Numbers, start: int, size: int) -> Numbers:
    """The chain from position 0 on, of positions below `size`."""
    jump = np.empty(size + 1, np.int32)
    jump[:-1] = np.minimum(following - start, size)
    jump[-1] = size
    found = np.zeros(1, np.int32)
    while True:
        more = jump[found]
        found = np.concatenate((found, more))
        if more[-1] == size:
            return found[found < size].astype(np.int64)
        jump = jump.take(jump)


def _damaged(lane: int) -> TrevniError:
    return TrevniError("the block has a length that is negative, or longer than the block").at(block=lane)


def _late(lane: int) -> TrevniError:
    return TrevniError("the block ends within a value").at(block=lane)


class Headers:
    """The lengths before items: numbers of variable length, with as many bytes of content as `content` says of them.

    Args:
        padded: the data, with at least eight bytes behind it.
        content: bytes of content for numbers; negative for numbers that cannot be.
    """

    def __init__(self, padded: Bytes, content: Callable[[Numbers], Numbers]) -> None:
        self._padded = padded
        self._content = content
        self._last = len(padded) - 8
        numbers = np.arange(128)
        short = content((numbers >> 1) ^ -(numbers & 1))
        self._short = np.full(256, BEYOND)
        self._short[:128] = np.where(short < 0, BEYOND, short + 1)

    def short(self, at: Numbers) -> Numbers:
        """The next positions; `BEYOND` for lengths of more than one byte."""
        found = self._short.take(self._padded.take(at, mode="clip"))
        found += at
        return found

    def any(self, at: Numbers) -> Numbers:
        """The next positions; `BEYOND` for damaged lengths alone."""
        number, width = self.read(at)
        content = self._content(number)
        found = at + width + content
        found[(content < 0) | (width == 0) | (content > self._last)] = BEYOND
        return found

    def read(self, at: Numbers) -> tuple[Numbers, Numbers]:
        """The numbers at those positions, and their bytes: 0 for damaged ones."""
        first = self._padded.take(at, mode="clip").astype(np.int64)
        if not len(first) or first.max() < 0x80:
            return (first >> 1) ^ -(first & 1), np.ones(len(at), np.int64)
        number, width = first & 0x7F, np.ones(len(at), np.int64)
        more = np.flatnonzero(first >= 0x80)
        for place in range(1, 5):
            byte = self._padded.take(at[more] + place, mode="clip").astype(np.int64)
            number[more] |= (byte & 0x7F) << (7 * place)
            width[more] += 1
            more = more[byte >= 0x80]
            if not more.size:
                break
        width[more] = 0
        width[number >> 32 != 0] = 0
        return (number >> 1) ^ -(number & 1), width
