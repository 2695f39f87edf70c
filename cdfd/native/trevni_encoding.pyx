# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Lengths and values -> blocks of Trevni columns. The counterpart of `trevni_decoding`."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from cdfd.native.kinds cimport BITS, FIXED, INTEGERS, SLACK, TEXT, Kind

cdef enum:
    LONGEST = 10  # bytes of a number


cdef enum Result:
    ROWS_END = 0
    BLOCK_FULL = 1
    NO_MEMORY = 2


cdef struct Rows:
    const int64_t* lengths
    const uint8_t* values
    Py_ssize_t first  # number of the first value in its buffer, for strings and bits
    const int32_t* offsets
    const uint8_t* text_end


cdef inline int _put(uint8_t* target, int64_t value) noexcept nogil:
    """Write a zigzag number. Returns its bytes."""
    cdef uint64_t number = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef int size = 1
    while number >= 0x80:
        target[size - 1] = <uint8_t>(number | 0x80)
        number >>= 7
        size += 1
    target[size - 1] = <uint8_t>number
    return size


cdef class BlockEncoder:
    """Encodes the rows of a column, block by block. Keeps a block that is not full until there are more rows.

    Args:
        kind: as for `decode`.
        width: bytes of a number in memory.
        block_bytes: size from which a block ends. Lengths that continue a run take none.
        block_rows: rows of a block, at most.
        ones: whether lengths of one may be runs, as those of zero are.
    """

    cdef uint8_t* _data
    cdef Py_ssize_t _size, _room, _block_bytes, _weight, _block_rows, _run
    cdef int64_t _repeated
    cdef Kind _kind
    cdef int _width
    cdef bint _ones
    cdef readonly Py_ssize_t rows

    def __cinit__(self, int kind, int width, Py_ssize_t block_bytes, Py_ssize_t block_rows, bint ones):
        self._data = NULL
        self._kind = <Kind>kind
        self._width = width
        self._block_bytes = block_bytes
        self._block_rows = block_rows
        self._ones = ones
        self._size = self._room = self._weight = self._run = self.rows = 0

    def __dealloc__(self):
        free(self._data)

    def write(
        self,
        lengths,
        const uint8_t[::1] values,
        const int32_t[::1] offsets,
        Py_ssize_t first,
        const int64_t[::1] entries,
        Py_ssize_t row,
        Py_ssize_t value,
    ):
        """Append rows from `row` on, until the block is full or they end.

        Args:
            lengths: of an array column; None for others.
            values: numbers, text, or bits.
            offsets: of strings.
            first: number of the first value in its buffer, for strings and bits.
            entries: number of lengths, or of values if there are none, before each row, and of all rows.
            row: the first to append.
            value: the first of an array column.

        Returns:
            The row and the value after the last that was appended, and whether the block is full.
        """
        cdef Rows rows
        cdef const int64_t[::1] each
        cdef Result result
        rows.lengths = NULL
        if lengths is not None:
            each = lengths
            rows.lengths = &each[0]
        rows.values = &values[0]
        rows.first = first
        rows.offsets = &offsets[0]
        rows.text_end = &values[0] + values.shape[0]
        with nogil:
            result = self._append(&rows, &entries[0], entries.shape[0] - 1, &row, &value)
        if result == NO_MEMORY:
            raise MemoryError
        return row, value, result == BLOCK_FULL

    def take(self):
        """The block so far, and begin the next one."""
        if not self._reserve(LONGEST):
            raise MemoryError
        self._end_run()
        found = PyBytes_FromStringAndSize(<char*>self._data, self._size)
        self._size = self._weight = self.rows = 0
        return found

    cdef bint _reserve(self, Py_ssize_t more) noexcept nogil:
        cdef Py_ssize_t room
        cdef uint8_t* data
        if self._room - self._size >= more:
            return True
        room = 2 * self._room + more + 4096
        data = <uint8_t*>realloc(self._data, room)
        if data == NULL:
            return False
        self._data = data
        self._room = room
        return True

    cdef void _end_run(self) noexcept nogil:
        """Write the lengths that are alike. There is room for a number."""
        cdef int64_t number = self._repeated
        if self._run > 1:
            number = (3 - number) - 2 * <int64_t>self._run
        if self._run:
            self._size += _put(self._data + self._size, number)
        self._run = 0

    cdef Result _append(
        self, Rows* rows, const int64_t* entries, Py_ssize_t count, Py_ssize_t* row, Py_ssize_t* value
    ) noexcept nogil:
        cdef int64_t entry
        while row[0] < count:
            if rows.lengths == NULL:
                if not self._values(rows, entries[row[0]], entries[row[0] + 1] - entries[row[0]]):
                    return NO_MEMORY
                self._weight = self._size
            else:
                for entry in range(entries[row[0]], entries[row[0] + 1]):
                    if not self._array(rows, rows.lengths[entry], value[0]):
                        return NO_MEMORY
                    value[0] += rows.lengths[entry]
            row[0] += 1
            self.rows += 1
            if self._weight >= self._block_bytes or self.rows >= self._block_rows:
                return BLOCK_FULL
        return ROWS_END

    cdef bint _array(self, Rows* rows, int64_t length, int64_t value) noexcept nogil:
        """A length and its values."""
        cdef Py_ssize_t before
        if not self._reserve(2 * LONGEST):
            return False
        if self._run and self._repeated == length:
            self._run += 1
            return True
        self._end_run()
        before = self._size
        if length == 0 or (self._ones and length == 1):
            self._run = 1
            self._repeated = length
            self._weight += 1
            return True
        self._size += _put(self._data + self._size, length)
        if not self._values(rows, value, length):
            return False
        self._weight += self._size - before
        return True

    cdef bint _values(self, Rows* rows, int64_t start, int64_t count) noexcept nogil:
        cdef int64_t number
        cdef Py_ssize_t size
        cdef uint8_t* target
        cdef const uint8_t* text
        if self._kind == INTEGERS:
            if not self._reserve(LONGEST * count):
                return False
            target = self._data + self._size
            for number in range(start, start + count):
                if self._width == 8:
                    target += _put(target, (<const int64_t*>rows.values)[number])
                else:
                    target += _put(target, (<const int32_t*>rows.values)[number])
            self._size = target - self._data
        elif self._kind == FIXED:
            size = count * self._width
            if not self._reserve(size):
                return False
            memcpy(self._data + self._size, rows.values + start * self._width, size)
            self._size += size
        elif self._kind == TEXT:
            for number in range(rows.first + start, rows.first + start + count):
                size = rows.offsets[number + 1] - rows.offsets[number]
                if not self._reserve(size + LONGEST + SLACK):
                    return False
                self._size += _put(self._data + self._size, size)
                text = rows.values + rows.offsets[number]
                if size <= SLACK and rows.text_end - text >= SLACK:
                    memcpy(self._data + self._size, text, SLACK)
                else:
                    memcpy(self._data + self._size, text, size)
                self._size += size
        elif self._kind == BITS:
            size = (count + 7) >> 3
            if not self._reserve(size):
                return False
            target = self._data + self._size
            for number in range(size):
                target[number] = 0
            start += rows.first
            for number in range(count):
                target[number >> 3] |= ((rows.values[(start + number) >> 3] >> ((start + number) & 7)) & 1) << (number & 7)
            self._size += size
        return True
