# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Pages of a Parquet column -> its levels and values, as many rows at a time as are asked for.

A column is one leaf of several row groups. Nothing is trusted: each byte that is read lies before the end of its buffer, and each size is
bounded. What is damaged, unusual or larger than allowed raises `Unusual`: another reader then reads the rows that were not returned, or
refuses them. Encodings and levels: https://github.com/apache/parquet-format/blob/master/Encodings.md
"""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from cdfd.native.compact cimport END, FALSE, HEADER_BYTES, I32, MOST, STRUCT, TRUE, Reader, _field, _integer, _skip
from cdfd.native.runs cimport _bits, _hybrid, _is_ascii, _only
from cdfd.native.snappy cimport SLACK, _snappy

cdef enum:
    # How values are stored, and what they become; see `KINDS`.
    FOUR = 0
    EIGHT = 1
    INT96 = 2
    DECIMAL4 = 3
    DECIMAL8 = 4
    DECIMAL_BYTES = 5
    BIT = 6
    STRINGS = 7
    INDICES = 8
    PLAIN = 0
    PLAIN_DICTIONARY = 2
    RLE = 3
    RLE_DICTIONARY = 8
    DATA = 0
    DICTIONARY = 2
    DATA_V2 = 3
    UNCOMPRESSED = 0
    SNAPPY = 1
    SNAPPY_RATIO = 22  # a copy of 64 bytes takes three
    KEPT = 64  # pieces of memory that are kept, at most, their bytes together, and those of each
    KEPT_BYTES = 33554432
    KEPT_LEAST = 65536

KINDS = {
    "four": FOUR,
    "eight": EIGHT,
    "int96": INT96,
    "decimal4": DECIMAL4,
    "decimal8": DECIMAL8,
    "decimal_bytes": DECIMAL_BYTES,
    "bit": BIT,
    "strings": STRINGS,
    "indices": INDICES,
}
"""Values of four or eight bytes, as they are; INT96 as microseconds (8 bytes); decimals of four or eight bytes or of big-endian bytes (16);
booleans (a byte each); strings; strings of few values as indices (4) into what the caller has of them."""

cdef struct Page:
    int64_t kind
    int64_t size
    int64_t stored
    int64_t values
    int64_t encoding
    int64_t definition_encoding
    int64_t repetition_encoding
    int64_t definition_bytes
    int64_t repetition_bytes
    bint compressed


class Unusual(Exception):
    """The pages are damaged, unusual, or larger than allowed."""


# --- headers ---


cdef void _page_fields(Reader* reader, Page* page) noexcept nogil:
    """The struct of a page's kind."""
    cdef int field = 0
    cdef int kind
    cdef int64_t value
    while not reader.bad:
        kind = _field(reader, &field)
        if kind == END:
            return
        if kind == TRUE or kind == FALSE:
            if page.kind == DATA_V2 and field == 7:
                page.compressed = kind == TRUE
            continue
        if kind != I32:
            _skip(reader, kind, 0)
            continue
        value = _integer(reader)
        if field == 1:
            page.values = value
        elif page.kind == DATA_V2:
            if field == 4:
                page.encoding = value
            elif field == 5:
                page.definition_bytes = value
            elif field == 6:
                page.repetition_bytes = value
        elif field == 2:
            page.encoding = value
        elif field == 3:
            page.definition_encoding = value
        elif field == 4:
            page.repetition_encoding = value


cdef bint _page(Reader* reader, Page* page) noexcept nogil:
    """Whether there is a page header."""
    cdef int field = 0
    cdef int kind
    cdef int wanted = 0
    page.kind = page.size = page.stored = page.values = page.encoding = -1
    page.definition_encoding = page.repetition_encoding = RLE
    page.definition_bytes = page.repetition_bytes = 0
    page.compressed = True
    while not reader.bad:
        kind = _field(reader, &field)
        if kind == END:
            break
        if field <= 3:
            if kind != I32:
                return False
            if field == 1:
                page.kind = _integer(reader)
                wanted = 5 if page.kind == DATA else 7 if page.kind == DICTIONARY else 8 if page.kind == DATA_V2 else 0
            elif field == 2:
                page.size = _integer(reader)
            else:
                page.stored = _integer(reader)
        elif field == wanted and kind == STRUCT:
            _page_fields(reader, page)
        else:
            _skip(reader, kind, 0)
    return (
        not reader.bad
        and wanted
        and 0 <= page.size <= MOST
        and 0 <= page.stored <= MOST
        and 0 <= page.values <= MOST
        and 0 <= page.encoding <= MOST
        and 0 <= page.definition_bytes <= MOST
        and 0 <= page.repetition_bytes <= MOST
    )


# --- columns ---


cdef struct Memory:
    # Bytes that are kept from one page to the next, or returned.
    uint8_t* data
    int64_t size

