# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Small Parquet files -> one footer, with which they are one file: their bytes one after the other, and then this footer.

Only files that agree in everything but their row groups are joined. The pages of every column are followed from the first to the last one, so
that no column has other rows than its row group says, and none reaches into the next file. What is damaged or unusual gives None.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from cdfd.native.compact cimport (
    END,
    HEADER_BYTES,
    I64,
    LIST,
    STRUCT,
    Header,
    Reader,
    _field,
    _header,
    _integer,
    _length,
    _skip,
)

cdef enum:
    DATA = 0
    DICTIONARY = 2
    DATA_V2 = 3
    MAGIC_BYTES = 4

cdef struct Writer:
    uint8_t* at
    uint8_t* end
    bint bad

cdef struct Chunk:
    # All that comes before the size in the file.
    const uint8_t* begin
    const uint8_t* end
    int64_t values
    int64_t size
    int64_t data_page
    int64_t dictionary_page

cdef struct File:
    # The file, where it begins in the joined one, and where its footer begins.
    const uint8_t* data
    int64_t base
    int64_t footer
    # What precedes the number of rows and follows the row groups.
    const uint8_t* before
    int64_t before_bytes
    const uint8_t* after
    int64_t after_bytes
    int64_t rows
    int64_t groups
    int64_t columns
    int64_t bytes


def joined(list files not None):
    """The footer of the joined file, the number of rows of each file, and how many bytes their footers say they decode to.

    Args:
        files: each as its bytes.

    Returns:
        None if they cannot be joined.
    """
    cdef const uint8_t[::1] data
    cdef Writer writer
    cdef File first, file
    cdef int64_t base = 0
    cdef int64_t capacity = 1024
    cdef int64_t rows = 0
    cdef int64_t groups = 0
    cdef int64_t size = 0
    cdef int64_t length
    cdef bint fits
    cdef uint8_t* place
    if not files:
        return None
    for data in files:
        length = _footer_bytes(data)
        if length < 0:
            return None
        # A column takes more bytes in a footer than are added to it here.
        capacity += 4 * length
    place = <uint8_t*>malloc(capacity)
    if place == NULL:
        raise MemoryError
    writer.at, writer.end, writer.bad = place, place + capacity, False
    first.before = first.after = NULL
    first.before_bytes = first.after_bytes = first.columns = 0
    counts = []
    try:
        for data in files:
            file.data, file.base = &data[0], base
            file.footer = data.shape[0] - 8 - _footer_bytes(data)
            length = data.shape[0] - 8
            with nogil:
                fits = _file(&file, &writer, length)
            if not fits:
                return None
            if not counts:
                first = file
            elif not _agree(&first, &file):
                return None
            counts.append(file.rows)
            rows += file.rows
            groups += file.groups
            size += file.bytes
            base += data.shape[0]
        if writer.bad:
            return None
        footer = b"".join((
            PyBytes_FromStringAndSize(<const char*>first.before, first.before_bytes),
            b"\x16", _zigzag(rows),
            b"\x19", bytes([groups << 4 | STRUCT]) if groups < 15 else bytes([15 << 4 | STRUCT]) + _unsigned(groups),
            PyBytes_FromStringAndSize(<const char*>place, writer.at - place),
            PyBytes_FromStringAndSize(<const char*>first.after, first.after_bytes),
        ))
        return footer, counts, size
    finally:
        free(place)


cdef int64_t _footer_bytes(const uint8_t[::1] data) noexcept nogil:
    """Bytes of a file's footer; -1 if it has none."""
    cdef int64_t size = data.shape[0]
    cdef int64_t length
    if size < 12 or memcmp(&data[0], b"PAR1", 4) or memcmp(&data[size - 4], b"PAR1", 4):
        return -1
    length = data[size - 8] | <uint32_t>data[size - 7] << 8 | <uint32_t>data[size - 6] << 16 | <int64_t>data[size - 5] << 24
    return length if 0 < length <= size - 12 else -1


