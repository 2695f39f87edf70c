"""Thrift's compact protocol and Parquet's page headers, for the kernels that read them.

Nothing is trusted: each byte that is read lies before the end of its buffer. Damage sets `bad`.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef enum:
    END = 0
    TRUE = 1
    FALSE = 2
    BYTE = 3
    I32 = 5
    I64 = 6
    DOUBLE = 7
    BINARY = 8
    LIST = 9
    SET = 10
    STRUCT = 12
    DEPTH = 32
    MOST = 2147483647
    HEADER_BYTES = 1048576

cdef struct Reader:
    const uint8_t* at
    const uint8_t* end
    bint bad

cdef struct Header:
    int64_t kind
    int64_t size
    int64_t stored
    int64_t values
    int64_t encoding


# --- the compact protocol ---


cdef inline int _byte(Reader* reader) noexcept nogil:
    if reader.at >= reader.end:
        reader.bad = True
        return 0
    cdef int byte = reader.at[0]
    reader.at += 1
    return byte


cdef inline uint64_t _varint(Reader* reader) noexcept nogil:
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef int byte
    while shift < 63:
        byte = _byte(reader)
        value |= <uint64_t>(byte & 127) << shift
        if byte < 128:
            return value
        shift += 7
    reader.bad = True
    return 0


cdef inline int64_t _integer(Reader* reader) noexcept nogil:
    cdef uint64_t value = _varint(reader)
    return <int64_t>(value >> 1) ^ -<int64_t>(value & 1)


cdef inline void _pass(Reader* reader, uint64_t count) noexcept nogil:
    if count > <uint64_t>(reader.end - reader.at):
        reader.bad = True
    else:
        reader.at += count


cdef inline int _field(Reader* reader, int* field) noexcept nogil:
    """The type of the next field of a struct; 0 at its end. A field with an explicit id may be a repeated one, which is unusual."""
    cdef int header = _byte(reader)
    if reader.bad or header & 15 == END:
        return END
    if header >> 4 == 0:
        reader.bad = True
        return END
    field[0] += header >> 4
    return header & 15


cdef inline uint64_t _length(Reader* reader, int* item) noexcept nogil:
    cdef int header = _byte(reader)
    cdef uint64_t count = header >> 4
    if count == 15:
        count = _varint(reader)
    if reader.bad or count > <uint64_t>(reader.end - reader.at):
        reader.bad = True
        return 0
    item[0] = header & 15
    return count


cdef inline void _skip(Reader* reader, int kind, int depth) noexcept nogil:
    cdef int field = 0
    cdef int item = 0
    cdef uint64_t count
    if depth > DEPTH:
        reader.bad = True
    elif kind == TRUE or kind == FALSE:
        return
    elif kind == BYTE:
        _pass(reader, 1)
    elif BYTE < kind <= I64:
        _varint(reader)
    elif kind == DOUBLE:
        _pass(reader, 8)
    elif kind == BINARY:
        _pass(reader, _varint(reader))
    elif kind == LIST or kind == SET:
        count = _length(reader, &item)
        if item == TRUE or item == FALSE:
            item = BYTE
        while count and not reader.bad:
            _skip(reader, item, depth + 1)
            count -= 1
    elif kind == STRUCT:
        while not reader.bad:
            kind = _field(reader, &field)
            if kind == END:
                return
            _skip(reader, kind, depth + 1)
    else:
        reader.bad = True


# --- page headers ---



cdef inline void _sizes(Reader* reader, Header* header) noexcept nogil:
    cdef int field = 0
    cdef int kind
    cdef int place = 4 if header.kind == 3 else 2
    while not reader.bad:
        kind = _field(reader, &field)
        if kind == END:
            return
        if field == 1 or field == place:
            if kind != I32:
                reader.bad = True
            elif field == 1:
                header.values = _integer(reader)
            else:
                header.encoding = _integer(reader)
        else:
            _skip(reader, kind, 0)


cdef inline bint _header(Reader* reader, Header* header) noexcept nogil:
    cdef int field = 0
    cdef int kind
    cdef int wanted = 0
    header.kind = header.size = header.stored = header.values = header.encoding = -1
    while not reader.bad:
        kind = _field(reader, &field)
        if kind == END:
            break
        if field <= 3:
            if kind != I32:
                return False
            if field == 1:
                header.kind = _integer(reader)
                wanted = 5 if header.kind == 0 else 7 if header.kind == 2 else 8 if header.kind == 3 else 0
            elif field == 2:
                header.size = _integer(reader)
            else:
                header.stored = _integer(reader)
        elif field == wanted and kind == STRUCT:
            _sizes(reader, header)
        else:
            _skip(reader, kind, 0)
    return (
        not reader.bad
        and wanted
        and 0 <= header.size <= MOST
        and 0 <= header.stored <= MOST
        and 0 <= header.values <= MOST
        and 0 <= header.encoding <= MOST
    )
