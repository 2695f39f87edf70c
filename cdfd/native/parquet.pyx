# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Footers, page headers and dictionaries of Parquet files -> places and sizes.

Nothing is trusted: each byte that is read lies before the end of its buffer. What is damaged or unusual gives None, or -1.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cdfd.native.compact cimport (
    BINARY,
    END,
    HEADER_BYTES,
    I32,
    I64,
    LIST,
    MOST,
    STRUCT,
    Header,
    Reader,
    _field,
    _header,
    _integer,
    _length,
    _pass,
    _skip,
    _varint,
)

cdef struct Chunk:
    const uint8_t* names
    int num_names
    int64_t codec
    int64_t values
    int64_t size
    int64_t data_page
    int64_t dictionary_page


# --- footers ---


def chunks(const uint8_t[::1] footer not None):
    """Every column chunk in a footer: (row group, path, start, end, codec, values). None where it is damaged or unusual."""
    cdef Reader reader
    cdef int field = 0
    cdef int kind
    cdef int item = 0
    cdef uint64_t count
    cdef uint64_t group
    if not footer.shape[0]:
        return None
    reader.at = &footer[0]
    reader.end = reader.at + footer.shape[0]
    reader.bad = False
    found = []
    while not reader.bad:
        kind = _field(&reader, &field)
        if kind == END:
            break
        if field != 4:
            _skip(&reader, kind, 0)
            continue
        count = _length(&reader, &item)
        if kind != LIST or item != STRUCT:
            return None
        for group in range(count):
            if not _group(&reader, group, found):
                return None
    return None if reader.bad else found


cdef bint _group(Reader* reader, uint64_t group, list found) except -1:
    cdef int field = 0
    cdef int kind
    cdef int item = 0
    cdef uint64_t count
    while not reader.bad:
        kind = _field(reader, &field)
        if kind == END:
            break
        if field != 1:
            _skip(reader, kind, 0)
            continue
        count = _length(reader, &item)
        if kind != LIST or item != STRUCT:
            return False
        while count:
            if not _column(reader, group, found):
                return False
            count -= 1
    return not reader.bad


cdef bint _column(Reader* reader, uint64_t group, list found) except -1:
    cdef int field = 0
    cdef int kind
    cdef bint known = False
    cdef Chunk chunk
    cdef int64_t start
    while not reader.bad:
        kind = _field(reader, &field)
        if kind == END:
            break
        if field == 3:
            if kind != STRUCT:
                return False
            _meta_data(reader, &chunk)
            known = True
        else:
            _skip(reader, kind, 0)
    if reader.bad or not known or chunk.names == NULL:
        return False
    start = chunk.dictionary_page if 0 < chunk.dictionary_page < chunk.data_page else chunk.data_page
    if start < 0 or chunk.size < 0 or start > ((<int64_t>1) << 62) or chunk.size > ((<int64_t>1) << 61):
        return False
    path = _path(&chunk)
    if path is None:
        return False
    found.append((group, path, start, start + chunk.size, chunk.codec, chunk.values))
    return True


cdef void _meta_data(Reader* reader, Chunk* chunk) noexcept nogil:
    cdef int field = 0
    cdef int kind
    cdef int item = 0
    cdef uint64_t count
    chunk.names = NULL
    chunk.codec = chunk.values = chunk.size = chunk.data_page = chunk.dictionary_page = 0
    while not reader.bad:
        kind = _field(reader, &field)
        if kind == END:
            return
        if field == 3:
            count = _length(reader, &item)
            if kind != LIST or item != BINARY:
                reader.bad = True
                return
            chunk.names = reader.at
            chunk.num_names = <int>count
            while count and not reader.bad:
                _pass(reader, _varint(reader))
                count -= 1
        elif field == 4:
            chunk.codec = _integer(reader)
            reader.bad |= kind != I32
        elif field == 5 or field == 7 or field == 9 or field == 11:
            if kind != I64:
                reader.bad = True
            elif field == 5:
                chunk.values = _integer(reader)
            elif field == 7:
                chunk.size = _integer(reader)
            elif field == 9:
                chunk.data_page = _integer(reader)
            else:
                chunk.dictionary_page = _integer(reader)
        else:
            _skip(reader, kind, 0)


