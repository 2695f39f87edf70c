"""Reads the bytes of a file by position. The caller brings the function that does so: nothing here opens a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from cdfd.errors import TrevniError

Read: TypeAlias = "Callable[[int, int], bytes | memoryview]"
"""Returns the bytes at a position, given that and their number. Fewer bytes are returned only at the file's end."""

FIRST_BYTES = 8 << 10
"""Bytes of the first read of a header; each further read doubles. The headers of most files need one."""
LARGEST_STEP = 1 << 20
"""Bytes of a read of a header, at most."""

STEP_BYTES = 8 << 20
"""Bytes of blocks to read at once, about, where each read may be a request."""


@dataclass(eq=False)
class Source:
    """A file as a function that reads it.

    Attributes:
        size: of the file, in bytes.
        step: bytes to read at once, about.
    """

    read: Read
    size: int
    step: int = STEP_BYTES

    def bytes_at(self, start: int, length: int) -> memoryview:
        """Exactly `length` bytes.

        Raises:
            TrevniError: the file ends before.
        """
        if start < 0 or length < 0 or start + length > self.size:
            raise TrevniError(f"{length} bytes are expected, and the file has {self.size}").at(offset=start)
        data = memoryview(self.read(start, length)).cast("B") if length else memoryview(b"")
        if len(data) != length:
            raise TrevniError(f"{length} bytes are expected, and {len(data)} were read").at(offset=start)
        return data


class Cursor:
    """Reads the primitive values of headers, one after the other (specification, "Primitive Values").

    Args:
        source: the file.
        start: position of the first value.
        first: bytes of the first read.
    """

    def __init__(self, source: Source, start: int = 0, first: int = FIRST_BYTES) -> None:
        self._source = source
        self._start = start
        self._data = memoryview(b"")
        self._at = 0
        self._step = first

    @property
    def position(self) -> int:
        """Position in the file of the next value."""
        return self._start + self._at

    @property
    def remaining(self) -> int:
        """Bytes of the file from there on."""
        return self._source.size - self.position

    def take(self, count: int) -> memoryview:
        """The next bytes.

        Raises:
            TrevniError: the file ends before.
        """
        if count > self.remaining:
            what = f"{count} bytes are expected, and {max(0, self.remaining)} are left"
            raise TrevniError(what).at(offset=self.position)
        if count > len(self._data) - self._at:
            self._start, self._at = self.position, 0
            length = min(max(count, self._step), self._source.size - self._start)
            self._data = self._source.bytes_at(self._start, length)
            self._step = min(self._step * 2, LARGEST_STEP)
        data = self._data[self._at : self._at + count]
        self._at += count
        return data

    def integer(self, size: int) -> int:
        """A signed number of so many bytes."""
        return int.from_bytes(self.take(size), "little", signed=True)

    def long(self, most: int = 10) -> int:
        """A number of variable length: 80 01 -> 128 -> 64.

        Args:
            most: bytes, at most: 5 for an int.

        Raises:
            TrevniError: the file ends before, or the number has more bytes or bits.
        """
        start, number, shift = self.position, 0, 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= 7 * most:
                raise TrevniError(f"a number has more than {most} bytes").at(offset=start)
        if number >> (32 if most == 5 else 64):
            raise TrevniError(f"a number has more than {32 if most == 5 else 64} bits").at(offset=start)
        return (number >> 1) ^ -(number & 1)

    def byte_string(self) -> bytes:
        """Bytes after their number.

        Raises:
            TrevniError: the number is negative, or the file ends before.
        """
        start = self.position
        length = self.long()
        if length < 0:
            raise TrevniError(f"a length is negative: {length}").at(offset=start)
        return bytes(self.take(length))

    def text(self) -> str:
        """UTF-8 text after its length.

        Raises:
            TrevniError: as `byte_string`, or the bytes are not UTF-8.
        """
        start = self.position
        try:
            return self.byte_string().decode()
        except UnicodeDecodeError:
            raise TrevniError("text is not UTF-8").at(offset=start) from None


def long_bytes(number: int) -> bytes:
    """A number of variable length: 64 -> 128 -> 80 01."""
    number_left = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while number_left > 0x7F:
        encoded.append(number_left & 0x7F | 0x80)
        number_left >>= 7
    encoded.append(number_left)
    return bytes(encoded)


def sized_bytes(data: bytes) -> bytes:
    """Bytes after their number."""
    return long_bytes(len(data)) + data
