"""Headers of Parquet pages: the decoded size of a page, without decoding it.

A header is Thrift's compact protocol, https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift. Its sizes are
reliable: Arrow refuses a page that decompresses to another size than its header says, and reads no more values than it says.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from cdfd.parquet.kernels import native
from cdfd.parquet.layout import Compact

DATA, INDEX, DICTIONARY, DATA_V2 = range(4)
"""Kinds of pages."""
PLAIN, PLAIN_DICTIONARY, DELTA_LENGTH, RLE_DICTIONARY = 0, 2, 6, 8
"""Encodings of strings."""
HEADER_BYTES = 1 << 20
"""Bytes of a header, at most; its statistics contain values of the column."""
MOST_PAGES = 1024
"""Pages whose headers are read at a time: a hostile file may have millions of them."""

_I32, _STRUCT = 5, 12
_MOST = (1 << 31) - 1
"""The largest number in a header: Arrow would truncate a larger one."""
_VARINT = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
_NUMBER = rb"\x15(" + _VARINT + rb")"
# Type and sizes, an optional checksum, then the struct of the kind of page with its first fields.
_USUAL = re.compile(
    _NUMBER * 3
    + rb"(?:\x15("
    + _VARINT
    + rb"))?([\x1c\x2c\x3c\x4c\x5c])"
    + _NUMBER * 2
    + rb"(?:"
    + _NUMBER * 2
    + rb")?",
    re.DOTALL,
)
_KINDS = {
    (b"\x00", True, b"\x2c"): DATA,
    (b"\x00", False, b"\x1c"): DATA,
    (b"\x04", True, b"\x4c"): DICTIONARY,
    (b"\x04", False, b"\x3c"): DICTIONARY,
    (b"\x06", True, b"\x5c"): DATA_V2,
    (b"\x06", False, b"\x4c"): DATA_V2,
}
"""Kind of page, by type, absence of a checksum, and the id of the next field, which is the struct of that type."""


class Page(NamedTuple):
    """One page.

    Attributes:
        kind: of the page.
        size: bytes once decompressed.
        stored: bytes in the file.
        values: number of values, including nulls.
        encoding: of its values.
        start: length of the header; the page's data follows it.
    """

    kind: int
    size: int
    stored: int
    values: int
    encoding: int
    start: int


def page(data: Any, at: int) -> Page:
    """The page whose header begins at `at` in `data`.

    Raises:
        IndexError: the header ends after the data.
        ValueError: the header is damaged.
    """
    if native is not None and (sizes := native.page(data, at)) is not None:
        return Page._make(sizes)
    found = _usual(data, at) or _any(data, at)
    _, size, stored, values, encoding, _ = found
    if not (0 <= size <= _MOST and 0 <= stored <= _MOST and 0 <= values <= _MOST and 0 <= encoding <= _MOST):
        raise ValueError("a page with a size or number that cannot be")
    return found


def pages(read: Callable[[int, int], Any], start: int, end: int, values: int) -> Iterator[Page]:
    """The pages of a column chunk with `values` values.

    Args:
        read: returns bytes of the file, given a position and a length; fewer at the file's end.
        start, end: the chunk's range in the file.
        values: number of values, from the footer.

    Raises:
        ValueError: a header is damaged, or a page ends after the chunk.
    """
    seen = 0
    while start < end and seen < values:
        found = _read(read, start, end)
        start += found.start + found.stored
        if start > end:
            raise ValueError("a page ends after its column")
        seen += found.values if found.kind in (DATA, DATA_V2) else 0
        yield found


def pages_in(data: memoryview, start: int, end: int, values: int, *, strings: bool = True) -> Iterable[Page]:
    """The same of a file that is in memory. Consecutive pages may come as one, whose size is that of the largest: those of one kind and
    encoding, except `strings` that are not in a dictionary."""
    if native is not None and (found := native.pages(data, start, end, values, strings)) is not None:
        return map(Page._make, found)
    return pages(lambda at, count: data[at : at + count], start, end, values)


def pages_at(
    read_at: Callable[[int, int], bytes], start: int, end: int, values: int, *, strings: bool = True
) -> Iterator[Page]:
    """The same of a file that is read by `read_at`, which takes a length and a position."""
    while native is not None and start < end and values > 0:
        found = native.pages_at(read_at, start, end, values, strings, MOST_PAGES)
        if found is None:
            break
        for each in map(Page._make, found):
            start += each.start + each.stored
            values -= each.values if each.kind in (DATA, DATA_V2) else 0
            yield each
    yield from pages(lambda at, count: read_at(count, at), start, end, values)


def longest_value(data: bytes | memoryview, count: int) -> int | None:
    """Bytes of the longest of `count` strings in the data of a dictionary page; None where that is not known."""
    found = -1 if native is None else native.longest(data, count)
    return None if found < 0 else found


def _read(read: Callable[[int, int], Any], start: int, end: int) -> Page:
    for size in (128, 4096, HEADER_BYTES):
        with_header = read(start, min(size, end - start))
        try:
            return page(with_header, 0)
        except IndexError:
            if size >= end - start:
                break
    raise ValueError("a page's header does not end")


def _usual(data: Any, at: int) -> Page | None:
    """A header in the usual encoding; None for any other."""
    found = _USUAL.match(data, at)
    if found is None:
        return None
    type_, size, stored, checksum, struct, values, second, _, fourth = found.groups()
    kind = _KINDS.get((type_, checksum is None, struct))
    if kind is None or (fourth is None) != (kind == DICTIONARY):
        return None
    end = found.end()
    if data[end : end + 2] == b"\0\0":
        end += 2
    elif (end := _end(data, end)) < 0:
        return None
    encoding = _number(fourth if kind == DATA_V2 else second)
    return Page(kind, _number(size), _number(stored), _number(values), encoding, end - at)


def _end(data: Any, at: int) -> int:
    """Where a header ends, from a position in its struct that only statistics may follow; -1 if anything else does."""
    depth = 2
    while depth:
        field = data[at]
        at += 1
        kind = field & 15
        if not field:
            depth -= 1
        elif depth == 1 or not field >> 4:
            return -1
        elif kind == 8:
            size = shift = 0
            while True:
                byte = data[at]
                at += 1
                size |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            at += size
        elif kind in (5, 6):
            while data[at] > 127:
                at += 1
            at += 1
        elif kind == 12:
            depth += 1
        elif kind not in (1, 2):
            return -1
    return at


def _number(varint: bytes) -> int:
    bits = int.from_bytes(varint, "little")
    if bits > 127:
        bits = (
            (bits & 0x7F) | bits >> 1 & 0x3F80 | bits >> 2 & 0x1FC000 | bits >> 3 & 0xFE00000 | bits >> 4 & 0x7F0000000
        )
    return (bits >> 1) ^ -(bits & 1)


def _any(data: Any, at: int) -> Page:
    """A header in any encoding that the protocol allows."""
    reader = Compact(data, at)
    numbers: dict[tuple[int, ...], int] = {}
    for field, kind in reader.fields():
        if field in (5, 7, 8) and kind == _STRUCT:
            for inner, inner_kind in reader.fields():
                if inner <= 4 and inner_kind == _I32:
                    numbers[field, inner] = reader.integer(inner_kind)
                else:
                    reader.skip(inner_kind)
        elif field <= 3 and kind == _I32:
            numbers[field,] = reader.integer(kind)
        else:
            reader.skip(kind)
    kind = numbers.get((1,), -1)
    struct = {DATA: 5, DICTIONARY: 7, DATA_V2: 8}.get(kind, 0)
    encoding = numbers.get((struct, 4 if kind == DATA_V2 else 2), 0)
    size, stored = numbers.get((2,), 0), numbers.get((3,), 0)
    return Page(kind, size, stored, numbers.get((struct, 1), 0), encoding, reader.place - at)