cdef Memory _kept[KEPT]
cdef int _kept_count = 0
cdef int64_t _kept_bytes = 0


cdef int _unusual() except -1 with gil:
    raise Unusual


cdef int _allocate(Memory* memory, int64_t size) except -1 with gil:
    """Have so many bytes, and `SLACK` after them: if possible those of memory that was released."""
    global _kept_count, _kept_bytes
    cdef int number
    cdef int best = -1
    for number in range(_kept_count):
        if size <= _kept[number].size <= 2 * size and (best < 0 or _kept[number].size < _kept[best].size):
            best = number
    if best >= 0:
        memory[0] = _kept[best]
        _kept_bytes -= memory.size
        _kept_count -= 1
        for number in range(best, _kept_count):
            _kept[number] = _kept[number + 1]
        return 0
    size += size >> 3
    memory.data = <uint8_t*>malloc(size + SLACK)
    if memory.data == NULL:
        memory.size = 0
        raise MemoryError
    memory.size = size
    return 0


cdef int _release(Memory* memory) except -1 with gil:
    """Give memory back. Some of what was released last is kept: the system takes what is freed, and clears it before it gives it out again."""
    global _kept_count, _kept_bytes
    cdef int number
    if memory.size < KEPT_LEAST or memory.size > KEPT_BYTES // 4:
        free(memory.data)
    else:
        while _kept_count == KEPT or _kept_bytes + memory.size > KEPT_BYTES:
            free(_kept[0].data)
            _kept_bytes -= _kept[0].size
            _kept_count -= 1
            for number in range(_kept_count):
                _kept[number] = _kept[number + 1]
        _kept[_kept_count] = memory[0]
        _kept_count += 1
        _kept_bytes += memory.size
    memory.data = NULL
    memory.size = 0
    return 0


def release():
    """Free the memory that is kept."""
    global _kept_count, _kept_bytes
    while _kept_count:
        _kept_count -= 1
        free(_kept[_kept_count].data)
    _kept_bytes = 0


cdef int _room(Memory* memory, int64_t size) except -1 nogil:
    """Have so many bytes, and `SLACK` after them. The content is lost."""
    if memory.size < size:
        _release(memory)
        _allocate(memory, size + (size >> 2))
    return 0


cdef int _more_room(Memory* memory, int64_t size, int64_t used) except -1 nogil:
    """The same, and the first `used` bytes are kept."""
    cdef Memory larger
    if memory.size < size:
        _allocate(&larger, size + (size >> 2) if memory.size else size)
        if used:
            memcpy(larger.data, memory.data, used)
        _release(memory)
        memory[0] = larger
    return 0


cdef class Block:
    """Bytes that `Column.take` writes, which are a buffer then.

    Args:
        size: bytes, about.
        whole: whether so many bytes are a buffer at once.

    Attributes:
        size: of the buffer.
    """

    cdef Memory _memory
    cdef readonly int64_t size

    def __cinit__(self, int64_t size, bint whole=False):
        _allocate(&self._memory, size)
        self.size = size if whole else 0

    def __dealloc__(self):
        _release(&self._memory)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self._memory.data, self.size, 0, flags)


