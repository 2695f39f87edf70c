# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Rows of text out of columns: JSON objects, arrays and lines. Each number is printed where it stands, without a text of its own."""

from libc.math cimport fabs, rint, signbit
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cdef enum Kind:
    TEXTS = 0
    INTEGERS = 1
    UNSIGNED = 2
    THOUSANDTHS = 3
    DECIMALS = 4
    BOOLEANS = 5
    STRINGS = 6
    DATES = 7
    TIMESTAMPS = 8

cdef enum:
    MOST_PIECES = 4
    WIDE = 32  # a short text is copied as so many bytes, where there is room
    LONGEST = 96  # bytes of a number, a date or a time, without its marks

cdef int64_t DAY = 86_400_000_000

cdef struct Piece:
    const int64_t* index  # NULL if it is the same in all rows
    int64_t same

cdef struct Cells:
    Kind kind
    const uint8_t* values
    Py_ssize_t size
    const int64_t* offsets
    const uint8_t* nulls  # 1 for each row that is null; NULL if none is
    const uint8_t* opening
    Py_ssize_t opening_size
    const uint8_t* closing
    Py_ssize_t closing_size
    Py_ssize_t number  # of digits after the point; of the first bit; whether a time has a zone
    Piece pieces[MOST_PIECES]
    int num_pieces
    int64_t day  # whose text is known
    uint8_t date[16]

cdef extern from *:
    """
    static const char cdfd_pairs[201] =
        "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748495051"
        "525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";
    static const char cdfd_digits[17] = "0123456789abcdef";
    """
    const uint8_t* cdfd_pairs
    const uint8_t* cdfd_digits


cdef inline uint8_t* _two(uint8_t* out, int64_t number) noexcept nogil:
    memcpy(out, cdfd_pairs + 2 * number, 2)
    return out + 2


cdef inline int _digits(uint8_t* text, uint64_t number) noexcept nogil:
    """Write digits up to place 20 of `text`. Returns where they begin."""
    cdef int at = 20
    cdef uint64_t rest
    while number >= 100:
        rest = number // 100
        at -= 2
        memcpy(text + at, cdfd_pairs + 2 * (number - 100 * rest), 2)
        number = rest
    if number >= 10:
        at -= 2
        memcpy(text + at, cdfd_pairs + 2 * number, 2)
    else:
        at -= 1
        text[at] = 48 + <uint8_t>number
    return at


cdef inline uint8_t* _unsigned(uint8_t* out, uint64_t number) noexcept nogil:
    cdef uint8_t text[40]
    cdef int at = _digits(text, number)
    memcpy(out, text + at, 20)  # as many bytes each time; those beyond are written again
    return out + 20 - at


cdef inline uint8_t* _integer(uint8_t* out, int64_t number) noexcept nogil:
    if number < 0:
        out[0] = c"-"
        return _unsigned(out + 1, -<uint64_t>number)
    return _unsigned(out, <uint64_t>number)