cdef bint _agree(const File* first, const File* file) noexcept nogil:
    return (
        first.columns == file.columns
        and first.before_bytes == file.before_bytes
        and first.after_bytes == file.after_bytes
        and not memcmp(first.before, file.before, first.before_bytes)
        and not memcmp(first.after, file.after, first.after_bytes)
    )


cdef bint _file(File* file, Writer* writer, int64_t end) noexcept nogil:
    cdef Reader reader
    cdef int field = 0
    cdef int last = 0
    cdef int item = 0
    cdef int kind
    cdef uint64_t count
    cdef int64_t promised
    cdef const uint8_t* at
    reader.at, reader.end, reader.bad = file.data + file.footer, file.data + end, False
    file.before = reader.at
    file.rows = file.columns = file.bytes = 0
    while True:
        last, at = field, reader.at
        kind = _field(&reader, &field)
        if reader.bad or kind == END or field > 3:
            return False
        if field == 3:
            break
        _skip(&reader, kind, 0)
    if kind != I64 or last != 2:
        return False
    file.before_bytes = at - file.before
    promised = _integer(&reader)
    kind = _field(&reader, &field)
    if reader.bad or field != 4 or kind != LIST:
        return False
    count = _length(&reader, &item)
    if reader.bad or not count or item != STRUCT:
        return False
    file.groups = count
    while count:
        if not _group(&reader, file, writer):
            return False
        count -= 1
    file.after, file.after_bytes = reader.at, reader.end - reader.at
    return file.rows == promised


cdef bint _group(Reader* reader, File* file, Writer* writer) noexcept nogil:
    cdef int field = 0
    cdef int item = 0
    cdef int kind
    cdef uint64_t count
    cdef int64_t size = -1
    cdef int64_t rows = -1
    cdef int64_t values = -1
    while True:
        kind = _field(reader, &field)
        if reader.bad:
            return False
        if kind == END:
            break
        if field == 1:
            count = _length(reader, &item)
            if reader.bad or kind != LIST or item != STRUCT or not count or (file.columns and file.columns != <int64_t>count):
                return False
            file.columns = count
            _put_byte(writer, 0x19)
            _put_length(writer, count)
            while count:
                if not _column(reader, file, writer, &values):
                    return False
                count -= 1
        elif field == 2 and kind == I64:
            size = _integer(reader)
        elif field == 3 and kind == I64:
            rows = _integer(reader)
        else:
            _skip(reader, kind, 0)
    # Each column has a value for each row. It has more where lists are, which are not joined.
    if reader.bad or rows <= 0 or rows != values or not 0 <= size < (<int64_t>1) << 40:
        return False
    _put_byte(writer, 0x16)
    _put_integer(writer, size)
    _put_byte(writer, 0x16)
    _put_integer(writer, rows)
    _put_byte(writer, 0)
    file.rows += rows
    file.bytes += size
    return True


cdef bint _column(Reader* reader, File* file, Writer* writer, int64_t* values) noexcept nogil:
    """A column, with its place in the joined file. Statistics and indexes are left out."""
    cdef int field = 0
    cdef int kind
    cdef bint known = False
    cdef Chunk chunk
    while True:
        kind = _field(reader, &field)
        if reader.bad:
            return False
        if kind == END:
            break
        if field == 3 and kind == STRUCT and not known:
            if not _meta_data(reader, &chunk):
                return False
            known = True
        elif field in (1, 3, 8, 9):
            # In another file, or encrypted.
            return False
        else:
            _skip(reader, kind, 0)
    if not known or (values[0] >= 0 and values[0] != chunk.values) or not _pages(file, &chunk):
        return False
    values[0] = chunk.values
    _put_byte(writer, 0x26)
    _put_integer(writer, 0)
    _put_byte(writer, 0x10 | STRUCT)
    _put(writer, chunk.begin, chunk.end - chunk.begin)
    _put_integer(writer, chunk.size)
    _put_byte(writer, 0x26)
    _put_integer(writer, chunk.data_page + file.base)
    if chunk.dictionary_page:
        _put_byte(writer, 0x26)
        _put_integer(writer, chunk.dictionary_page + file.base)
    _put_byte(writer, 0)
    _put_byte(writer, 0)
    return not writer.bad


