"""How often the change types of a file are read: once, unless they are too many to keep."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from cdfd.model.columns import CHANGE_TYPES
from cdfd.scan import image_order
from cdfd.scan.image_order import (
    DELETE,
    INSERT,
    MOVED,
    POST_IMAGE,
    PRE_IMAGE,
    Codes,
    ImageCounts,
    ImageOrder,
    codes_with_keys,
)

PAIRED = [PRE_IMAGE, POST_IMAGE] * 3 + [INSERT]
BLOCKS = [PRE_IMAGE] * 3 + [POST_IMAGE] * 3
LATE_BREAK = [*PAIRED, DELETE, PRE_IMAGE, DELETE]
EARLY_BREAK = [PRE_IMAGE, DELETE, *PAIRED]


@pytest.mark.parametrize("codes", [PAIRED, BLOCKS, LATE_BREAK, EARLY_BREAK])
@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize("kept", [0, 4, 100])
def test_the_order_is_that_of_types_that_are_read_each_time(
    codes: list[int], pairs: bool, size: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_order, "KEPT_CODES", kept)
    reads = 0

    def types() -> Iterator[Codes]:
        nonlocal reads
        reads += 1
        for at in range(0, len(codes), size):
            yield np.array(codes[at : at + size], np.int8)

    actual = ImageOrder.of(types, pairs=pairs)
    assert reads == 1 or kept < len(codes)
    late = [row for row, code in enumerate(codes) if code == INSERT or (code == POST_IMAGE and not actual.paired)]
    assert actual.late.mask(0, len(codes)).nonzero()[0].tolist() == late
    assert actual.paired == (pairs and codes == PAIRED)


@pytest.mark.parametrize("codes", [PAIRED, BLOCKS, LATE_BREAK, EARLY_BREAK])
@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_the_counts_are_those_of_the_order(codes: list[int], size: int) -> None:
    batches = [np.array(codes[at : at + size], np.int8) for at in range(0, len(codes), size)]
    counts, order = ImageCounts.of(batches), ImageOrder.of(lambda: iter(batches), pairs=True)
    assert counts.paired == order.paired
    assert counts.late(pairs=True) == len(order.late.mask(0, len(codes)).nonzero()[0])


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_post_image_whose_key_is_not_that_of_the_row_before_has_moved(size: int) -> None:
    codes = [POST_IMAGE, PRE_IMAGE, POST_IMAGE, PRE_IMAGE, POST_IMAGE, INSERT, PRE_IMAGE, POST_IMAGE]
    keys = [7, 1, 1, 2, 3, 3, 4, 4]
    types = CHANGE_TYPES.take(pa.array(codes))
    spans = [slice(at, at + size) for at in range(0, len(codes), size)]
    batches = [(types[span], [pa.array(keys[span]), pa.array(["x"] * len(keys[span]))]) for span in spans]
    batches.insert(1, (types[:0], [pa.array([], pa.int64()), pa.array([], pa.string())]))
    actual = np.concatenate(list(codes_with_keys(batches)))
    assert actual.tolist() == [*codes[:4], MOVED, *codes[5:]]
