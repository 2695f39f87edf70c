"""Numbers of variable length, many at once: seven bits a byte, and the lowest first; the high bit says that another byte follows.

The ends are where the high bit is clear, so no number has to be decoded to find the next one. Eight bytes are loaded for each number,
and their groups of seven bits are moved together in three steps:

    0aaaaaaa 0bbbbbbb 0ccccccc 0ddddddd ...  ->  00aaaaaaabbbbbbb ...  ->  0000aaaaaaabbbbbbbcccccccddddddd ...  ->  56 bits
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from cdfd.errors import TrevniError

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

PADDING = 16
"""Bytes behind the data that may be read, of any value: numbers are loaded eight bytes at a time."""
_CHUNK = 16_384
"""Numbers that are decoded together: they stay in the processor's cache."""
_WORD = 8

_MASKS = np.array([0, *((1 << (8 * width)) - 1 for width in range(1, 9)), (1 << 64) - 1, (1 << 64) - 1], np.uint64)
"""The bytes of a loaded word that belong to a number, by its length."""


def _word(number: int) -> np.uint64:
    return np.uint64(number)


def ends(data: Bytes, blocks: Numbers) -> tuple[Numbers, Numbers]:
    """Where the numbers end, and how many each block has.

    Args:
        data: the blocks, without padding. They contain nothing but numbers.
        blocks: where each block begins, and the end of the last.

    Raises:
        TrevniError: a block ends within a number; it names the block, counted from the first of `blocks`.
    """
    last = np.flatnonzero(data < 0x80)
    nonempty = np.flatnonzero(blocks[1:] > blocks[:-1])
    cut = nonempty[data[blocks[1:][nonempty] - 1] >= 0x80]
    if cut.size:
        raise TrevniError("the block ends within a number").at(block=int(cut[0]))
    places = np.searchsorted(last, blocks)
    return last, np.diff(places)


def unsigned(padded: Bytes, last: Numbers, most: int = 10) -> Words:
    """The numbers that end at `last`, as they are in the bytes.

    Args:
        padded: the data, with `PADDING` behind it.
        last: position of each number's last byte. Each number begins after the one before it.
        most: bytes of a number, at most: 5 or 10.

    Raises:
        TrevniError: a number has more bytes or bits.
    """
    found = np.empty(len(last), np.uint64)
    words: Words = np.ndarray((len(padded) - _WORD + 1,), "<u8", buffer=padded.data, strides=(1,))
    before = np.int64(-1)
    for at in range(0, len(last), _CHUNK):
        ending = last[at : at + _CHUNK]
        first = np.empty_like(ending)
        first[0] = before + 1
        np.add(ending[:-1], 1, out=first[1:])
        before = ending[-1]
        found[at : at + _CHUNK] = _decoded(padded, words, first, ending - first + 1, most)
    return found


def _decoded(padded: Bytes, words: Words, first: Numbers, widths: Numbers, most: int) -> Any:
    longest = int(widths.max())
    if longest > most:
        raise TrevniError(f"a number has more than {most} bytes")
    if longest == 1:
        return padded.take(first)
    word = words[first]
    word &= _MASKS[widths]
    found = _joined(word, longest)
    if longest > _WORD:
        long = np.flatnonzero(widths > _WORD)
        ninth = padded[first[long] + 8].astype(np.uint64)
        found[long] |= (ninth & _word(0x7F)) << _word(56)
        longer = np.flatnonzero(widths > _WORD + 1)
        tenth = padded[first[longer] + 9].astype(np.uint64)
        if (tenth > 1).any():
            raise TrevniError("a number has more than 64 bits")
        found[longer] |= tenth << _word(63)
    if most == 5 and longest == 5 and (found >> _word(32)).any():
        raise TrevniError("a number has more than 32 bits")
    return found


def _joined(word: Words, longest: int) -> Words:
    """Words of at most eight groups of seven bits, each in a byte, without the gaps."""
    word &= _word(0x7F7F7F7F7F7F7F7F)
    low = word & _word(0x007F007F007F007F)
    word &= _word(0x7F007F007F007F00)
    word >>= _word(1)
    word |= low
    if longest <= 2:
        return word
    low = word & _word(0x00003FFF00003FFF)
    word &= _word(0x3FFF00003FFF0000)
    word >>= _word(2)
    word |= low
    if longest <= 4:
        return word
    low = word & _word(0x000000000FFFFFFF)
    word &= _word(0x0FFFFFFF00000000)
    word >>= _word(4)
    word |= low
    return word


def signed(numbers: Words) -> Numbers:
    """Numbers from their zigzag form: 0, -1, 1, -2 from 0, 1, 2, 3. Takes the memory of `numbers`."""
    sign = numbers & _word(1)
    numbers >>= _word(1)
    np.negative(sign, out=sign)
    numbers ^= sign
    found: Numbers = numbers.view(np.int64)
    return found


def zigzag(numbers: Numbers) -> Words:
    """Numbers in their zigzag form: 0, 1, 2, 3 from 0, -1, 1, -2."""
    found: Words = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    return found


_LIMITS = np.array([1 << (7 * width) for width in range(1, 10)], np.uint64)


def widths(numbers: Words) -> Numbers:
    """Bytes of each number."""
    if not len(numbers) or (largest := int(numbers.max())) < 0x80:
        return np.ones(len(numbers), np.int64)
    if largest < 1 << 14:
        longer: Numbers = (numbers >= _LIMITS[0]).astype(np.int64)
        return longer + 1
    return 1 + np.searchsorted(_LIMITS, numbers, "right")


def put(target: Bytes, at: Numbers, numbers: Words, width: Numbers) -> None:
    """Write numbers of those widths at those positions."""
    if not len(numbers):
        return
    longest = int(width.max())
    if longest == 1:
        target[at] = numbers
        return
    for place in range(longest):
        some = slice(None) if place == 0 else np.flatnonzero(width > place)
        group = (numbers[some] >> _word(7 * place)) & _word(0x7F)
        more = (width[some] > place + 1).astype(np.uint8) << 7
        target[at[some] + place] = group.astype(np.uint8) | more


def encoded(numbers: Words, width: Numbers) -> Bytes:
    """The bytes of all numbers, one after the other."""
    target = np.empty(int(width.sum()), np.uint8)
    put(target, np.cumsum(width) - width, numbers, width)
    return target