cdef object _path(Chunk* chunk):
    """The names of a path, which were passed once, so that they are within the footer."""
    cdef Reader reader
    cdef uint64_t size
    cdef int number
    reader.at = chunk.names
    reader.end = chunk.names + ((<uint64_t>1) << 40)
    reader.bad = False
    names = []
    for number in range(chunk.num_names):
        size = _varint(&reader)
        try:
            names.append((<const char*>reader.at)[:size].decode("utf-8"))
        except UnicodeDecodeError:
            return None
        reader.at += size
    return names[0] if len(names) == 1 else ".".join(names)


# --- pages ---


def page(const uint8_t[::1] data not None, Py_ssize_t at):
    """The page whose header begins at `at`: (kind, size, stored, values, encoding, start). None where it is damaged, unusual or cut off."""
    cdef Reader reader
    cdef Header header
    if not 0 <= at < data.shape[0]:
        return None
    reader.at = &data[at]
    reader.end = &data[0] + data.shape[0]
    reader.bad = False
    if not _header(&reader, &header):
        return None
    return header.kind, header.size, header.stored, header.values, header.encoding, reader.at - &data[at]


cdef struct Run:
    Header header
    int64_t length


cdef bint _joins(Run* run, Header* header, bint strings) noexcept nogil:
    """Whether a page counts with those before it: of numbers and of indices, no more is asked than the largest page and all values."""
    return (
        run.length
        and header.kind != 2
        and header.kind == run.header.kind
        and header.encoding == run.header.encoding
        and (not strings or header.encoding == 2 or header.encoding == 8)
    )


cdef int _add(Run* run, Header* header, int64_t length, bint strings, list found) except -1:
    """Add a page to a run, or put the run into `found` and begin another one."""
    if _joins(run, header, strings):
        run.header.size = max(run.header.size, header.size)
        run.header.stored += length + header.stored
        run.header.values += header.values
        return 0
    _end(run, found)
    run.header = header[0]
    run.length = length
    return 0


cdef int _end(Run* run, list found) except -1:
    if run.length:
        found.append(
            (
                run.header.kind,
                run.header.size,
                run.header.stored,
                run.header.values,
                run.header.encoding,
                run.length,
            )
        )
    return 0


def pages(const uint8_t[::1] data not None, int64_t start, int64_t end, int64_t values, bint strings):
    """The pages of a column chunk of a file that is in memory. None where one is damaged or unusual.

    They are as `page` gives them, but consecutive ones of one kind and encoding are joined: the size is that of the largest. Those with
    strings are not.
    """
    cdef Reader reader
    cdef Header header
    cdef Run run
    cdef int64_t seen = 0
    cdef int64_t size = data.shape[0]
    cdef list found = []
    if start < 0 or end > size or not size:
        return None
    run.length = 0
    while start < end and seen < values:
        reader.at = &data[start]
        reader.end = &data[0] + min(end, start + HEADER_BYTES)
        reader.bad = False
        if not _header(&reader, &header):
            return None
        _add(&run, &header, reader.at - &data[start], strings, found)
        start += (reader.at - &data[start]) + header.stored
        if start > end:
            return None
        if header.kind != 2:
            seen += header.values
    _end(&run, found)
    return found


def pages_at(read_at, int64_t start, int64_t end, int64_t values, bint strings, int most):
    """The first pages of a column chunk of a stored file, at most `most`, as `pages` gives them. None where one is damaged or unusual.

    `read_at` returns bytes of the file, given a number of bytes and a position; fewer at the file's end.
    """
    cdef Reader reader
    cdef Header header
    cdef Run run
    cdef int64_t seen = 0
    cdef int64_t size
    cdef int64_t length = 0
    cdef bytes data
    cdef list found = []
    run.length = 0
    while start < end and seen < values and most > 0:
        for size in (128, 4096, HEADER_BYTES):
            data = read_at(min(size, end - start), start)
            reader.at = <const uint8_t*>PyBytes_AS_STRING(data)
            reader.end = reader.at + PyBytes_GET_SIZE(data)
            reader.bad = False
            length = 0
            if _header(&reader, &header):
                length = reader.at - <const uint8_t*>PyBytes_AS_STRING(data)
                break
            if size >= end - start:
                break
        if not length or length + header.stored > end - start:
            return None
        _add(&run, &header, length, strings, found)
        start += length + header.stored
        if header.kind != 2:
            seen += header.values
        most -= 1
    _end(&run, found)
    return found


