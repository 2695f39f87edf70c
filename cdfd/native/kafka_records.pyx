# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Records of Kafka's record batches (format 2) out of arrays of keys and values, and the hashes of keys.

    length | attributes, timestamp delta | offset delta | key length | key | value length | value | headers
    varint   00 00                         varint         varint             varint

The headers are their number, those that all records have, and those whose values are columns: a record whose value is null has none.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef enum:
    WIDE = 32  # short bytes are copied as so many, where there is room
    NUMBERS = 64  # bytes of all numbers of a record, at most
    AHEAD = 6  # records whose values are fetched into the cache meanwhile, as those of a partition lie apart
    FETCHED = 512  # bytes of a value that are
    LINE = 64  # bytes of the processor's cache that are fetched together

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define cdfd_fetch(place) __builtin_prefetch(place)
    #else
    #define cdfd_fetch(place)
    #endif
    """
    void cdfd_fetch(const void* place) noexcept nogil


cdef struct Texts:
    const uint8_t* data
    Py_ssize_t size
    const int64_t* offsets  # NULL if all are null
    const uint8_t* nulls  # 1 for each that is null; NULL if none is


cdef struct Header:
    const uint8_t* name  # with its length
    Py_ssize_t name_size
    Texts values


cdef inline uint8_t* _put(uint8_t* out, int64_t value) noexcept nogil:
    cdef uint64_t number = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    while number >= 0x80:
        out[0] = <uint8_t>(number | 0x80)
        number >>= 7
        out += 1
    out[0] = <uint8_t>number
    return out + 1


cdef inline int _width(int64_t value) noexcept nogil:
    cdef uint64_t number = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef int size = 1
    while number >= 0x80:
        number >>= 7
        size += 1
    return size


cdef inline int64_t _length(Texts* texts, int64_t row) noexcept nogil:
    if texts.offsets == NULL or (texts.nulls != NULL and texts.nulls[row]):
        return -1
    return texts.offsets[row + 1] - texts.offsets[row]


cdef inline uint8_t* _copied(uint8_t* out, uint8_t* end, Texts* texts, int64_t row, int64_t size) noexcept nogil:
    cdef const uint8_t* text
    if size <= 0:
        return out
    text = texts.data + texts.offsets[row]
    if size <= WIDE and texts.size - texts.offsets[row] >= WIDE and end - out >= WIDE:
        memcpy(out, text, WIDE)
    else:
        memcpy(out, text, size)
    return out + size


cdef inline void _fetch(Texts* texts, int64_t row) noexcept nogil:
    """Let the processor fetch a text while it does something else."""
    cdef int64_t place = texts.offsets[row]
    cdef int64_t end = min(texts.offsets[row + 1], place + FETCHED)
    while place < end:
        cdfd_fetch(texts.data + place)
        place += LINE


cdef int _set_texts(Texts* texts, column) except -1:
    cdef const uint8_t[::1] octets
    cdef const int64_t[::1] offsets
    texts.offsets = NULL
    texts.nulls = NULL
    if column is None:
        return 0
    data, begins, nulls = column
    octets = data
    texts.data = &octets[0]
    texts.size = octets.shape[0]
    offsets = begins
    texts.offsets = &offsets[0]
    if nulls is not None:
        octets = nulls
        texts.nulls = &octets[0]
    return 0


cdef Header* _headers(list columns) except? NULL:
    """The columns of headers. The caller frees them, and keeps their arrays."""
    cdef Header* found = NULL
    cdef const uint8_t[::1] name
    cdef Py_ssize_t place
    if not columns:
        return NULL
    found = <Header*>malloc(len(columns) * sizeof(Header))
    if found == NULL:
        raise MemoryError
    try:
        for place in range(len(columns)):
            name = columns[place][0]
            found[place].name = &name[0]
            found[place].name_size = name.shape[0]
            _set_texts(&found[place].values, columns[place][1])
    except BaseException:
        free(found)
        raise
    return found


def write(
    const int64_t[::1] rows, keys, values, int64_t fixed, const uint8_t[::1] headers, list columns not None, uint8_t[::1] data
):
    """Write records one after the other, with offset deltas from 0 on.

    Args:
        rows: which ones.
        keys: their bytes, offsets and a mask of nulls, or None for it; None if there are no keys.
        values: as `keys`.
        fixed: the number of headers that each record has.
        headers: these headers, and one byte more, as there may be none.
        columns: the other headers: a name with its length, and values as `keys`.
        data: gets the records.

    Returns:
        The number of bytes; -1 if there is not room enough.
    """
    cdef Texts key, value
    cdef Header* others = NULL
    cdef Header* other
    cdef Py_ssize_t count = len(columns)
    cdef uint8_t* out = &data[0]
    cdef uint8_t* end = out + data.shape[0]
    cdef Py_ssize_t number, place, header_size = headers.shape[0] - 1
    cdef int64_t row, key_size, value_size, size, own, length
    _set_texts(&key, keys)
    _set_texts(&value, values)
    others = _headers(columns)
    with nogil:
        for number in range(rows.shape[0]):
            row = rows[number]
            if number + AHEAD < rows.shape[0] and value.offsets != NULL:
                _fetch(&value, rows[number + AHEAD])
            key_size = _length(&key, row)
            value_size = _length(&value, row)
            size = 2 + _width(number) + _width(key_size) + _width(value_size) + header_size
            size += (key_size if key_size > 0 else 0) + (value_size if value_size > 0 else 0)
            own = fixed
            for place in range(count):
                length = _length(&others[place].values, row)
                if length >= 0:
                    size += others[place].name_size + _width(length) + length
                    own += 1
            size += _width(own)
            if end - out < size + NUMBERS:
                out = NULL
                break
            out = _put(out, size)
            out[0] = out[1] = 0
            out = _put(_put(out + 2, number), key_size)
            out = _put(_copied(out, end, &key, row, key_size), value_size)
            out = _put(_copied(out, end, &value, row, value_size), own)
            memcpy(out, &headers[0], header_size)
            out += header_size
            for place in range(count):
                other = &others[place]
                length = _length(&other.values, row)
                if length >= 0:
                    memcpy(out, other.name, other.name_size)
                    out = _copied(_put(out + other.name_size, length), end, &other.values, row, length)
    free(others)
    return -1 if out == NULL else out - &data[0]


cdef inline uint32_t _murmur2(const uint8_t* key, int64_t size) noexcept nogil:
    cdef uint32_t factor = 0x5BD1E995
    cdef uint32_t hashed = <uint32_t>0x9747B28C ^ <uint32_t>size
    cdef uint32_t word
    cdef int64_t rest = size & 3
    cdef const uint8_t* end = key + (size - rest)
    while key != end:
        # Little-endian on every machine, as compilers see.
        word = <uint32_t>key[0] | <uint32_t>key[1] << 8 | <uint32_t>key[2] << 16 | <uint32_t>key[3] << 24
        word *= factor
        word ^= word >> 24
        word *= factor
        hashed *= factor
        hashed ^= word
        key += 4
    if rest > 2:
        hashed ^= <uint32_t>key[2] << 16
    if rest > 1:
        hashed ^= <uint32_t>key[1] << 8
    if rest:
        hashed ^= key[0]
        hashed *= factor
    hashed ^= hashed >> 13
    hashed *= factor
    return hashed ^ hashed >> 15


def hashes(const uint8_t[::1] data, const int64_t[::1] offsets, uint32_t[::1] out):
    """Write the hash of each text.

    Args:
        data: the texts.
        offsets: where each text starts in `data`, and the end of the last one.
        out: gets a hash for each text.
    """
    cdef Py_ssize_t number
    with nogil:
        for number in range(out.shape[0]):
            out[number] = _murmur2(&data[0] + offsets[number], offsets[number + 1] - offsets[number])
