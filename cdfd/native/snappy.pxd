"""Snappy without a frame, as pages of Parquet have it: https://github.com/google/snappy/blob/main/format_description.txt

Nothing is trusted: no byte is read after the end of the data, and none is written further than `SLACK` bytes after the size.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    SLACK = 64  # bytes after a page, a dictionary or strings that may be read or written


cdef inline bint _snappy(const uint8_t* at, const uint8_t* end, uint8_t* out, int64_t size) noexcept nogil:
    """Decompress into `out`, which has `SLACK` bytes more than `size`. Whether that is what the data has."""
    cdef uint8_t* begin = out
    cdef uint8_t* last = out + size
    cdef uint64_t length = 0
    cdef uint64_t offset
    cdef uint32_t word
    cdef int shift = 0
    cdef int tag
    while True:
        if at >= end or shift > 28:
            return False
        tag = at[0]
        at += 1
        length |= <uint64_t>(tag & 127) << shift
        if tag < 128:
            break
        shift += 7
    if length != <uint64_t>size:
        return False
    while at < end:
        tag = at[0]
        at += 1
        if tag & 3 == 0:
            length = (tag >> 2) + 1
            if length <= 16 and end - at >= 16 and last - out >= <int64_t>length:
                memcpy(out, at, 16)
                at += length
                out += length
                continue
            if length > 60:
                shift = <int>length - 60
                if end - at < shift:
                    return False
                word = 0
                memcpy(&word, at, shift)
                length = <uint64_t>word + 1
                at += shift
            if length > <uint64_t>(end - at) or length > <uint64_t>(last - out):
                return False
            memcpy(out, at, length)
            at += length
            out += length
            continue
        if tag & 3 == 1:
            if end - at < 1:
                return False
            length = ((tag >> 2) & 7) + 4
            offset = <uint64_t>(tag >> 5) << 8 | at[0]
            at += 1
        elif tag & 3 == 2:
            if end - at < 2:
                return False
            length = (tag >> 2) + 1
            offset = at[0] | <uint64_t>at[1] << 8
            at += 2
        else:
            if end - at < 4:
                return False
            length = (tag >> 2) + 1
            memcpy(&word, at, 4)
            offset = word
            at += 4
        if offset == 0 or offset > <uint64_t>(out - begin) or length > <uint64_t>(last - out):
            return False
        # Copies have at most 64 bytes, so no more than `SLACK` is written after the end.
        if offset >= 16:
            memcpy(out, out - offset, 16)
            if length > 16:
                memcpy(out + 16, out + 16 - offset, 16)
                if length > 32:
                    memcpy(out + 32, out + 32 - offset, 16)
                    memcpy(out + 48, out + 48 - offset, 16)
            out += length
        elif offset >= 8:
            while True:
                memcpy(out, out - offset, 8)
                if length <= 8:
                    out += length
                    break
                out += 8
                length -= 8
        else:
            while length:
                out[0] = (out - offset)[0]
                out += 1
                length -= 1
    return out == last
