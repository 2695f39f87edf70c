"""Seeds for the fuzz targets of `native/fuzz`: small Parquet files of every type, encoding, codec and page version, and their columns.

`python -m tests.support.fuzz.native_seeds FOLDER` writes one folder a target.
"""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

GOLDEN = Path(__file__).parents[4] / "shared" / "golden"
MOST = 16_000
"""Bytes of a file."""
CODECS = ["snappy", "gzip", "zstd", "lz4", "none", "brotli"]
CODEC_BYTES = {"snappy": 0, "gzip": 1, "zstd": 2, "lz4": 3, "brotli": 5, "none": 6}
"""As `fuzzing.rs` numbers them."""
ROWS = 24
WORDS = [None, "", "word", "words", "a text that is longer than a view", "wording"]


def columns() -> dict[str, tuple[int, pa.Array]]:
    """By name: the column's number in `fuzzing.rs`, and values."""

    def some(values: list[object], kind: pa.DataType) -> pa.Array:
        return pa.array([values[place % len(values)] for place in range(ROWS)], kind)

    lists = [None, [], [1], [2, None, 3], [4] * 5]
    return {
        "int64": (0, some([None, 1, 2, 1 << 60], pa.int64())),
        "string": (1, some(list(WORDS), pa.string())),
        "boolean": (2, some([True, False, None], pa.bool_())),
        "int32": (3, some([7, 8, -9], pa.int32())),
        "double": (5, some([0.5, None, -1.0], pa.float64())),
        "fixed": (6, some([b"abcde", None, b"vwxyz"], pa.binary(5))),
        "binary": (7, some([b"a", b"", b"\xff\x00"], pa.binary())),
        "decimal38": (8, some([Decimal("1.00001"), None, Decimal(-5)], pa.decimal128(38, 5))),
        "decimal9": (9, some([Decimal("1.01"), None], pa.decimal128(9, 2))),
        "list": (11, some(list(lists), pa.list_(pa.int64()))),
        "words": (12, some([[], ["a", None, "bc"], None, ["abcdef" * 4]], pa.list_(pa.string()))),
        "struct": (
            14,
            some([None, {"d": None}, {"d": {"e": 5}}], pa.struct([("d", pa.struct([("e", pa.int32())]))])),
        ),
        "deep": (15, some([[[1, 2], None, []], None, [[3]]], pa.list_(pa.list_(pa.int32())))),
        "float": (16, some([0.5, 2.0], pa.float32())),
    }


ENCODINGS = {
    "int64": ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"],
    "string": ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"],
    "boolean": ["RLE"],
    "int32": ["DELTA_BINARY_PACKED"],
    "double": ["BYTE_STREAM_SPLIT"],
    "fixed": ["DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"],
    "words": ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"],
}


def files() -> Iterator[tuple[str, int, str, bytes]]:
    """Files of one column: a name, the column's number, the codec, and the file."""
    for name, (number, values) in columns().items():
        null = number not in (3, 7, 16)
        schema = pa.schema([pa.field("c", values.type, null)])
        leaf = {"words": "c.list.element"}.get(name, "c")
        for codec, version, encoding in itertools.product(
            CODECS, ["1.0", "2.0"], [None, "PLAIN", *ENCODINGS.get(name, [])]
        ):
            sink = io.BytesIO()
            pq.write_table(
                pa.table([values], schema=schema),
                sink,
                compression=codec,
                data_page_version=version,
                use_dictionary=encoding is None,
                column_encoding={leaf: encoding} if encoding and encoding != "PLAIN" else None,
                data_page_size=40,
                write_batch_size=9,
                write_statistics=False,
                store_schema=False,
                store_decimal_as_integer=name == "decimal9",
            )
            yield f"{name}-{codec}-{version}-{encoding}", number, codec, sink.getvalue()


def write(folder: Path) -> None:
    """Write the seeds."""
    for target in ("file", "column", "lengths"):
        (folder / target).mkdir(parents=True, exist_ok=True)
    for name, number, codec, data in files():
        (folder / "file" / name).write_bytes(data)
        metadata = pq.read_metadata(io.BytesIO(data))
        chunk = metadata.row_group(0).column(0)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        pages = data[start : start + chunk.total_compressed_size]
        begin = bytes([number, CODEC_BYTES[codec], ROWS, (chunk.num_values + 1) // 2])
        (folder / "column" / name).write_bytes(begin + pages)
        (folder / "lengths" / name).write_bytes(pages)
        (footer,) = memoryview(data)[-8:-4].cast("I")
        (folder / "lengths" / f"{name}-footer").write_bytes(data[-8 - footer : -8])
    pairs = [[], [{"a": 1, "b": 2}, None], None, [{"a": None, "b": 3}] * 3, [{"a": 4, "b": None}]]
    for version in ("1.0", "2.0"):
        # Columns that have to agree about their lists.
        table = pa.table({"c": pairs * 5, "d": [each[0] if each else None for each in pairs] * 5})
        options: dict[str, Any] = {"data_page_version": version, "data_page_size": 40, "write_batch_size": 9}
        pq.write_table(table, folder / "file" / f"structs-{version}", compression="none", store_schema=False, **options)
    for number, path in enumerate(sorted(GOLDEN.rglob("*.parquet"))):
        if path.stat().st_size <= MOST:
            (folder / "file" / f"golden-{number}").write_bytes(path.read_bytes())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