cdef class Column:
    """A leaf column of some row groups, which is read from its beginning to its end.

    Args:
        source: the file as a buffer, or a function that returns bytes of it: at least so many and at most so many, from a position on.
        chunks: (start, end, values, codec) of the column in each row group.
        kind: of its values, one of `KINDS`.
        width: bytes of a value that is stored as big-endian bytes.
        levels: the largest definition and repetition level.
        keeps_levels: whether the levels of all rows are wanted; otherwise of those with nulls only.
        most: bytes, at most, of a page and what is made of it.
        decompress: a function that decompresses data of a codec, given the codec, the data and its decompressed size.
        unify: for indices, a function that returns the numbers (int32) of the strings of a dictionary.

    Attributes:
        entries: levels of the rows that were taken last: for a column that is not repeated, a row each.
        count: their values that are not null.
        text_bytes: bytes of their strings.
        has_levels: whether some of them are null, or levels are kept.
        is_ascii: whether their strings have ASCII letters only.
        is_repeated: whether it is in a list.
    """

    cdef readonly int64_t entries
    cdef readonly int64_t count
    cdef readonly int64_t text_bytes
    cdef readonly bint has_levels
    cdef readonly bint is_ascii
    cdef readonly bint is_repeated
    cdef object _read
    cdef bint _has_read
    cdef object _codecs
    cdef object _unify
    cdef const uint8_t[::1] _whole
    cdef const uint8_t[::1] _window
    cdef int64_t _window_start, _window_bytes
    cdef int64_t _usual
    cdef const uint8_t[::1] _held_data
    cdef int64_t* _chunks
    cdef int64_t _chunk_count, _next
    cdef int64_t _at, _end, _left
    cdef bint _begins
    cdef int _codec
    cdef int _kind
    cdef int64_t _width
    cdef int64_t _size
    cdef int64_t _definition, _repetition
    cdef bint _keeps
    cdef int64_t _most
    # The page.
    cdef Memory _page_memory
    cdef Memory _definitions
    cdef Memory _repetitions
    cdef Memory _indices
    cdef bint _all_valid
    cdef bint _indexed
    cdef int64_t _level, _levels
    cdef int64_t _value, _values
    cdef const uint8_t* _values_at
    cdef const uint8_t* _values_end
    # The dictionary.
    cdef Memory _dictionary
    cdef Memory _offsets
    cdef int64_t _dictionary_count
    cdef int64_t _dictionary_bytes
    cdef bint _dictionary_is_ascii
    # What is taken.
    cdef Block _out
    cdef Block _ends
    cdef Memory _taken_definitions
    cdef Memory _taken_repetitions

    def __cinit__(self, source, list chunks, int kind, int64_t width, tuple levels, bint keeps_levels, int64_t most, decompress, unify):
        cdef int64_t place = 0
        self._read = source if callable(source) else None
        self._has_read = self._read is not None
        if self._read is None:
            self._whole = source
        self._kind = kind
        self._width = width
        self._size = 8 if kind == EIGHT or kind == INT96 else 1 if kind == BIT else 4 if kind == FOUR or kind == INDICES else 16
        self._definition, self._repetition = levels
        self.is_repeated = self._repetition > 0
        self._keeps = keeps_levels
        self._most = most
        self._codecs = decompress
        self._unify = unify
        if self._definition > 127 or self._repetition > 127 or (kind == DECIMAL_BYTES and not 1 <= width <= 16):
            raise Unusual
        self._chunks = <int64_t*>malloc(32 * (len(chunks) + 1))
        if self._chunks == NULL:
            raise MemoryError
        for numbers in chunks:
            for number in numbers[:4]:
                self._chunks[place] = number
                place += 1
        self._chunk_count = place // 4

    def __dealloc__(self):
        free(self._chunks)
        _release(&self._page_memory)
        _release(&self._definitions)
        _release(&self._repetitions)
        _release(&self._indices)
        _release(&self._dictionary)
        _release(&self._offsets)
        _release(&self._taken_definitions)
        _release(&self._taken_repetitions)

    # --- bytes of the file ---

    cdef int _file(self, int64_t at, int64_t size, const uint8_t** data, int64_t* have) except -1 nogil:
        """Set `data` to the file's bytes from `at` on: at least `size` if the chunk has them; `have` says how many."""
        cdef int64_t start
        cdef int64_t end
        if not self._has_read:
            end = min(self._end, <int64_t>self._whole.shape[0])
            if at >= end:
                _unusual()
            have[0] = end - at
            data[0] = &self._whole[at]
            return 0
        start, end = self._window_start, self._window_start + self._window_bytes
        if start <= at < end and (at + size <= end or end >= self._end):
            have[0] = end - at
            data[0] = &self._window[at - start]
            return 0
        if at >= self._end:
            _unusual()
        self._read_window(at, min(self._end - at, size))
        have[0] = self._window_bytes
        data[0] = &self._window[0]
        return 0

    cdef int _read_window(self, int64_t at, int64_t size) except -1 with gil:
        self._window = self._read(size, self._end - at, at)
        self._window_start = at
        self._window_bytes = self._window.shape[0]
        if not self._window_bytes:
            raise Unusual
        return 0

    # --- pages ---

    cdef bint _open_chunk(self) except -1 nogil:
        """Whether there is another chunk."""
        cdef const int64_t* chunk = self._chunks + 4 * self._next
        if self._next >= self._chunk_count:
            return False
        self._at, self._end, self._left, self._codec = chunk[0], chunk[1], chunk[2], <int>chunk[3]
        self._next += 1
        self._dictionary_count = -1
        self._window_bytes = 0
        self._begins = True
        if self._at < 0 or self._end < self._at:
            _unusual()
        return True

    cdef bint _open_page(self) except -1 nogil:
        """Whether there is another page with rows, which is ready to be taken from then."""
        cdef Reader reader
        cdef Page page
        cdef int64_t have = 0
        cdef int64_t length
        cdef const uint8_t* data
        while True:
            while self._left <= 0:
                if not self._open_chunk():
                    return False
            # Most pages of a column have about the same size.
            self._file(self._at, min(self._end - self._at, 64 + self._usual + (self._usual >> 3)), &data, &have)
            reader.at, reader.end, reader.bad = data, data + min(have, <int64_t>HEADER_BYTES), False
            if not _page(&reader, &page):
                self._file(self._at, HEADER_BYTES, &data, &have)
                reader.at, reader.end, reader.bad = data, data + min(have, <int64_t>HEADER_BYTES), False
                if not _page(&reader, &page):
                    _unusual()
            length = reader.at - data
            if length + page.stored > self._end - self._at or page.size > self._most or page.values > self._most // 6:
                _unusual()
            if have < length + page.stored:
                self._file(self._at, length + page.stored, &data, &have)
                if have < length + page.stored:
                    _unusual()
            data += length
            self._at += length + page.stored
            self._usual = page.stored
            if page.kind == DICTIONARY:
                self._open_dictionary(data, &page)
                continue
            self._left -= page.values
            if self._left < 0:
                _unusual()
            if not page.values:
                continue
            self._open_data(data, &page)
            return True

    cdef int _decompress(self, const uint8_t** data, int64_t stored, int64_t size) except -1 nogil:
        """Set `data`, which has `stored` bytes, to the `size` bytes that it decompresses to."""
        cdef bint done
        if self._codec == UNCOMPRESSED:
            if stored != size:
                _unusual()
        elif self._codec == SNAPPY:
            # So few bytes cannot have more, whatever the header says.
            if not stored or size > SNAPPY_RATIO * stored:
                _unusual()
            _room(&self._page_memory, size)
            done = _snappy(data[0], data[0] + stored, self._page_memory.data, size)
            if not done:
                _unusual()
            data[0] = self._page_memory.data
        else:
            if not stored or not size:
                _unusual()
            self._decompress_page(data[0], stored, size)
            data[0] = &self._held_data[0]
        return 0

    cdef int _decompress_page(self, const uint8_t* data, int64_t stored, int64_t size) except -1 with gil:
        page = self._codecs(self._codec, memoryview(<const uint8_t[:stored]>data), size)
        if page is None:
            raise Unusual
        self._held_data = page
        if self._held_data.shape[0] != size:
            raise Unusual
        return 0

    cdef int _open_data(self, const uint8_t* data, Page* page) except -1 nogil:
        cdef const uint8_t* end
        cdef const uint8_t* levels_end
        cdef uint32_t size = 0
        cdef int64_t number
        cdef int64_t length
        self._levels, self._level, self._value = page.values, 0, 0
        if page.kind == DATA_V2:
            length = page.repetition_bytes + page.definition_bytes
            if length > page.stored or length > page.size:
                _unusual()
            self._open_levels(data, data + page.repetition_bytes, data + length)
            data += length
            if not page.compressed or page.size == length:
                end = data + page.stored - length
            else:
                self._decompress(&data, page.stored - length, page.size - length)
                end = data + page.size - length
        else:
            # Without levels, their encoding says nothing, and parquet-mr has another one.
            if (self._definition and page.definition_encoding != RLE) or (self._repetition and page.repetition_encoding != RLE):
                _unusual()
            self._decompress(&data, page.stored, page.size)
            end = data + page.size
            levels_end = data
            if self._repetition:
                if end - data < 4:
                    _unusual()
                memcpy(&size, data, 4)
                data += 4
                if size > <uint64_t>(end - data):
                    _unusual()
                levels_end = data + size
            number = levels_end - data
            if self._definition:
                if end - levels_end < 4:
                    _unusual()
                memcpy(&size, levels_end, 4)
                if size > <uint64_t>(end - levels_end - 4):
                    _unusual()
                self._open_levels(data, levels_end, levels_end + 4 + size, 4)
                data = levels_end + 4 + size
            else:
                self._open_levels(data, data + number, data + number)
                data += number
        self._indexed = page.encoding == PLAIN_DICTIONARY or page.encoding == RLE_DICTIONARY
        self._values_at, self._values_end = data, end
        if self._indexed:
            self._open_indices()
        elif self._kind == BIT and page.encoding == RLE:
            self._open_bits()
        elif page.encoding != PLAIN or self._kind == INDICES:
            _unusual()
        return 0

    cdef int _open_levels(self, const uint8_t* repetitions, const uint8_t* definitions, const uint8_t* end, int skip=0) except -1 nogil:
        """Decode the levels. Those of definition begin `skip` bytes after those of repetition."""
        cdef int64_t number
        cdef int64_t valid = 0
        cdef uint8_t most = <uint8_t>self._definition
        cdef uint8_t deepest = <uint8_t>self._repetition
        cdef bint bad = False
        cdef uint8_t* levels
        if self._repetition:
            _room(&self._repetitions, self._levels)
            levels = self._repetitions.data
            bad = _hybrid(repetitions, definitions, _bits(self._repetition), levels, self._levels) < 0
            if not bad:
                for number in range(self._levels):
                    bad |= levels[number] > deepest
            # A row does not go on in the next row group.
            if bad or (self._begins and levels[0]):
                _unusual()
        self._begins = False
        self._values = self._levels
        self._all_valid = True
        if not self._definition:
            return 0
        definitions += skip
        self._all_valid = _only(definitions, end, _bits(self._definition), self._definition, self._levels)
        if self._all_valid and not self._keeps:
            return 0
        _room(&self._definitions, self._levels)
        levels = self._definitions.data
        bad = _hybrid(definitions, end, _bits(self._definition), levels, self._levels) < 0
        if not bad:
            for number in range(self._levels):
                valid += levels[number] == most
                bad |= levels[number] > most
        if bad:
            _unusual()
        self._values = valid
        self._all_valid = valid == self._levels
        return 0

    cdef int _open_indices(self) except -1 nogil:
        """Decode the indices of the page's values into the dictionary."""
        cdef bint bad = False
        cdef int64_t number
        cdef uint32_t most = 0
        cdef uint32_t* indices
        cdef int width
        if self._dictionary_count < 0 or (self._values_at < self._values_end and self._values_at[0] > 32):
            _unusual()
        if not self._values:
            return 0
        if self._values_at >= self._values_end:
            _unusual()
        width = self._values_at[0]
        _room(&self._indices, 4 * self._values)
        indices = <uint32_t*>self._indices.data
        bad = _hybrid(self._values_at + 1, self._values_end, width, indices, self._values) < 0
        if not bad:
            for number in range(self._values):
                most = indices[number] if indices[number] > most else most
        if bad or most >= <uint64_t>self._dictionary_count:
            _unusual()
        return 0

    cdef int _open_bits(self) except -1 nogil:
        """Booleans in runs, as a page of one byte each."""
        cdef uint32_t size = 0
        cdef uint8_t* bits
        cdef int64_t number
        # The size is there without values too.
        if self._values_end - self._values_at < 4:
            _unusual()
        memcpy(&size, self._values_at, 4)
        if size > <uint64_t>(self._values_end - self._values_at - 4):
            _unusual()
        _room(&self._indices, self._values)
        bits = self._indices.data
        if _hybrid(self._values_at + 4, self._values_at + 4 + size, 1, bits, self._values) < 0:
            _unusual()
        # Seven bits of a run's value count for nothing.
        for number in range(self._values):
            bits[number] &= 1
        self._values_at = NULL
        return 0

    cdef int _open_dictionary(self, const uint8_t* data, Page* page) except -1 nogil:
        cdef int64_t count = page.values
        cdef const uint8_t* end
        if self._dictionary_count >= 0 or (page.encoding != PLAIN and page.encoding != PLAIN_DICTIONARY) or self._kind == BIT:
            _unusual()
        if page.size:
            self._decompress(&data, page.stored, page.size)
        end = data + page.size
        if self._kind == STRINGS or self._kind == INDICES:
            self._open_strings(data, end, count)
        else:
            if self._stored(count) > page.size or count * self._size > self._most:
                _unusual()
            _room(&self._dictionary, count * self._size)
            self._convert(data, count, self._dictionary.data)
        self._dictionary_count = count
        return 0

    cdef int _open_strings(self, const uint8_t* data, const uint8_t* end, int64_t count) except -1 nogil:
        cdef uint32_t size = 0
        cdef int64_t number
        cdef int32_t* offsets
        if 4 * count > end - data:
            _unusual()
        _room(&self._dictionary, end - data)
        _room(&self._offsets, 4 * (count + 1))
        offsets = <int32_t*>self._offsets.data
        offsets[0] = 0
        for number in range(count):
            if end - data < 4:
                _unusual()
            memcpy(&size, data, 4)
            data += 4
            if size > <uint64_t>(end - data):
                _unusual()
            memcpy(self._dictionary.data + offsets[number], data, size)
            offsets[number + 1] = offsets[number] + <int32_t>size
            data += size
        self._dictionary_bytes = offsets[count]
        self._dictionary_is_ascii = _is_ascii(self._dictionary.data, self._dictionary_bytes)
        if self._kind == INDICES:
            self._unify_strings(count)
        return 0

    cdef int _unify_strings(self, int64_t count) except -1 with gil:
        """Have the caller's numbers of the strings instead of them."""
        cdef const int32_t[::1] numbers
        cdef int64_t number
        cdef const int32_t* offsets = <const int32_t*>self._offsets.data
        found = self._unify([(<char*>self._dictionary.data)[offsets[number] : offsets[number + 1]] for number in range(count)])
        if found is None:
            raise Unusual
        numbers = found
        if numbers.shape[0] != count:
            raise Unusual
        if count:
            _room(&self._dictionary, 4 * count)
            memcpy(self._dictionary.data, &numbers[0], 4 * count)
        return 0

    cdef int64_t _stored(self, int64_t count) noexcept nogil:
        """Bytes in which values are stored that are no strings."""
        if self._kind == BIT:
            return (count + 7) >> 3
        if self._kind == INT96:
            return 12 * count
        if self._kind == DECIMAL_BYTES:
            return self._width * count
        return 8 * count if self._kind == EIGHT or self._kind == DECIMAL8 else 4 * count

    cdef void _convert(self, const uint8_t* at, int64_t count, uint8_t* out) noexcept nogil:
        """Values that are no strings, as they are stored, to what they become."""
        cdef int64_t number
        cdef int64_t nanoseconds
        cdef int64_t sign
        cdef int32_t four
        cdef int64_t eight
        cdef int place
        if self._kind == FOUR or self._kind == EIGHT:
            memcpy(out, at, count * self._size)
        elif self._kind == INT96:
            for number in range(count):
                memcpy(&nanoseconds, at + 12 * number, 8)
                memcpy(&four, at + 12 * number + 8, 4)
                # As pyarrow: of the Julian day, and of the nanoseconds of the day.
                eight = <int64_t>(<uint64_t>(<int64_t>(<uint32_t>four) - 2440588) * <uint64_t>86400000000 + <uint64_t>nanoseconds // 1000)
                # It takes day 0 for that of a null, whatever the time.
                eight = eight if four else 0
                memcpy(out + 8 * number, &eight, 8)
        elif self._kind == DECIMAL4:
            for number in range(count):
                memcpy(&four, at + 4 * number, 4)
                eight, sign = four, -1 if four < 0 else 0
                memcpy(out + 16 * number, &eight, 8)
                memcpy(out + 16 * number + 8, &sign, 8)
        elif self._kind == DECIMAL8:
            for number in range(count):
                memcpy(&eight, at + 8 * number, 8)
                sign = -1 if eight < 0 else 0
                memcpy(out + 16 * number, &eight, 8)
                memcpy(out + 16 * number + 8, &sign, 8)
        elif self._kind == DECIMAL_BYTES:
            for number in range(count):
                memset(out, 255 if at[0] & 128 else 0, 16)
                for place in range(<int>self._width):
                    out[self._width - 1 - place] = at[place]
                at += self._width
                out += 16

    # --- rows ---

    def take(self, int64_t rows, int64_t most, Block values not None, Block offsets):
        """Take rows into `values` and `offsets`.

        Values have no gaps for nulls. `offsets` (int32) is that of strings, and has one more than there are values. It is None for others.

        Args:
            rows: to take.
            most: bytes of strings, at most; but at least one row. More of a column that is repeated is unusual.

        Returns:
            How many rows were taken: fewer where strings would have more bytes, or the column ends.
        """
        cdef int64_t taken
        self.entries = self.count = self.text_bytes = 0
        self.has_levels = self._keeps
        self.is_ascii = True
        if self._kind == STRINGS and offsets is None:
            raise TypeError("offsets of strings")
        self._out, self._ends = values, offsets
        try:
            with nogil:
                taken = self._take(rows, most)
        finally:
            self._out = self._ends = None
        values.size = self.text_bytes if self._kind == STRINGS else self.count * self._size
        if offsets is not None:
            offsets.size = 4 * (self.count + 1)
        return taken

    cdef int64_t _take(self, int64_t rows, int64_t most) except -1 nogil:
        cdef int64_t taken = 0
        cdef int64_t some
        cdef int64_t strings
        cdef bint cut = False
        if self._kind == STRINGS:
            _room(&self._ends._memory, 4)
            (<int32_t*>self._ends._memory.data)[0] = 0
        while not cut:
            if self._level >= self._levels:
                if taken >= rows and not self._repetition:
                    break
                if not self._open_page():
                    break
            if self._repetition:
                # A row goes on until another one begins.
                some = self._levels_of(rows, &taken)
            else:
                some = min(rows - taken, self._levels - self._level)
                taken += some
            if not some:
                break
            # Nulls and empty lists have levels, but no values.
            if self._repetition and 8 * (self.entries + some) > most:
                _unusual()
            if self._kind == STRINGS:
                strings = self._take_strings(some, most)
                cut = strings < some
                if cut and self._repetition:
                    _unusual()
                taken -= some - strings
            else:
                self._take_values(some)
                if self._repetition and self.count * self._size > most:
                    _unusual()
        return taken

    cdef int64_t _levels_of(self, int64_t rows, int64_t* taken) noexcept nogil:
        """Levels of the page until `rows` rows have ended."""
        cdef int64_t number = self._level
        cdef const uint8_t* levels = self._repetitions.data
        cdef int64_t begun = taken[0]
        while number < self._levels:
            if levels[number] == 0:
                if begun == rows:
                    break
                begun += 1
            number += 1
        taken[0] = begun
        return number - self._level

    cdef int64_t _pass_levels(self, int64_t some) except -1 nogil:
        """Keep the levels of the next rows. Returns how many values they have."""
        cdef int64_t number
        cdef int64_t found = 0
        cdef uint8_t most = <uint8_t>self._definition
        cdef const uint8_t* levels
        if not self._all_valid and not self.has_levels:
            # All rows before were valid.
            self.has_levels = True
            _more_room(&self._taken_definitions, self.entries + some, 0)
            memset(self._taken_definitions.data, most, self.entries)
        if self.has_levels:
            if self._definition:
                _more_room(&self._taken_definitions, self.entries + some, self.entries)
                if self._all_valid:
                    memset(self._taken_definitions.data + self.entries, most, some)
                else:
                    memcpy(self._taken_definitions.data + self.entries, self._definitions.data + self._level, some)
            if self._repetition:
                _more_room(&self._taken_repetitions, self.entries + some, self.entries)
                memcpy(self._taken_repetitions.data + self.entries, self._repetitions.data + self._level, some)
        if self._all_valid:
            found = some
        else:
            levels = self._definitions.data + self._level
            for number in range(some):
                found += levels[number] == most
        self.entries += some
        self._level += some
        return found

    cdef int _take_values(self, int64_t some) except -1 nogil:
        cdef int64_t count = self._pass_levels(some)
        cdef int64_t number
        cdef uint8_t* out
        cdef const uint32_t* indices
        cdef const uint8_t* dictionary = self._dictionary.data
        if not count:
            return 0
        _more_room(&self._out._memory, (self.count + count) * self._size, self.count * self._size)
        out = self._out._memory.data + self.count * self._size
        if self._indexed:
            indices = <const uint32_t*>self._indices.data + self._value
            if self._size == 8:
                for number in range(count):
                    (<uint64_t*>out)[number] = (<const uint64_t*>dictionary)[indices[number]]
            elif self._size == 4:
                for number in range(count):
                    (<uint32_t*>out)[number] = (<const uint32_t*>dictionary)[indices[number]]
            else:
                for number in range(count):
                    memcpy(out + 16 * number, dictionary + 16 * <int64_t>indices[number], 16)
        elif self._kind == BIT:
            if self._values_at == NULL:
                memcpy(out, self._indices.data + self._value, count)
            else:
                if self._stored(self._value + count) > self._values_end - self._values_at:
                    _unusual()
                for number in range(count):
                    out[number] = self._values_at[(self._value + number) >> 3] >> ((self._value + number) & 7) & 1
        else:
            if self._stored(count) > self._values_end - self._values_at:
                _unusual()
            self._convert(self._values_at, count, out)
            self._values_at += self._stored(count)
        self._value += count
        self.count += count
        return 0

    cdef int64_t _take_strings(self, int64_t some, int64_t most) except -1 nogil:
        """Take strings of so many levels, or of fewer if they are too large. Returns of how many."""
        cdef int64_t count
        cdef int64_t number = 0
        cdef int64_t end = self.text_bytes
        cdef int64_t level
        cdef uint32_t size = 0
        cdef int32_t* ends
        cdef const uint8_t* at
        cdef const uint32_t* indices
        cdef const int32_t* places = <const int32_t*>self._offsets.data
        cdef uint8_t* out
        cdef int64_t start, length
        cdef bint bad = False
        # How many values `some` levels have, at most: `most` may be reached before.
        count = some
        if not self._all_valid:
            count = 0
            for level in range(self._level, self._level + some):
                count += self._definitions.data[level] == self._definition
        _more_room(&self._ends._memory, 4 * (self.count + count + 1), 4 * (self.count + 1))
        ends = <int32_t*>self._ends._memory.data + self.count
        if self._indexed:
            indices = <const uint32_t*>self._indices.data + self._value
            while number < count:
                end += places[indices[number] + 1] - places[indices[number]]
                if end > most and (number or self.entries):
                    end -= places[indices[number] + 1] - places[indices[number]]
                    break
                number += 1
                ends[number] = <int32_t>end
        else:
            at = self._values_at
            while number < count:
                if self._values_end - at < 4:
                    bad = True
                    break
                memcpy(&size, at, 4)
                if size > <uint64_t>(self._values_end - at - 4):
                    bad = True
                    break
                end += size
                if end > most and (number or self.entries):
                    end -= size
                    break
                at += 4 + <int64_t>size
                number += 1
                ends[number] = <int32_t>end
        if bad or end > MOST:
            _unusual()
        if number < count:
            # As many levels as end before the value that is too large.
            count = number
            if self._all_valid:
                some = number
            else:
                level = self._level
                while number or self._definitions.data[level] != self._definition:
                    number -= self._definitions.data[level] == self._definition
                    level += 1
                some = level - self._level
        self._pass_levels(some)
        if end > self.text_bytes:
            _more_room(&self._out._memory, end, self.text_bytes)
            out = self._out._memory.data
            if self._indexed:
                start = self.text_bytes
                for number in range(count):
                    length = ends[number + 1] - start
                    at = self._dictionary.data + places[indices[number]]
                    # A copy of a fixed size is one instruction. Bytes after the string are overwritten by the next one.
                    if length <= 16:
                        memcpy(out + start, at, 16)
                    elif length <= 32:
                        memcpy(out + start, at, 32)
                    else:
                        memcpy(out + start, at, length)
                    start += length
                self.is_ascii = self.is_ascii and self._dictionary_is_ascii
            else:
                at = self._values_at
                start = self.text_bytes
                for number in range(count):
                    length = ends[number + 1] - start
                    at += 4
                    if length <= 16 and self._values_end - at >= 16:
                        memcpy(out + start, at, 16)
                    elif length <= 32 and self._values_end - at >= 32:
                        memcpy(out + start, at, 32)
                    else:
                        memcpy(out + start, at, length)
                    at += length
                    start += length
                bad = not _is_ascii(out + self.text_bytes, end - self.text_bytes)
                self.is_ascii = self.is_ascii and not bad
        if not self._indexed:
            self._values_at += end - self.text_bytes + 4 * count
        self._value += count
        self.count += count
        self.text_bytes = end
        return some

    # --- levels of the rows that were taken ---

    def validity(self, int depth, int exists, int valid, uint8_t[::1] bits not None):
        """Write a bit for each value of an array in this column: whether it is not null.

        Args:
            depth: lists around the array.
            exists, valid: the least definition level of one that exists, and of one that is not null.
            bits: filled with zeros before.

        Returns:
            How many exist, and how many of them are null.
        """
        # No branch depends on a level, so that none is predicted wrong. Bits are collected in a word.
        cdef int64_t number
        cdef int64_t found = 0
        cdef int64_t filled = 0
        cdef uint64_t word = 0
        cdef uint64_t exist
        cdef uint64_t bit
        cdef int at = 0
        cdef const uint8_t* definitions = self._taken_definitions.data
        cdef const uint8_t* repetitions = self._taken_repetitions.data if self._repetition else definitions
        cdef int deepest = depth if self._repetition else 255
        if bits.shape[0] < (self.entries + 7) >> 3:
            raise Unusual
        with nogil:
            for number in range(self.entries):
                exist = (definitions[number] >= exists) & (repetitions[number] <= deepest)
                bit = exist & (definitions[number] >= valid)
                word |= bit << at
                filled += bit
                at += exist
                if at == 64:
                    memcpy(&bits[found >> 3], &word, 8)
                    found += 64
                    word = at = 0
            if at:
                memcpy(&bits[found >> 3], &word, (at + 7) >> 3)
        found += at
        return found, found - filled

    def lists(self, int depth, int exists, int filled, int32_t[::1] offsets not None):
        """Write the offsets of lists in this column. `offsets` has room for one more than there are levels.

        Args:
            depth: lists around these.
            exists: the least definition level of a list that exists, though it may be null.
            filled: that of an item.

        Returns:
            How many lists exist.
        """
        cdef int64_t number
        cdef int64_t found = 0
        cdef int32_t items = 0
        cdef const uint8_t* definitions = self._taken_definitions.data
        cdef const uint8_t* repetitions = self._taken_repetitions.data
        if offsets.shape[0] <= self.entries or self.entries > MOST or not self._repetition:
            raise Unusual
        with nogil:
            for number in range(self.entries):
                offsets[found] = items
                found += (repetitions[number] <= depth) & (definitions[number] >= exists)
                items += (repetitions[number] <= depth + 1) & (definitions[number] >= filled)
            offsets[found] = items
        return found


def spread(const uint8_t[::1] bits not None, int64_t count, int64_t size, const uint8_t[::1] values not None, uint8_t[::1] out not None):
    """Write `count` values of `size` bytes with gaps where a bit is not set. Whether there are as many values as bits that are set."""
    cdef int64_t number
    cdef int64_t at = 0
    cdef int64_t have = values.shape[0] // size
    if bits.shape[0] * 8 < count or out.shape[0] < count * size:
        return False
    with nogil:
        for number in range(count):
            if bits[number >> 3] >> (number & 7) & 1:
                if at >= have:
                    at += 1
                    break
                memcpy(&out[number * size], &values[at * size], size)
                at += 1
            else:
                memset(&out[number * size], 0, size)
    return at == have


def spread_ends(const uint8_t[::1] bits not None, int64_t count, const int32_t[::1] ends not None, int32_t[::1] out not None):
    """The same for offsets of strings, of which there is one more: a null string has no bytes."""
    cdef int64_t number
    cdef int64_t at = 0
    cdef int64_t have = ends.shape[0] - 1
    if bits.shape[0] * 8 < count or out.shape[0] < count + 1 or have < 0:
        return False
    with nogil:
        out[0] = ends[0]
        for number in range(count):
            at += bits[number >> 3] >> (number & 7) & 1
            if at > have:
                break
            out[number + 1] = ends[at]
    return at == have
