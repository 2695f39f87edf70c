"""A file's header: metadata of the file and of its columns, and where the columns begin (specification, "Metadata", "File Format").

54 72 76 02 | rows: fixed64 | columns: fixed32 | file metadata | metadata of each column | start of each column: fixed64
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from cdfd.errors import TrevniError
from cdfd.trevni.checksums import Checksum
from cdfd.trevni.codecs import Codec
from cdfd.trevni.source import Cursor, Source, long_bytes, sized_bytes
from cdfd.trevni.values.value_types import ValueType

Kind = TypeVar("Kind", Codec, Checksum)

MAGIC = b"Trv"
RESERVED = "trevni."
"""Keys that begin so belong to the format."""

_NAME, _TYPE, _VALUES = "trevni.name", "trevni.type", "trevni.values"
_ARRAY, _PARENT, _CODEC, _CHECKSUM = "trevni.array", "trevni.parent", "trevni.codec", "trevni.checksum"
_RUNS = 2
"""The first version of the layout whose array lengths have runs."""


@dataclass(frozen=True, slots=True)
class ColumnMetadata:
    """One physical column.

    Attributes:
        name: unique in the file.
        type: of its values.
        array: whether each row has a sequence of values, after its length.
        parent: the array column before it whose lengths it shares.
        values: whether a block's descriptor has the block's first value.
        codec: of its blocks, or the file's.
        checksum: of its blocks, or the file's.
        metadata: all properties, as the file has them.
    """

    name: str
    type: ValueType
    array: bool = False
    parent: str | None = None
    values: bool = False
    codec: Codec = Codec.NULL
    checksum: Checksum = Checksum.NULL
    metadata: Mapping[str, bytes] = field(default_factory=dict, hash=False)

    @property
    def plain(self) -> bool:
        """Whether each row has exactly one value."""
        return not self.array and self.parent is None


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """The content of a file's header.

    Attributes:
        version: of the layout, 1 or 2.
        num_rows: in the file.
        columns: in the file's order.
        starts: position of each column in the file.
        codec: default of the columns.
        checksum: default of the columns.
        metadata: all properties of the file, as it has them.
        size: of the header, in bytes.
    """

    version: int
    num_rows: int
    columns: tuple[ColumnMetadata, ...]
    starts: tuple[int, ...]
    codec: Codec = Codec.NULL
    checksum: Checksum = Checksum.NULL
    metadata: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    size: int = 0

    @property
    def runs(self) -> bool:
        """Whether array lengths may have runs."""
        return self.version >= _RUNS

    @property
    def num_columns(self) -> int:
        """Physical columns."""
        return len(self.columns)


def read(source: Source) -> FileMetadata:
    """The header of a file.

    Raises:
        TrevniError: it is not a Trevni file, or its header is damaged.
    """
    cursor = Cursor(source)
    version = _version(cursor)
    rows = cursor.integer(8)
    if rows < 0:
        raise TrevniError(f"the number of rows is negative: {rows}").at(offset=4)
    at, count = cursor.position, cursor.integer(4)
    # A column has at least a byte of metadata, and its start.
    if not 0 <= count <= cursor.remaining // 9:
        raise TrevniError(f"the header announces {count} columns, which the file has no room for").at(offset=at)
    metadata = _properties(cursor)
    codec = _named(metadata, _CODEC, Codec, Codec.NULL)
    checksum = _named(metadata, _CHECKSUM, Checksum, Checksum.NULL)
    columns: dict[str, ColumnMetadata] = {}
    for _ in range(count):
        at = cursor.position
        properties = _properties(cursor)
        name = _text(properties, _NAME)
        if name is None:
            raise TrevniError("a column has no name").at(offset=at)
        try:
            kind = _type(properties)
            parent = _text(properties, _PARENT)
            column = ColumnMetadata(
                name,
                kind,
                _ARRAY in properties,
                parent,
                _VALUES in properties,
                _named(properties, _CODEC, Codec, codec),
                _named(properties, _CHECKSUM, Checksum, checksum),
                properties,
            )
            check_column(column, columns)
        except TrevniError as error:
            raise error.at(column=name, offset=at) from None
        columns[column.name] = column
    starts = tuple(cursor.integer(8) for _ in range(count))
    for column, start in zip(columns.values(), starts, strict=True):
        if not cursor.position <= start <= source.size - 4:
            what = f"the column begins at byte {start}, outside of the file's data"
            raise TrevniError(what).at(column=column.name, offset=cursor.position)
    return FileMetadata(version, rows, tuple(columns.values()), starts, codec, checksum, metadata, cursor.position)


def _version(cursor: Cursor) -> int:
    magic = bytes(cursor.take(min(4, max(cursor.remaining, 0))))
    if magic[:3] != MAGIC or len(magic) < 4:
        raise TrevniError("the file is not a Trevni file: it does not begin with `Trv`").at(offset=0)
    if magic[3] not in (1, 2):
        what = f"the file has version {magic[3]} of the Trevni layout"
        raise TrevniError(what, hint="cdfd reads versions 1 and 2").at(offset=3)
    return magic[3]


def _properties(cursor: Cursor) -> dict[str, bytes]:
    at, count = cursor.position, cursor.long()
    # A property has at least two bytes, which are the lengths of its key and value.
    if not 0 <= count <= cursor.remaining // 2:
        raise TrevniError(f"metadata announces {count} properties, which the file has no room for").at(offset=at)
    properties: dict[str, bytes] = {}
    for _ in range(count):
        key = cursor.text()
        properties[key] = cursor.byte_string()
    return properties


def check_column(column: ColumnMetadata, before: Mapping[str, ColumnMetadata]) -> None:
    """Check a column against those before it.

    Raises:
        TrevniError: its name is taken, its parent is not an array column before it, or it has first values and must not.
    """
    if column.name in before:
        raise TrevniError("two columns have the same name")
    if column.parent is not None:
        parent = before.get(column.parent)
        if parent is None:
            raise TrevniError(f"its parent {column.parent!r:.100} is not a column before it")
        if not parent.array:
            raise TrevniError(f"its parent {column.parent!r:.100} is not an array column")
    if column.values and not column.plain:
        raise TrevniError("`trevni.values` is not permitted for array columns and columns with a parent")


def _type(properties: Mapping[str, bytes]) -> ValueType:
    name = _text(properties, _TYPE)
    if name is None:
        raise TrevniError("the column has no type")
    try:
        return ValueType(name.lower())  # the reference also takes other cases
    except ValueError:
        raise TrevniError(f"the type {name!r:.100} is unknown") from None


def _named(properties: Mapping[str, bytes], key: str, kind: type[Kind], default: Kind) -> Kind:
    name = _text(properties, key)
    try:
        return default if name is None else kind(name)
    except ValueError:
        raise TrevniError(f"the {key.removeprefix(RESERVED)} {name!r:.100} is unknown") from None


def _text(properties: Mapping[str, bytes], key: str) -> str | None:
    value = properties.get(key)
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        raise TrevniError(f"the property {key} is not UTF-8") from None


def header_bytes(metadata: FileMetadata, sizes: Sequence[int]) -> bytes:
    """A header in layout 2, given the bytes that each column will take. Codec and checksum of a column are there if the file's differ."""
    parts = [
        MAGIC,
        bytes([metadata.version]),
        metadata.num_rows.to_bytes(8, "little"),
        len(metadata.columns).to_bytes(4, "little"),
    ]
    own = {_CODEC: str(metadata.codec).encode(), _CHECKSUM: str(metadata.checksum).encode()}
    parts.append(_properties_bytes(own, metadata.metadata))
    for column in metadata.columns:
        own = {_NAME: column.name.encode(), _TYPE: str(column.type).encode()}
        if column.parent is not None:
            own[_PARENT] = column.parent.encode()
        if column.array:
            own[_ARRAY] = b""
        if column.values:
            own[_VALUES] = b""
        if column.codec is not metadata.codec:
            own[_CODEC] = str(column.codec).encode()
        if column.checksum is not metadata.checksum:
            own[_CHECKSUM] = str(column.checksum).encode()
        parts.append(_properties_bytes(own, column.metadata))
    start = sum(map(len, parts)) + 8 * len(sizes)
    for size in sizes:
        parts.append(start.to_bytes(8, "little"))
        start += size
    return b"".join(parts)


def _properties_bytes(own: Mapping[str, bytes], others: Mapping[str, bytes]) -> bytes:
    properties = {**own, **{key: value for key, value in others.items() if not key.startswith(RESERVED)}}
    parts = [long_bytes(len(properties))]
    for key, value in properties.items():
        parts += [sized_bytes(key.encode()), sized_bytes(value)]
    return b"".join(parts)