# --- dictionaries ---


def longest(const uint8_t[::1] data not None, int64_t count):
    """Bytes of the longest of `count` strings, each after its length (u32, little-endian). -1 where they end after the data."""
    cdef const uint8_t* at = NULL
    cdef const uint8_t* end
    cdef uint32_t size
    cdef uint32_t most = 0
    if not count:
        return 0
    if not data.shape[0]:
        return -1
    at = &data[0]
    end = at + data.shape[0]
    with nogil:
        while count:
            if end - at < 4:
                break
            size = at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24
            at += 4
            if size > <uint64_t>(end - at):
                break
            at += size
            most = size if size > most else most
            count -= 1
    return -1 if count else most


def looked_up(const int32_t[::1] indices not None, const int8_t[::1] table not None, int8_t[::1] found not None):
    """Write the value of each index in a table into `found`. False where an index is not in the table, or `found` has another length."""
    cdef Py_ssize_t count = indices.shape[0]
    cdef Py_ssize_t number
    cdef uint32_t size = <uint32_t>table.shape[0]
    cdef uint32_t at
    cdef bint bad = found.shape[0] != count
    if bad:
        return False
    with nogil:
        for number in range(count):
            at = <uint32_t>indices[number]
            if at >= size:
                bad = True
                break
            found[number] = table[at]
    return not bad


def taken_ends(
    const int32_t[::1] indices not None,
    const uint8_t[::1] validity,
    const int32_t[::1] offsets not None,
    int32_t[::1] ends not None,
):
    """Where each string of a dictionary's indices ends, once they are one after the other. `ends` begins with 0.

    Returns their bytes; -1 where an index is not in the dictionary, or they are more than offsets can count. Null strings have no bytes:
    their bit in `validity` is 0.
    """
    cdef Py_ssize_t count = indices.shape[0]
    cdef Py_ssize_t number
    cdef uint32_t size
    cdef uint32_t at
    cdef uint32_t valid
    cdef int64_t end = 0
    if offsets.shape[0] < 2 or ends.shape[0] != count + 1:
        return -1
    if validity is not None and validity.shape[0] * 8 < count:
        return -1
    size = <uint32_t>(offsets.shape[0] - 1)
    ends[0] = 0
    with nogil:
        for number in range(count):
            # Without branches, which would be mispredicted.
            valid = 1 if validity is None else validity[number >> 3] >> (number & 7) & 1
            at = <uint32_t>indices[number] * valid
            if at >= size:
                end = -1
                break
            end += (offsets[at + 1] - offsets[at]) * <int64_t>valid
            if end > MOST:
                end = -1
                break
            ends[number + 1] = <int32_t>end
    return end


def take(
    const int32_t[::1] indices not None,
    const int32_t[::1] offsets not None,
    const uint8_t[::1] data not None,
    const int32_t[::1] ends not None,
    uint8_t[::1] found not None,
):
    """Write the strings of a dictionary's indices, one after the other. `ends` are those of `taken_ends`, which checks the indices.

    False where a string is not within `data` or `found`.
    """
    cdef Py_ssize_t count = indices.shape[0]
    cdef Py_ssize_t number
    cdef int64_t have = data.shape[0]
    cdef int64_t room = found.shape[0]
    cdef int64_t source
    cdef int64_t target
    cdef int64_t length
    cdef const uint8_t* strings
    cdef uint8_t* out
    cdef bint bad = False
    if not have or not room or not offsets.shape[0] or ends.shape[0] != count + 1:
        return False
    strings, out = &data[0], &found[0]
    with nogil:
        for number in range(count):
            target = ends[number]
            length = ends[number + 1] - target
            # The index of a null string was not checked.
            source = offsets[indices[number] if length else 0]
            if source < 0 or length < 0 or source + length > have or target + length > room:
                bad = True
                break
            # A copy of a fixed size is one instruction. Bytes after the string are overwritten by the next one.
            if length <= 16 and source + 16 <= have and target + 16 <= room:
                memcpy(out + target, strings + source, 16)
            elif length <= 32 and source + 32 <= have and target + 32 <= room:
                memcpy(out + target, strings + source, 32)
            else:
                memcpy(out + target, strings + source, length)
    return not bad