cdef inline uint8_t* _thousandths(uint8_t* out, double value) noexcept nogil:
    """A number of at most three decimals, with one at least."""
    cdef uint64_t number = <uint64_t>fabs(rint(value * 1000))
    cdef int fraction = <int>(number % 1000)
    if signbit(value):
        out[0] = c"-"
        out += 1
    out = _unsigned(out, number // 1000)
    out[0] = c"."
    out[1] = 48 + fraction // 100
    out[2] = 48 + fraction // 10 % 10
    out[3] = 48 + fraction % 10
    if fraction % 10:
        return out + 4
    return out + 3 if fraction % 100 else out + 2


cdef inline uint8_t* _decimal(uint8_t* out, int64_t value, Py_ssize_t scale) noexcept nogil:
    """An unscaled number with a point before its last `scale` digits, of which there are at most 38."""
    cdef uint8_t text[40]
    cdef uint64_t number = <uint64_t>value
    cdef Py_ssize_t count, place
    cdef int at
    if value < 0:
        out[0] = c"-"
        out += 1
        number = -number
    at = _digits(text, number)
    count = 20 - at
    if scale == 0:
        memcpy(out, text + at, count)
        return out + count
    if count > scale:
        memcpy(out, text + at, count - scale)
        out += count - scale
        at = 20 - <int>scale
        count = scale
    else:
        out[0] = c"0"
        out += 1
    out[0] = c"."
    out += 1
    for place in range(scale - count):
        out[place] = c"0"
    out += scale - count
    memcpy(out, text + at, count)
    return out + count


cdef void _set_date(Cells* cells, int64_t day) noexcept nogil:
    """`YYYY-MM-DD` of a day from year 0 to 9999. Days count from the first of March, so that a leap day ends its year."""
    cdef int64_t days = day + 719_468
    cdef int64_t era = days // 146_097
    cdef int64_t rest = days - 146_097 * era
    cdef int64_t year, month
    cdef uint8_t* out = cells.date
    if rest < 0:
        era -= 1
        rest += 146_097
    year = (rest - rest // 1460 + rest // 36_524 - rest // 146_096) // 365
    rest -= 365 * year + year // 4 - year // 100
    month = (5 * rest + 2) // 153
    rest -= (153 * month + 2) // 5 - 1
    month = month + 3 if month < 10 else month - 9
    year += 400 * era + (month <= 2)
    out = _two(_two(out, year // 100), year % 100)
    out[0] = c"-"
    out = _two(out + 1, month)
    out[0] = c"-"
    _two(out + 1, rest)
    cells.day = day


cdef inline uint8_t* _date(uint8_t* out, Cells* cells, int64_t day) noexcept nogil:
    if day != cells.day:
        _set_date(cells, day)
    memcpy(out, cells.date, 16)
    return out + 10


cdef inline uint8_t* _timestamp(uint8_t* out, Cells* cells, int64_t time) noexcept nogil:
    cdef int64_t day = time // DAY
    cdef int64_t rest = time - day * DAY
    cdef int64_t seconds
    if rest < 0:
        day -= 1
        rest += DAY
    out = _date(out, cells, day)
    seconds = rest // 1_000_000
    rest -= seconds * 1_000_000
    out[0] = c"T"
    out = _two(out + 1, seconds // 3600)
    out[0] = c":"
    out = _two(out + 1, seconds // 60 % 60)
    out[0] = c":"
    out = _two(out + 1, seconds % 60)
    out[0] = c"."
    out = _two(_two(_two(out + 1, rest // 10_000), rest // 100 % 100), rest % 100)
    if cells.number:
        out[0] = c"Z"
        out += 1
    return out


cdef inline bint _is_special(uint8_t byte) noexcept nogil:
    return byte < 32 or byte == 34 or byte == 92


cdef inline uint64_t _specials(const uint8_t* text) noexcept nogil:
    """Not 0 if one of eight bytes is a control character, a quote or a backslash."""
    cdef uint64_t word, quote, slash
    memcpy(&word, text, 8)
    quote = word ^ <uint64_t>0x2222222222222222
    slash = word ^ <uint64_t>0x5C5C5C5C5C5C5C5C
    return (
        ((word - <uint64_t>0x2020202020202020) & ~word)
        | ((quote - <uint64_t>0x0101010101010101) & ~quote)
        | ((slash - <uint64_t>0x0101010101010101) & ~slash)
    ) & <uint64_t>0x8080808080808080


cdef inline bint _is_clean(const uint8_t* text, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t place
    if size >= 8:
        for place in range(0, size - 8, 8):
            if _specials(text + place):
                return False
        return not _specials(text + size - 8)
    for place in range(size):
        if _is_special(text[place]):
            return False
    return True


cdef uint8_t* _escaped(uint8_t* out, const uint8_t* text, Py_ssize_t size) noexcept nogil:
    """A text with escapes, which take six bytes at most."""
    cdef Py_ssize_t place
    cdef uint8_t byte
    for place in range(size):
        byte = text[place]
        if not _is_special(byte):
            out[0] = byte
            out += 1
            continue
        out[0] = c"\\"
        if byte == 8:
            out[1] = c"b"
        elif byte == 9:
            out[1] = c"t"
        elif byte == 10:
            out[1] = c"n"
        elif byte == 12:
            out[1] = c"f"
        elif byte == 13:
            out[1] = c"r"
        elif byte >= 32:
            out[1] = byte
        else:
            memcpy(out + 1, b"u00", 3)
            out[4] = cdfd_digits[byte >> 4]
            out[5] = cdfd_digits[byte & 15]
            out += 4
        out += 2
    return out


cdef inline uint8_t* _copied(
    uint8_t* out, uint8_t* end, const uint8_t* text, Py_ssize_t size, Py_ssize_t readable
) noexcept nogil:
    """A text, of which `readable` bytes may be read; NULL if there is no room."""
    if size <= WIDE and readable >= WIDE and end - out >= WIDE:
        memcpy(out, text, WIDE)
    elif end - out >= size:
        memcpy(out, text, size)
    else:
        return NULL
    return out + size


cdef uint8_t* _text(uint8_t* out, uint8_t* end, Cells* cells, int64_t row) noexcept nogil:
    """A cell of text; NULL if there is no room."""
    cdef int64_t place
    cdef const uint8_t* text
    cdef Py_ssize_t size
    cdef int number
    if cells.kind == TEXTS:
        for number in range(cells.num_pieces):
            place = cells.pieces[number].same
            if cells.pieces[number].index != NULL:
                place = cells.pieces[number].index[row]
            size = cells.offsets[place + 1] - cells.offsets[place]
            out = _copied(out, end, cells.values + cells.offsets[place], size, cells.size - cells.offsets[place])
            if out == NULL:
                return NULL
        return out
    text = cells.values + cells.offsets[row]
    size = cells.offsets[row + 1] - cells.offsets[row]
    if _is_clean(text, size):
        return _copied(out, end, text, size, cells.size - cells.offsets[row])
    return _escaped(out, text, size) if end - out >= 6 * size else NULL


cdef inline uint8_t* _number(uint8_t* out, Cells* cells, int64_t row) noexcept nogil:
    """A cell of at most `LONGEST` bytes."""
    cdef int64_t bit
    if cells.kind == INTEGERS:
        return _integer(out, (<const int64_t*>cells.values)[row])
    if cells.kind == UNSIGNED:
        return _unsigned(out, (<const uint64_t*>cells.values)[row])
    if cells.kind == THOUSANDTHS:
        return _thousandths(out, (<const double*>cells.values)[row])
    if cells.kind == DECIMALS:
        return _decimal(out, (<const int64_t*>cells.values)[row], cells.number)
    if cells.kind == DATES:
        return _date(out, cells, (<const int64_t*>cells.values)[row])
    if cells.kind == TIMESTAMPS:
        return _timestamp(out, cells, (<const int64_t*>cells.values)[row])
    bit = cells.number + row
    if (cells.values[bit >> 3] >> (bit & 7)) & 1:
        memcpy(out, b"true", 4)
        return out + 4
    memcpy(out, b"false", 5)
    return out + 5


cdef uint8_t* _row(uint8_t* out, uint8_t* end, Cells* gaps, Cells* cells, int count, int64_t row) noexcept nogil:
    """A row; NULL if there is no room."""
    cdef int number
    cdef Cells* cell
    for number in range(count):
        out = _copied(out, end, gaps[number].opening, gaps[number].opening_size, 0)
        cell = cells + number
        if out == NULL or end - out < LONGEST + cell.opening_size + cell.closing_size:
            return NULL
        if cell.nulls != NULL and cell.nulls[row]:
            memcpy(out, b"null", 4)
            out += 4
            continue
        if cell.opening_size == 1:
            out[0] = cell.opening[0]
            out += 1
        else:
            memcpy(out, cell.opening, cell.opening_size)
            out += cell.opening_size
        if cell.kind == TEXTS or cell.kind == STRINGS:
            out = _text(out, end - cell.closing_size, cell, row)
            if out == NULL:
                return NULL
        else:
            out = _number(out, cell, row)
        if cell.closing_size == 1:
            out[0] = cell.closing[0]
            out += 1
        else:
            memcpy(out, cell.closing, cell.closing_size)
            out += cell.closing_size
    return _copied(out, end, gaps[count].opening, gaps[count].opening_size, 0)


cdef int _set_cells(Cells* cell, tuple column) except -1:
    """Point to what a column has. The caller keeps it."""
    cdef const uint8_t[::1] octets
    cdef const int64_t[::1] longs
    cdef bytes mark
    kind, values, offsets, nulls, opening, closing, number, pieces = column
    cell.kind = <Kind><int>kind
    octets = values
    cell.values = &octets[0]
    cell.size = octets.shape[0]
    if offsets is not None:
        longs = offsets
        cell.offsets = &longs[0]
    if nulls is not None:
        octets = nulls
        cell.nulls = &octets[0]
    mark = opening
    cell.opening, cell.opening_size = <const uint8_t*><const char*>mark, len(mark)
    mark = closing
    cell.closing, cell.closing_size = <const uint8_t*><const char*>mark, len(mark)
    cell.number = number
    if len(pieces) > MOST_PIECES:
        raise ValueError(len(pieces))
    for place, piece in enumerate(pieces):
        if isinstance(piece, int):
            cell.pieces[<int>place].same = piece
        else:
            longs = piece
            cell.pieces[<int>place].index = &longs[0]
    cell.num_pieces = len(pieces)
    cell.day = INT64_MIN
    return 0


def write(list gaps, list columns, int64_t row, uint8_t[::1] data, int64_t[::1] offsets):
    """Write rows from `row` on: gap 0, the cell of column 0, gap 1 and so on, ending with a gap.

    Args:
        gaps: bytes, one more than columns.
        columns: for each one a tuple: its kind, values, offsets of texts, a mask of nulls, what precedes and what follows a cell that is
            not null, a number that belongs to the kind, and the positions of the pieces of `TEXTS`.
        row: the first.
        data: gets the text, from `offsets[row]` on.
        offsets: gets where each row ends, at the place after its own. It has a place more than there are rows.

    Returns:
        The row after the last for which there was room.
    """
    cdef int count = len(columns)
    cdef int number
    cdef int64_t rows = offsets.shape[0] - 1
    cdef uint8_t* begin = &data[0]
    cdef uint8_t* end = begin + data.shape[0]
    cdef uint8_t* out = begin + offsets[row]
    cdef bytes gap
    cdef Cells* parts = <Cells*>calloc(2 * count + 1, sizeof(Cells))
    if parts == NULL:
        raise MemoryError
    try:
        for number in range(count):
            _set_cells(parts + number, columns[number])
        for number in range(count + 1):
            gap = gaps[number]
            parts[count + number].opening = <const uint8_t*><const char*>gap
            parts[count + number].opening_size = len(gap)
        with nogil:
            while row < rows:
                out = _row(out, end, parts + count, parts, count, row)
                if out == NULL:
                    break
                row += 1
                offsets[row] = out - begin
    finally:
        free(parts)
    return row


def are_thousandths(const double[::1] values, nulls):
    """Whether all numbers that are not null have at most three decimals as their shortest text, and not more than 15 digits."""
    cdef const uint8_t[::1] mask
    cdef const uint8_t* hidden = NULL
    cdef double scaled
    cdef Py_ssize_t row
    cdef bint found = True
    if nulls is not None:
        mask = nulls
        hidden = &mask[0]
    with nogil:
        for row in range(values.shape[0]):
            scaled = rint(values[row] * 1000)
            if not (scaled / 1000 == values[row] and fabs(scaled) < 1e15) and (hidden == NULL or not hidden[row]):
                found = False
                break
    return found
