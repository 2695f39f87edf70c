# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Blocks of Trevni columns -> lengths and values.

Nothing of a block is trusted: each byte that is read lies before the block's end, and each that is written lies in the room that was given.
"""

from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cdfd.native.crc32 cimport cdfd_crc32, cdfd_has_crc32
from cdfd.native.kinds cimport BITS, FIXED, INTEGERS, NULLS, SLACK, TEXT, Kind

ctypedef const uint8_t* Bytes

cdef extern from *:
    """
    #if defined(__GNUC__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define CDFD_WORDS 1
    #define cdfd_low_bit(word) __builtin_ctzll(word)
    #else
    #define CDFD_WORDS 0
    #define cdfd_low_bit(word) 0
    #endif
    """
    const bint CDFD_WORDS
    int cdfd_low_bit(uint64_t word) noexcept nogil

cdef struct Column:
    Kind kind
    int width  # bytes of an integer or fixed value in memory
    int64_t* lengths  # NULL if it is no array column
    Py_ssize_t num_lengths
    Py_ssize_t room_of_lengths
    uint8_t* values  # or the text of strings
    Py_ssize_t num_bytes
    Py_ssize_t room_of_bytes
    int32_t* offsets  # of strings
    Py_ssize_t num_values
    Py_ssize_t room_of_values
    bint runs
    bint high  # whether a byte has its high bit set


cdef inline uint64_t _joined(uint64_t word) noexcept nogil:
    """Eight groups of seven bits, each in a byte, without the gaps."""
    word &= <uint64_t>0x7F7F7F7F7F7F7F7F
    word = (word & <uint64_t>0x007F007F007F007F) | ((word & <uint64_t>0x7F007F007F007F00) >> 1)
    word = (word & <uint64_t>0x00003FFF00003FFF) | ((word & <uint64_t>0x3FFF00003FFF0000) >> 2)
    return (word & <uint64_t>0x000000000FFFFFFF) | ((word & <uint64_t>0x0FFFFFFF00000000) >> 4)


cdef inline bint _varint(Bytes* place, Bytes end, uint64_t* found) noexcept nogil:
    """The number at a place, which moves behind it. Not more than ten bytes and 64 bits."""
    cdef Bytes at = place[0]
    cdef uint64_t word, stops
    cdef int shift = 0
    if at >= end:
        return False
    if at[0] < 0x80:
        found[0] = at[0]
        place[0] = at + 1
        return True
    if CDFD_WORDS and end - at >= 8:
        memcpy(&word, at, 8)
        stops = ~word & <uint64_t>0x8080808080808080
        if stops:
            found[0] = _joined(word & (stops ^ (stops - 1)))
            place[0] = at + (cdfd_low_bit(stops) >> 3) + 1
            return True
    word = 0
    while at < end:
        if shift == 63 and at[0] > 1:
            return False
        word |= <uint64_t>(at[0] & 0x7F) << shift
        if at[0] < 0x80:
            found[0] = word
            place[0] = at + 1
            return True
        at += 1
        shift += 7
        if shift > 63:
            return False
    return False


cdef inline bint _int(Bytes* place, Bytes end, int64_t* found) noexcept nogil:
    """A zigzag number of not more than five bytes and 32 bits."""
    cdef Bytes start = place[0]
    cdef uint64_t number
    if not _varint(place, end, &number) or place[0] - start > 5 or number >> 32:
        return False
    found[0] = <int64_t>(number >> 1) ^ -<int64_t>(number & 1)
    return True


cdef Py_ssize_t _alike(Column* column, Bytes* place, Bytes end, Py_ssize_t count) noexcept nogil:
    """Numbers that all have as many bytes as the first: the place of the next one is then known before this one is loaded.

    Returns how many there are; 0 if the first has more than eight bytes, or the block ends within them.
    """
    cdef Bytes at = place[0]
    cdef uint64_t word, stops, mask, stop, number
    cdef int width
    cdef Py_ssize_t found = 0
    cdef int64_t* longs = <int64_t*>column.values + column.num_values
    cdef int32_t* ints = <int32_t*>column.values + column.num_values
    if not CDFD_WORDS or count == 0 or end - at < 8:
        return 0
    memcpy(&word, at, 8)
    stops = ~word & <uint64_t>0x8080808080808080
    if stops == 0:
        return 0
    mask = stops ^ (stops - 1)
    stop = stops & mask
    width = (cdfd_low_bit(stops) >> 3) + 1
    if column.width == 4 and width > 4:
        return 0
    mask &= <uint64_t>0x8080808080808080
    while found < count and end - at >= 8:
        memcpy(&word, at, 8)
        if (~word & mask) != stop:
            break
        number = word & 0x7F if width == 1 else _joined(word & (stop | (stop - 1)))
        if column.width == 8:
            longs[found] = <int64_t>(number >> 1) ^ -<int64_t>(number & 1)
        else:
            ints[found] = <int32_t>(number >> 1) ^ -<int32_t>(number & 1)
        at += width
        found += 1
    place[0] = at
    return found


cdef bint _integers(Column* column, Bytes* place, Bytes end, Py_ssize_t count) noexcept nogil:
    """`count` numbers, or all of the block for a negative count."""
    cdef Bytes start
    cdef uint64_t number
    cdef int64_t value
    cdef Py_ssize_t some
    cdef Py_ssize_t left = count if count >= 0 else column.room_of_values - column.num_values
    if left > column.room_of_values - column.num_values:
        return False
    while left and (count > 0 or place[0] < end):
        some = _alike(column, place, end, left)
        column.num_values += some
        left -= some
        if some:
            continue
        start = place[0]
        if not _varint(place, end, &number):
            return False
        value = <int64_t>(number >> 1) ^ -<int64_t>(number & 1)
        if column.width == 8:
            (<int64_t*>column.values)[column.num_values] = value
        else:
            if value > INT32_MAX or value < INT32_MIN or (column.lengths == NULL and place[0] - start > 5):
                return False
            (<int32_t*>column.values)[column.num_values] = <int32_t>value
        column.num_values += 1
        left -= 1
    return count >= 0 or place[0] == end


cdef bint _fixed(Column* column, Bytes* place, Bytes end, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t size
    if count < 0:
        if (end - place[0]) % column.width:
            return False
        count = (end - place[0]) // column.width
    if count > column.room_of_values - column.num_values or count > (end - place[0]) // column.width:
        return False
    size = count * column.width
    memcpy(column.values + column.num_values * column.width, place[0], size)
    column.num_values += count
    place[0] += size
    return True


cdef bint _text(Column* column, Bytes* place, Bytes end, Py_ssize_t count) noexcept nogil:
    cdef Bytes at = place[0]
    cdef uint8_t* target = column.values + column.num_bytes
    cdef uint8_t* last = column.values + column.room_of_bytes
    cdef Py_ssize_t found = column.num_values
    cdef int64_t size
    while count and (count > 0 or at < end):
        if found >= column.room_of_values or not _int(&at, end, &size):
            return False
        if size < 0 or size > end - at or size > last - target:
            return False
        if size <= SLACK and end - at >= SLACK and last - target >= SLACK:
            memcpy(target, at, SLACK)
        else:
            memcpy(target, at, size)
        at += size
        target += size
        found += 1
        column.offsets[found] = <int32_t>(target - column.values)
        count -= 1
    column.num_bytes = target - column.values
    column.num_values = found
    place[0] = at
    return True


cdef bint _bits(Column* column, Bytes* place, Bytes end, Py_ssize_t count, bint own_bytes) noexcept nogil:
    """Bits behind a length, as bytes. Each of a run has a byte of its own."""
    cdef Bytes at = place[0]
    cdef Py_ssize_t size = count if own_bytes else (count + 7) >> 3
    cdef Py_ssize_t number
    cdef uint8_t* target = column.values + column.num_values
    if count > column.room_of_values - column.num_values or size > end - at:
        return False
    for number in range(count):
        target[number] = at[number] & 1 if own_bytes else (at[number >> 3] >> (number & 7)) & 1
    column.num_values += count
    place[0] = at + size
    return True


cdef bint _values(Column* column, Bytes* place, Bytes end, Py_ssize_t count, bint run) noexcept nogil:
    if column.kind == INTEGERS:
        return _integers(column, place, end, count)
    if column.kind == FIXED:
        return _fixed(column, place, end, count)
    if column.kind == TEXT:
        return _text(column, place, end, count)
    if column.kind == BITS:
        return _bits(column, place, end, count, run)
    return count >= 0 or place[0] == end


cdef bint _arrays(Column* column, Bytes at, Bytes end) noexcept nogil:
    """Lengths, and the values behind each. Runs are expanded."""
    cdef int64_t number, each, covered, place
    cdef uint64_t word
    cdef Py_ssize_t count
    cdef int64_t* lengths = column.lengths
    cdef bint numbers = column.kind == INTEGERS
    while at < end:
        if numbers:  # these may have ten bytes, as their values
            if not _varint(&at, end, &word):
                return False
            number = <int64_t>(word >> 1) ^ -<int64_t>(word & 1)
            if number > INT32_MAX or number < INT32_MIN:
                return False
        elif not _int(&at, end, &number):
            return False
        if number >= 0:
            if column.num_lengths >= column.room_of_lengths:
                return False
            lengths[column.num_lengths] = number
            column.num_lengths += 1
            count = number
        else:
            if not column.runs:
                return False
            covered = ((1 - number) >> 1) + 1
            each = (number + 1) & 1
            if covered > column.room_of_lengths - column.num_lengths:
                return False
            for place in range(covered):
                lengths[column.num_lengths + place] = each
            column.num_lengths += covered
            count = covered * each
        if count and column.kind != NULLS and not _values(column, &at, end, count, number < 0):
            return False
    return True


cdef bint _is_high(Bytes at, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t place
    cdef uint8_t seen = 0
    for place in range(size):
        seen |= at[place]
    return seen >= 0x80


HAS_CRC32 = cdfd_has_crc32()


def crc32(const uint8_t[::1] data):
    """The checksum of data, as `zlib.crc32` gives it. Fast only with `HAS_CRC32`."""
    return cdfd_crc32(&data[0], data.shape[0])


cdef inline uint32_t _swapped(uint32_t number) noexcept nogil:
    return number >> 24 | (number >> 8 & 0xFF00) | (number << 8 & 0xFF0000) | number << 24


def decode(
    blocks,
    checksums,
    int kind,
    int width,
    lengths,
    uint8_t[::1] values,
    int32_t[::1] offsets,
    int64_t[::1] counts,
    bint runs,
):
    """The content of consecutive blocks.

    Args:
        blocks: an iterable of buffers.
        checksums: of the blocks, with their bytes in either order; None if they are checked already.
        kind: 0 for nulls, 1 for numbers of variable length, 2 for numbers of fixed size, 3 for text and bytes, 4 for bits in array columns.
        width: bytes of a number in memory.
        lengths: gets the lengths of an array column; None for others.
        values: gets the numbers, the text, or a byte for each bit.
        offsets: gets the offsets of strings; its first is set by the caller.
        counts: gets how many lengths, or values if there are none, each block has.
        runs: whether lengths may have runs.

    Returns:
        The number of lengths, of values, and of bytes of text, and whether text has other bytes than ASCII. None if a block is
        damaged, has another checksum, or there is not room enough.
    """
    cdef Column column
    cdef const uint8_t[::1] block
    cdef int64_t[::1] each
    cdef const uint32_t[::1] expected
    cdef uint32_t checksum = 0, known = 0
    cdef bint checked = checksums is not None
    cdef Bytes at
    cdef Py_ssize_t number = 0, before, size
    cdef bint valid
    column.kind = <Kind>kind
    column.width = width
    column.lengths = NULL
    column.num_lengths = column.num_bytes = column.num_values = column.room_of_lengths = 0
    if lengths is not None:
        each = lengths
        column.room_of_lengths = each.shape[0]
        column.lengths = &each[0]
    column.values = &values[0]
    column.offsets = &offsets[0]
    column.room_of_bytes = values.shape[0]
    column.room_of_values = offsets.shape[0] - 1 if kind == TEXT else values.shape[0] // width
    column.runs = runs
    column.high = False
    if checked:
        expected = checksums
        if expected.shape[0] < counts.shape[0]:
            return None
    if column.room_of_bytes > INT32_MAX and kind == TEXT:
        return None
    for item in blocks:
        block = item
        size = block.shape[0]
        if number >= counts.shape[0]:
            return None
        at = &block[0]
        if checked:
            known = expected[number]
        with nogil:
            if checked:
                checksum = cdfd_crc32(at, size)
            if checked and checksum != known and checksum != _swapped(known):
                valid = False
            elif column.lengths != NULL:
                before = column.num_lengths
                valid = _arrays(&column, at, at + size)
                counts[number] = column.num_lengths - before
            else:
                before = column.num_values
                valid = _values(&column, &at, at + size, -1, False)
                counts[number] = column.num_values - before
            if valid and kind == TEXT and not column.high:
                column.high = _is_high(&block[0], size)
        if not valid:
            return None
        number += 1
    return column.num_lengths, column.num_values, column.num_bytes, column.high

