"""Rows for the measurements of Trevni, from a seed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def flat(rows: int, seed: int = 1) -> pa.Table:
    """Ten columns of numbers and strings, without nulls."""
    chance = np.random.default_rng(seed)
    letters = chance.integers(97, 123, rows * 12 + 64, np.uint8)
    words = np.array([f"category {number}" for number in range(50)])
    columns = {
        "id": pa.array(np.arange(rows) * 3),
        "at": pa.array(1_767_225_600_000_000 + np.cumsum(chance.integers(0, 2000, rows))),
        "amount": pa.array(chance.integers(-(10**6), 10**6, rows)),
        "count": pa.array(chance.integers(0, 100, rows).astype(np.int32)),
        "price": pa.array(chance.random(rows) * 1000),
        "score": pa.array(np.round(chance.random(rows), 2)),
        "ratio": pa.array(chance.random(rows).astype(np.float32)),
        "name": text(letters, chance.integers(4, 21, rows)),
        "code": text(letters, np.full(rows, 8)),
        "kind": pa.array(words).take(pa.array(chance.integers(0, 50, rows))),
    }
    fields = [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))


def text(letters: np.ndarray, lengths: np.ndarray) -> pa.Array:
    """Strings of those lengths."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = np.resize(letters, int(offsets[-1]))
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(data))


def nested(rows: int, seed: int = 2) -> pa.Table:
    """Arrays in arrays of numbers, and arrays of structs with a string and numbers."""
    chance = np.random.default_rng(seed)
    outer = chance.integers(0, 5, rows)
    inner = chance.integers(0, 5, int(outer.sum()))
    numbers = pa.array(chance.integers(0, 10**6, int(inner.sum())))
    element = pa.field("element", pa.int64(), nullable=False)
    letters = chance.integers(97, 123, 4096, np.uint8)
    matrix = pa.ListArray.from_arrays(offsets(inner), numbers, type=pa.list_(element))
    kind = pa.struct(
        [
            pa.field("sku", pa.string(), False),
            pa.field("prices", pa.list_(pa.field("element", pa.float64(), False)), False),
        ]
    )
    prices = pa.ListArray.from_arrays(
        offsets(inner), pa.array(chance.random(int(inner.sum()))), type=kind.field(1).type
    )
    items = pa.StructArray.from_arrays([text(letters, chance.integers(3, 12, len(inner))), prices], fields=list(kind))
    lists = [(matrix, matrix.type), (items, kind)]
    columns = [
        pa.ListArray.from_arrays(offsets(outer), values, type=pa.list_(pa.field("element", each, False)))
        for values, each in lists
    ]
    fields = [pa.field(name, column.type, nullable=False) for name, column in zip("ab", columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def offsets(lengths: np.ndarray) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