cdef bint _meta_data(Reader* reader, Chunk* chunk) noexcept nogil:
    """The type, encodings, path, codec and decompressed size are `begin` to `end`, as they are."""
    cdef int field = 0
    cdef int last
    cdef int kind
    chunk.begin, chunk.end = reader.at, NULL
    chunk.values = chunk.size = chunk.data_page = -1
    chunk.dictionary_page = 0
    while True:
        last = field
        kind = _field(reader, &field)
        if reader.bad:
            return False
        if kind == END:
            break
        if field <= 7 and field != last + 1:
            return False
        if field == 5 and kind == I64:
            chunk.values = _integer(reader)
        elif field == 7 and kind == I64:
            chunk.end = reader.at
            chunk.size = _integer(reader)
        elif field == 9 and kind == I64:
            chunk.data_page = _integer(reader)
        elif field == 11 and kind == I64:
            chunk.dictionary_page = _integer(reader)
        else:
            _skip(reader, kind, 0)
    if chunk.dictionary_page < 0 or chunk.dictionary_page >= chunk.data_page:
        return False
    return chunk.end != NULL and chunk.values >= 0 and chunk.size >= 0


cdef bint _pages(File* file, const Chunk* chunk) noexcept nogil:
    """Whether the pages of a column are within its file, and have its values."""
    cdef Reader reader
    cdef Header header
    cdef int64_t start = chunk.dictionary_page if chunk.dictionary_page else chunk.data_page
    cdef int64_t seen = 0
    cdef int64_t end
    if start < MAGIC_BYTES or start > file.footer or chunk.size > file.footer - start:
        return False
    end = start + chunk.size
    while start < end:
        reader.at = file.data + start
        reader.end = file.data + min(end, start + HEADER_BYTES)
        reader.bad = False
        if not _header(&reader, &header) or header.stored > end - (reader.at - file.data):
            return False
        if header.kind == DICTIONARY:
            if start != chunk.dictionary_page:
                return False
        elif header.kind == DATA or header.kind == DATA_V2:
            if start < chunk.data_page:
                return False
            seen += header.values
        else:
            return False
        start = reader.at - file.data + header.stored
    return seen == chunk.values


# --- writing ---


cdef inline void _put(Writer* writer, const uint8_t* data, int64_t size) noexcept nogil:
    if size > writer.end - writer.at:
        writer.bad = True
    else:
        memcpy(writer.at, data, size)
        writer.at += size


cdef inline void _put_byte(Writer* writer, uint8_t byte) noexcept nogil:
    _put(writer, &byte, 1)


cdef inline void _put_varint(Writer* writer, uint64_t value) noexcept nogil:
    while value > 127:
        _put_byte(writer, <uint8_t>(value & 127 | 128))
        value >>= 7
    _put_byte(writer, <uint8_t>value)


cdef inline void _put_integer(Writer* writer, int64_t value) noexcept nogil:
    _put_varint(writer, <uint64_t>value << 1)


cdef inline void _put_length(Writer* writer, uint64_t count) noexcept nogil:
    if count < 15:
        _put_byte(writer, <uint8_t>(count << 4 | STRUCT))
    else:
        _put_byte(writer, 0xF0 | STRUCT)
        _put_varint(writer, count)


cdef bytes _unsigned(uint64_t value):
    cdef uint8_t[10] place
    cdef Writer writer
    writer.at, writer.end, writer.bad = place, place + 10, False
    _put_varint(&writer, value)
    return PyBytes_FromStringAndSize(<const char*>place, writer.at - place)


cdef bytes _zigzag(int64_t value):
    return _unsigned(<uint64_t>value << 1)
