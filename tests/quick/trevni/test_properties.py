"""Any table of any nesting comes back equal, and damage of any kind is a `TrevniError`."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import cdfd.trevni as trevni

SIMPLE: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"]), max_size=70),
    pa.binary(): st.binary(max_size=70),
    pa.decimal128(38, 6): st.decimals(-(10**20), 10**20, places=6),
    pa.date32(): st.dates(),
}


@st.composite
def fields(draw: st.DrawFn, depth: int = 3, *, key: bool = False) -> tuple[pa.DataType, st.SearchStrategy[Any], bool]:
    """A type, values of it, and whether it is nullable, which the key of a map is not."""
    nullable = not key and draw(st.booleans())
    nested = draw(st.sampled_from(["simple", "list", "map", "struct"])) if depth else "simple"
    kind: pa.DataType
    values: st.SearchStrategy[Any]
    match nested:
        case "list":
            inner, each, inside = draw(fields(depth - 1))
            kind, values = pa.list_(pa.field("element", inner, inside)), st.lists(each, max_size=4)
        case "map":
            key_type, keys, _ = draw(fields(depth - 1, key=True))
            inner, each, inside = draw(fields(depth - 1))
            kind = pa.map_(key_type, pa.field("value", inner, inside))
            values = st.lists(st.tuples(keys, each), max_size=4)
        case "struct":
            children = draw(st.lists(fields(depth - 1), max_size=3))
            kind = pa.struct([pa.field(f"f{n}", each, inside) for n, (each, _, inside) in enumerate(children)])
            values = st.fixed_dictionaries({f"f{n}": each for n, (_, each, _) in enumerate(children)})
        case _:
            kind = draw(st.sampled_from(list(SIMPLE)))
            values = SIMPLE[kind]
    return kind, st.none() | values if nullable else values, nullable


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    count = draw(st.integers(0, 30))
    columns, schema_fields = [], []
    for number, (kind, values, nullable) in enumerate(draw(st.lists(fields(), max_size=4))):
        columns.append(pa.array(draw(st.lists(values, min_size=count, max_size=count)), kind))
        schema_fields.append(pa.field(f"c{number}", kind, nullable))
    return pa.Table.from_arrays(columns, schema=pa.schema(schema_fields))


@settings(max_examples=100, deadline=None)
@given(tables(), st.sampled_from(["null", "snappy", "deflate", "bzip2"]), st.integers(1, 500), st.data())
def test_tables_come_back_equal(table: pa.Table, codec: str, block_bytes: int, data: st.DataObject) -> None:
    file = io.BytesIO()
    trevni.write_table(table, file, codec=codec, block_bytes=block_bytes, use_threads=False)
    actual = trevni.read_table(file, use_threads=False)
    actual.validate(full=True)
    if table.num_columns:
        assert actual.equals(table)
        start = data.draw(st.integers(0, table.num_rows))
        end = data.draw(st.integers(start, table.num_rows))
        assert trevni.read_table(file, rows=range(start, end), use_threads=False).equals(
            table.slice(start, end - start)
        )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=200), max_size=400), st.integers(1, 3000))
def test_text_of_any_length_with_any_control_characters(texts: list[str], block_bytes: int) -> None:
    """Places at which a block of text is cut are guessed, and checked."""
    texts = [text.encode(errors="replace").decode() for text in texts] * 20
    schema = pa.schema([pa.field("s", pa.string(), False), pa.field("l", pa.list_(pa.string()))])
    table = pa.Table.from_arrays(
        [pa.array(texts, pa.string()), pa.array([[text] for text in texts], schema.field(1).type)], schema=schema
    )
    file = io.BytesIO()
    trevni.write_table(table, file, block_bytes=block_bytes, use_threads=False)
    assert trevni.read_table(file, use_threads=False).equals(table)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_an_error_or_rows(data: bytes, with_magic: bool) -> None:
    file = pa.BufferReader(b"Trv\2" + data if with_magic else data)
    with contextlib.suppress(trevni.TrevniError):
        trevni.read_table(file, use_threads=False).validate(full=True)
