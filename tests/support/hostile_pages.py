"""Small Parquet files that contradict themselves: pages, levels, dictionaries, footers and schemas. None of them can be read."""

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from tests.support.parquet_bytes import (
    BINARY,
    BYTE_ARRAY,
    DELTA_STRINGS,
    I32,
    I64,
    INT32,
    LIST,
    PLAIN,
    RLE_DICTIONARY,
    STRUCT,
    data_page,
    data_page_v2,
    dictionary_page,
    element,
    fields,
    file,
    file_of,
    flat,
    items,
    levels,
    number,
    run,
    varint,
)

CODECS = {"snappy": 1, "gzip": 2, "brotli": 4, "zstd": 6, "lz4_raw": 7}
ROWS = 100
VALUES = struct.pack(f"<{ROWS}i", *range(ROWS))
VALID = run(ROWS, 1)
PAGE = levels(VALID) + VALUES
LISTS = {"type": "array", "elementType": "integer", "containsNull": True}
STRUCTS = {
    "type": "array",
    "elementType": {
        "type": "struct",
        "fields": [{"name": name, "type": "integer", "nullable": True, "metadata": {}} for name in "ab"],
    },
    "containsNull": True,
}
LIST_SCHEMA = [
    element("schema", children=1),
    element("c", 1, children=1, converted=3),
    element("list", 2, children=1),
    element("element", 1, INT32),
]


def page(body: bytes, values: int = ROWS, encoding: int = PLAIN, size: int | None = None) -> bytes:
    """A data page that is not compressed."""
    return data_page(body, len(body) if size is None else size, values, encoding)


def indices(body: bytes, count: int = 3, values: int = 3) -> bytes:
    """A dictionary of three numbers, said to be `count`, and a page of indices of two bits."""
    chunk = dictionary_page(struct.pack("<3i", 7, 8, 9), 12, count)
    return flat(INT32, chunk + page(levels(run(values, 1)) + b"\2" + body, values, RLE_DICTIONARY), values)


def lists(repetition: bytes, definition: bytes, values: int, rows: int) -> bytes:
    """A column of lists of numbers."""
    body = levels(repetition) + levels(definition) + struct.pack(f"<{values}i", *range(values))
    return file(LIST_SCHEMA, ["c", "list", "element"], INT32, page(body, values), values, rows)


def header(*more: tuple[int, int, bytes], kind: int = 0, size: int = len(PAGE), stored: int = len(PAGE)) -> bytes:
    """A page's header with any numbers."""
    sizes = ((place, I32, number(value)) for place, value in enumerate((kind, size, stored), 1))
    return fields(*sizes, *more)


def footer(*parts: tuple[int, int, bytes], length: int | None = None) -> bytes:
    """A file that has this footer, after one page."""
    data = fields(*parts)
    return b"PAR1" + page(PAGE) + data + struct.pack("<I", len(data) if length is None else length) + b"PAR1"


def long_list(kind: int, count: int) -> bytes:
    """The head of a list that has no items."""
    return bytes([0xF0 | kind]) + varint(count)


def schema_of(*elements: bytes) -> tuple[int, int, bytes]:
    return (2, LIST, bytes([0xF0 | STRUCT]) + varint(len(elements)) + b"".join(elements))


