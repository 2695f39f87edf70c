"""Runs of equal and of bit-packed values, as levels and indices of Parquet are: https://github.com/apache/parquet-format/blob/master/Encodings.md

Nothing is trusted: no byte is read after the end of the data.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

ctypedef fused number:
    uint8_t
    uint32_t


cdef inline void _unpack(const uint8_t* at, const uint8_t* end, int width, number* out, int64_t count) noexcept nogil:
    """`count` values of `width` bits (1 to 32), which end before `end`."""
    cdef uint64_t mask = (<uint64_t>1 << width) - 1
    cdef int64_t bit = 0
    cdef int64_t fast = ((end - at - 8) * 8) // width if end - at >= 8 else 0
    cdef int64_t i
    cdef int k
    cdef uint64_t word
    cdef int64_t size
    fast = min(fast, count)
    i = 0
    if width <= 8:
        while i + 8 <= fast:
            memcpy(&word, at + (bit >> 3), 8)
            for k in range(8):
                out[i + k] = <number>(word & mask)
                word >>= width
            bit += 8 * width
            i += 8
    while i < fast:
        memcpy(&word, at + (bit >> 3), 8)
        out[i] = <number>((word >> (bit & 7)) & mask)
        bit += width
        i += 1
    while i < count:
        word = 0
        size = end - at - (bit >> 3)
        memcpy(&word, at + (bit >> 3), 8 if size > 8 else size)
        out[i] = <number>((word >> (bit & 7)) & mask)
        bit += width
        i += 1


cdef inline int64_t _hybrid(const uint8_t* at, const uint8_t* end, int width, number* out, int64_t count) noexcept nogil:
    """`count` values of `width` bits, in runs of equal and of bit-packed values. The bytes of their runs; -1 if there are fewer values."""
    cdef const uint8_t* begin = at
    cdef uint64_t header
    cdef uint64_t run
    cdef uint32_t value
    cdef int bytes_ = (width + 7) >> 3
    cdef int shift
    cdef int64_t i
    cdef int64_t some
    while count:
        header = 0
        shift = 0
        while True:
            if at >= end or shift > 28:
                return -1
            header |= <uint64_t>(at[0] & 127) << shift
            at += 1
            if (at - 1)[0] < 128:
                break
            shift += 7
        run = header >> 1
        if header & 1:
            # Groups of eight values.
            if run * width > <uint64_t>(end - at):
                return -1
            some = <int64_t>run * 8 if <int64_t>run * 8 < count else count
            if width == 0:
                memset(out, 0, some * sizeof(number))
            else:
                _unpack(at, at + run * width, width, out, some)
            at += run * width
        else:
            if end - at < bytes_:
                return -1
            value = 0
            memcpy(&value, at, bytes_)
            at += bytes_
            some = <int64_t>run if <int64_t>run < count else count
            if number is uint8_t:
                memset(out, <int>value, some)
            else:
                for i in range(some):
                    out[i] = value
        out += some
        count -= some
    return at - begin


cdef inline bint _only(const uint8_t* at, const uint8_t* end, int width, int64_t most, int64_t count) noexcept nogil:
    """Whether the levels are one run of `count` times `most`, as those of a page without nulls usually are."""
    cdef uint64_t header = 0
    cdef int shift = 0
    while True:
        if at >= end or shift > 28:
            return False
        header |= <uint64_t>(at[0] & 127) << shift
        at += 1
        if (at - 1)[0] < 128:
            break
        shift += 7
    return header & 1 == 0 and (header >> 1) >= <uint64_t>count and width <= 8 and end - at >= 1 and at[0] == most


cdef inline int _bits(int64_t most) noexcept nogil:
    """Bits of a number."""
    cdef int count = 0
    while most:
        count += 1
        most >>= 1
    return count


cdef inline bint _is_ascii(const uint8_t* at, int64_t size) noexcept nogil:
    cdef uint64_t found = 0
    cdef uint64_t word
    cdef int64_t i
    for i in range(size >> 3):
        memcpy(&word, at + 8 * i, 8)
        found |= word
    for i in range(size & ~7, size):
        found |= at[i]
        if at[i] & 128:
            return False
    return found & <uint64_t>0x8080808080808080 == 0