def compressed() -> Iterator[tuple[str, bytes]]:
    """Pages that decompress to other sizes than their headers say."""
    for codec, code in CODECS.items():
        stored = pa.Codec(codec).compress(PAGE, asbytes=True)
        nothing = pa.Codec(codec).compress(b"", asbytes=True)
        sizes = {
            "less than promised": (stored, len(PAGE) + 400),
            "more than promised": (stored, len(PAGE) - 40),
            "nothing of what is promised": (nothing, len(PAGE)),
            "no bytes at all": (b"", len(PAGE)),
            "a size of 0": (stored, 0),
            "half of its bytes": (stored[: len(stored) // 2], len(PAGE)),
            "2 GiB": (stored, (1 << 31) - 1),
            "500 MB in a few bytes": (stored, 500 << 20),
            "other bytes": (b"\xff" * len(stored), len(PAGE)),
        }
        for what, (body, size) in sizes.items():
            yield f"{codec}: {what}", flat(INT32, data_page(body, size, ROWS, PLAIN), ROWS, code)
        both = data_page_v2(VALID, pa.Codec(codec).compress(VALUES, asbytes=True), len(PAGE) + 40, ROWS, PLAIN)
        yield f"{codec}: less than promised in a page of version 2", flat(INT32, both, ROWS, code)


def version_2(levels_size: int, repetition_size: int = 0, values: int = ROWS) -> bytes:
    """A page of version 2 whose levels have other sizes than it says."""
    inner = fields(
        *(
            (place, I32, number(value))
            for place, value in enumerate((values, 0, values, PLAIN, levels_size, repetition_size), 1)
        )
    )
    body = VALID + VALUES
    return flat(INT32, header((8, STRUCT, inner), kind=3, size=len(body), stored=len(body)) + body, ROWS)


def pages() -> Iterator[tuple[str, bytes]]:
    """Pages of numbers that are not compressed."""
    inner = fields(*((place, I32, number(value)) for place, value in enumerate((ROWS, 0, 3, 3), 1)))
    yield "2 GiB are stored", flat(INT32, header((5, STRUCT, inner), size=1 << 30, stored=(1 << 31) - 1) + PAGE, ROWS)
    yield "a negative size", flat(INT32, header((5, STRUCT, inner), size=-1) + PAGE, ROWS)
    yield "a negative stored size", flat(INT32, header((5, STRUCT, inner), stored=-5) + PAGE, ROWS)
    yield "a header without a description", flat(INT32, header() + PAGE, ROWS)
    yield "an unknown kind of page", flat(INT32, header((5, STRUCT, inner), kind=9) + PAGE, ROWS)
    yield "a header that does not end", flat(INT32, b"\x15\x00" + b"\x1c" * 64, ROWS)
    yield "an unknown encoding", flat(INT32, page(PAGE, encoding=77), ROWS)
    yield "an encoding of other types", flat(INT32, page(PAGE, encoding=DELTA_STRINGS), ROWS)
    yield "no page", flat(INT32, b"", ROWS)
    yield "fewer values than the footer says", flat(INT32, page(PAGE), ROWS + 1)
    yield "more values than the footer says", flat(INT32, page(PAGE), ROWS - 1)
    yield "two pages of one", flat(INT32, page(PAGE) * 2, ROWS + ROWS // 2)
    yield "values of fewer bytes", flat(INT32, page(PAGE[:-4]), ROWS)
    yield "levels of more bytes than the page", flat(INT32, page(struct.pack("<I", 1 << 31) + PAGE[4:]), ROWS)
    yield "levels that end", flat(INT32, page(levels(run(ROWS - 1, 1)) + VALUES), ROWS)
    yield "a level beyond the largest", flat(INT32, page(levels(run(ROWS, 2)) + VALUES), ROWS)
    yield "a run of no levels for ever", flat(INT32, page(levels(run(0, 1) * 40) + VALUES), ROWS)
    yield "a run of 2^62 levels of fewer values", flat(INT32, page(levels(run(1 << 62, 1)) + VALUES[:8]), ROWS)
    yield "version 2: levels of more bytes than the page", version_2(1 << 30)
    yield "version 2: levels of fewer bytes", version_2(1)
    yield "version 2: no levels", version_2(0)
    yield "version 2: repetition levels where there are none", version_2(len(VALID), 4)
    yield "version 2: more values than levels", version_2(len(VALID), 0, ROWS + 8)


def dictionaries() -> Iterator[tuple[str, bytes]]:
    yield "an index beyond the dictionary", indices(run(3, 3))
    yield "packed indices beyond the dictionary", indices(b"\x03\xff\xff")
    yield "indices of runs that are too short", indices(run(2, 0))
    yield "indices that end", indices(b"")
    yield "a dictionary of more values than bytes", indices(run(3, 0), count=1_000_000)
    yield "a dictionary of fewer values than its indices", indices(run(3, 2), count=1)
    yield "indices without a dictionary", flat(INT32, page(levels(run(3, 1)) + b"\2" + run(3, 0), 3, RLE_DICTIONARY), 3)
    body = levels(run(3, 1)) + b"\x28" + b"\x06" + bytes(5)
    chunk = dictionary_page(struct.pack("<3i", 7, 8, 9), 12, 3)
    yield "indices of 40 bits", flat(INT32, chunk + page(body, 3, RLE_DICTIONARY), 3)
    yield "two dictionaries", flat(INT32, chunk * 2 + page(levels(run(3, 1)) + b"\2" + run(3, 0), 3, RLE_DICTIONARY), 3)


def strings() -> Iterator[tuple[str, bytes]]:
    long = levels(run(1, 1)) + struct.pack("<I", 1 << 31) + b"x"
    yield "a text of 2 GiB", flat(BYTE_ARRAY, page(long, 1), 1)
    yield (
        "a text that is not UTF-8",
        flat(BYTE_ARRAY, page(levels(run(1, 1)) + struct.pack("<I", 2) + b"\xff\xfe", 1), 1, converted=0),
    )
    head = levels(run(2, 1)) + varint(128) + varint(4) + varint(2) + number(0)
    for what, more in {
        "a prefix of a text that is longer than the text before": number(9)
        + bytes(4)
        + head[6:]
        + number(0)
        + bytes(4),
        "lengths that end": b"",
        "lengths of 200 bits": number(0) + bytes([200] * 4) + bytes(400),
    }.items():
        yield what, flat(BYTE_ARRAY, page(head + more, 2, DELTA_STRINGS), 2)
    yield (
        "blocks of 2^60 lengths",
        flat(
            BYTE_ARRAY,
            page(levels(run(2, 1)) + varint(1 << 60) + varint(4) + varint(2) + number(0), 2, DELTA_STRINGS),
            2,
        ),
    )


def nested() -> Iterator[tuple[str, bytes]]:
    yield "a list that begins within a row", lists(run(1, 1) + run(3, 0), run(4, 3), 4, 3)
    yield "a second value of an empty list", lists(run(1, 0) + run(1, 1), run(1, 1) + run(1, 3), 2, 1)
    yield "a second value that is an empty list", lists(run(1, 0) + run(1, 1), run(1, 3) + run(1, 1), 2, 1)
    yield "fewer rows of lists than the footer says", lists(run(1, 0) + run(3, 1), run(4, 3), 4, 2)
    yield "more rows of lists than the footer says", lists(run(4, 0), run(4, 3), 4, 3)
    yield "a level of a list beyond the largest", lists(run(4, 0), run(4, 4), 4, 4)
    yield "a repetition beyond the largest", lists(run(1, 0) + run(3, 2), run(4, 3), 4, 1)
    # The error names the page's column, and a stream of Arrow ends the process for a text with a zero byte.
    schema = [*LIST_SCHEMA[:2], element("l\0st", 2, children=1), LIST_SCHEMA[3]]
    yield (
        "a page without a header in a name with a zero byte",
        file(schema, ["c", "l\0st", "element"], INT32, bytes(9), 1, 1),
    )


def siblings(rows: int, *columns: list[tuple[int, int]], lists: int = 1) -> bytes:
    """Lists of structs, or lists of those, in which each column has these repetition and definition levels."""
    path = ["c", *["list", "element"] * lists]
    schema = [LIST_SCHEMA[0]]
    for name in path[:-1]:
        repeated = name == "list"
        schema.append(element(name, 2, children=1) if repeated else element(name, 1, children=1, converted=3))
    schema.append(element("element", 1, children=len(columns)))
    leaves = []
    for name, pairs in zip("ab", columns, strict=True):
        repetition, definition = (
            levels(b"".join(run(1, level) for level in each)) for each in zip(*pairs, strict=True)
        )
        values = range(sum(level == 2 + 2 * lists for _, level in pairs))
        body = repetition + definition + struct.pack(f"<{len(values)}i", *values)
        schema.append(element(name, 1, INT32))
        leaves.append(([*path, name], INT32, page(body, len(pairs)), len(pairs)))
    return file_of(schema, leaves, rows)


def structs() -> Iterator[tuple[str, bytes]]:
    """Columns side by side that disagree about the lists and structs that they are in."""
    yield "lists of other lengths in one column", siblings(2, [(0, 4), (0, 4), (1, 4)], [(0, 4), (1, 4), (0, 4)])
    yield "a list that is null in one column, and empty in the other", siblings(1, [(0, 1)], [(0, 0)])
    yield "a struct in a list that is null in one column", siblings(1, [(0, 3)], [(0, 2)])
    yield "an empty list more in one column", siblings(1, [(0, 6), (1, 3)], [(0, 6)], lists=2)
    yield "a null list more in the other column", siblings(1, [(0, 6)], [(0, 6), (1, 2)], lists=2)


def footers() -> Iterator[tuple[str, bytes]]:
    begin = ((1, I32, number(2)), schema_of(element("schema", children=1), element("c", 1, INT32)))
    rows = (3, I64, number(ROWS))
    yield "a thousand million row groups", footer(*begin, rows, (4, LIST, long_list(STRUCT, 10**9)))
    yield "a list of 2^60 elements of the schema", footer(begin[0], (2, LIST, long_list(STRUCT, 1 << 60)))
    yield "a key of 2^60 bytes", footer(*begin, rows, (6, BINARY, varint(1 << 60)))
    yield "a footer longer than the file", footer(*begin, rows, length=1 << 20)
    yield "a footer of 4 GiB", footer(*begin, rows, length=0xFFFF_FFFF)
    yield "a footer of no bytes", footer(*begin, rows, length=0)
    yield "10,000 structs within structs", footer(*begin, rows, (9, STRUCT, b"\x1c" * 10_000 + b"\0" * 10_000))
    yield "10,000 lists within lists", footer(*begin, rows, (9, LIST, b"\x19" * 10_000 + b"\x13\0"))
    yield "a schema without elements", footer(begin[0], schema_of(), rows, (4, LIST, items(STRUCT, [])))
    group = element("g", 1, children=1)
    for what, elements in {
        "groups 10,000 deep": [element("schema", children=1), *[group] * 10_000, element("c", 1, INT32)],
        "a group that has more children than there are": [element("schema", children=9), element("c", 1, INT32)],
        "a group of 2^31 children": [element("schema", children=(1 << 31) - 1), element("c", 1, INT32)],
        "a group of -1 children": [element("schema", children=-1), element("c", 1, INT32)],
        "a group that never ends": [element("schema", children=1), group],
    }.items():
        data = file(elements[:2], ["c"], INT32, page(PAGE), ROWS, ROWS)
        # More elements than `file` can write.
        chunk = data[4 : data.rindex(b"\x15\x04\x19")]
        groups = data[data.rindex(b"\x16" + number(ROWS) + b"\x19") : -9]
        end = fields((1, I32, number(2)), schema_of(*elements))[:-1] + groups + b"\0"
        yield what, b"PAR1" + chunk + end + struct.pack("<I", len(end)) + b"PAR1"
    whole = flat(INT32, page(PAGE), ROWS)
    for what, old, new in (
        ("a column that begins after the file", b"\x26" + number(4) + b"\0", b"\x26" + number(10**12) + b"\0"),
        ("a column that begins before the file", b"\x26" + number(4) + b"\0", b"\x26" + number(-4) + b"\0"),
        ("-1 rows", b"\x16" + number(ROWS) + b"\0", b"\x16" + number(-1) + b"\0"),
        ("2^62 rows", b"\x16" + number(ROWS) + b"\0", b"\x16" + number(1 << 62) + b"\0"),
    ):
        begin_of_footer = len(whole) - 8 - struct.unpack("<I", whole[-8:-4])[0]
        changed = whole[begin_of_footer:-8].replace(old, new)
        assert changed != whole[begin_of_footer:-8], what
        yield what, whole[:begin_of_footer] + changed + struct.pack("<I", len(changed)) + b"PAR1"


HOSTILE: dict[str, tuple[object, bytes]] = {
    name: (kind, data)
    for make, kind in (
        (compressed, "integer"),
        (pages, "integer"),
        (dictionaries, "integer"),
        (strings, "string"),
        (nested, LISTS),
        (structs, STRUCTS),
        (footers, "integer"),
    )
    for name, data in make()
}
"""By what is wrong: the column's type in Delta, and the file."""


def write_table(
    path: Path,
    data: Callable[[Path], None] | bytes,
    kind: object,
    column: str = "c",
    copies: int = 0,
    more_columns: int = 0,
    partition_bytes: int = 0,
) -> None:
    """A Delta table of one column and one file, `f.parquet`, and copies of it. Each may have a long partition value of its own."""
    (path / "_delta_log").mkdir(parents=True)
    if callable(data):
        data(path / "f.parquet")
    else:
        (path / "f.parquet").write_bytes(data)
    others = [f"copy-{number}.parquet" for number in range(copies)]
    for name in others:
        shutil.copy(path / "f.parquet", path / name)
    partition = ["p"] if partition_bytes else []
    kinds = {
        column: kind,
        **{f"more{place}": "long" for place in range(more_columns)},
        **dict.fromkeys(partition, "string"),
    }
    fields = [{"name": name, "type": each, "nullable": True, "metadata": {}} for name, each in kinds.items()]
    schema = {"type": "struct", "fields": fields}
    metadata = {"id": "x", "format": {"provider": "parquet"}, "schemaString": json.dumps(schema)}
    size = (path / "f.parquet").stat().st_size
    actions = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata | {"partitionColumns": partition, "configuration": {}}},
        *(
            {
                "add": {
                    "path": name,
                    "partitionValues": {each: str(number) * partition_bytes for each in partition},
                    "size": size,
                    "modificationTime": 0,
                    "dataChange": True,
                }
            }
            for number, name in enumerate(("f.parquet", *others))
        ),
    ]
    (path / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
