"""Parquet files in a store: small ones in one GET, of large ones the footer and the bytes of the columns that are wanted."""

import asyncio
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from functools import cache
from time import sleep

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd.errors import StorageError
from cdfd.scan.parquet.reader import ParquetReader, open_parquet
from cdfd.storage.base import ColumnPrefetch
from cdfd.storage.location import open_storage
from cdfd.storage.s3 import ranges as s3_ranges
from cdfd.storage.s3 import storage as s3_storage
from cdfd.storage.s3.errors import Request
from cdfd.storage.s3.storage import S3Storage
from tests.support.s3.proxy import Asked, Fault, Proxy
from tests.support.s3.server import Server


@pytest.fixture
def store(proxy: Proxy, bucket: str) -> S3Storage:
    actual = open_storage(f"s3://{bucket}/t", Server(proxy.url).options())
    assert isinstance(actual, S3Storage)
    return actual


@cache
def table(count: int) -> pa.Table:
    random = np.random.default_rng(7)
    return pa.table(
        {
            "id": random.integers(0, 1 << 60, count),
            "wide": pa.array(_texts(random.bytes(count * 16), count)),
            "inner": pa.StructArray.from_arrays([random.random(count), random.random(count)], ["x", "y"]),
            "city": [f"city {n % 7}" for n in range(count)],
        }
    )


def _texts(data: bytes, count: int) -> list[str]:
    text = data.hex()
    return [text[32 * n : 32 * n + 32] for n in range(count)]


@cache
def written(count: int, **options: object) -> bytes:
    out = io.BytesIO()
    pq.write_table(table(count), out, **options)
    return out.getvalue()


def put(store: S3Storage, proxy: Proxy, data: bytes) -> None:
    asyncio.run(store.put("x", data))
    proxy.asked.clear()


def bytes_asked(proxy: Proxy, size: int) -> int:
    total = 0
    for asked in proxy.asked:
        start, _, end = asked.range.removeprefix("bytes=").partition("-")
        total += min(int(end), size - 1) - int(start) + 1 if start else int(end)
    return total


def places(data: bytes, names: Sequence[str], groups: Sequence[int] | None = None) -> list[tuple[int, int, int]]:
    """Where columns of a file are."""
    with open_parquet(pa.BufferReader(data)) as file:
        assert isinstance(file, ParquetReader)
        return file.ranges(names, groups)


def test_a_small_file_is_one_request(store: S3Storage, proxy: Proxy) -> None:
    data = table(1000)
    put(store, proxy, small := written(1000))
    with store.open_input_file("x", len(small)) as source, open_parquet(source) as file:
        assert pa.Table.from_batches(file.batches(data.column_names, rows=10_000)).cast(data.schema).equals(data)
    assert len(proxy.asked) == 1


def test_all_columns_of_a_large_one(store: S3Storage, proxy: Proxy) -> None:
    data = table(400_000)
    put(store, proxy, large := written(400_000, row_group_size=50_000, compression="none"))
    with store.open_input_file("x", len(large)) as source:
        assert isinstance(source, ColumnPrefetch)
        with open_parquet(source) as file:
            source.prefetch_columns(places(large, data.column_names))
            assert pa.Table.from_batches(file.batches(data.column_names, rows=10_000)).cast(data.schema).equals(data)
    assert len(large) > 3 * s3_ranges.MAX_GET_BYTES
    assert len(proxy.asked) < len(large) / s3_ranges.MAX_GET_BYTES + 12
    assert bytes_asked(proxy, len(large)) < 1.1 * len(large)


def test_the_beginning_of_one_that_was_announced_is_asked_for_with_its_end(store: S3Storage, proxy: Proxy) -> None:
    data = table(200_000)
    put(store, proxy, large := written(200_000, row_group_size=50_000, compression="none"))
    store.prefetch("x", len(large), whole=True)
    with store.open_input_file("x", len(large)) as source:
        assert isinstance(source, ColumnPrefetch)
        begun = {asked.range for asked in proxy.asked}
        assert {f"bytes=-{s3_storage.TAIL_BYTES}", f"bytes=0-{s3_ranges.MAX_GET_BYTES - 1}"} <= begun
        with open_parquet(source) as file:
            source.prefetch_columns(places(large, data.column_names))
            assert pa.Table.from_batches(file.batches(data.column_names, rows=10_000)).cast(data.schema).equals(data)
    assert bytes_asked(proxy, len(large)) < 1.1 * len(large)


def test_one_that_was_replaced_since_it_was_announced_is_not_mixed(store: S3Storage, proxy: Proxy) -> None:
    put(store, proxy, large := written(200_000, row_group_size=50_000, compression="none"))
    client, request = store._client, Request("read", store._bucket, "t/x", "x")
    start, end = 0, s3_ranges.MAX_GET_BYTES
    before = client.loop.submit(client.get(request, start, end - start))
    wait([before])
    put(store, proxy, bytes(reversed(large)))
    after = client.loop.submit(client.get(request, -s3_storage.TAIL_BYTES, None)).result()
    ranges = s3_ranges.RangeBuffer(client, request, after, len(large) - s3_storage.TAIL_BYTES)
    ranges.add_started(start, end, before)
    with s3_storage.RangeFile(ranges, "r") as source, pytest.raises(StorageError, match="replaced"):
        source.read(100)


WHOLE = s3_storage.WHOLE_OBJECT_BYTES
SIZES = [1, s3_storage.TAIL_BYTES + 1, WHOLE, WHOLE + 1, 2 * WHOLE + 7, 3 * WHOLE, 2**62]


@pytest.mark.parametrize("size", SIZES[:-1])
def test_whatever_size_the_log_says(moto_server: Server, bucket: str, size: int) -> None:
    """One when it is announced, another when it is opened, and neither is true: the bytes are the object's."""
    store = open_storage(f"s3://{bucket}/t", moto_server.options())
    data = np.random.default_rng(size).bytes(size)
    asyncio.run(store.put("x", data))
    for announced in SIZES:
        for opened_as in (announced, 1, 2**62, None):
            store.prefetch("x", announced, whole=True)
            with store.open_input_file("x", opened_as) as source:
                assert source.size() == size
                assert source.read(1000) == data[:1000]
                source.seek(size // 2)
                assert source.read() == data[size // 2 :]


@pytest.mark.parametrize("names", [["id"], ["inner", "city"], ["wide"]])
def test_only_the_columns_that_are_wanted(store: S3Storage, proxy: Proxy, names: list[str]) -> None:
    data = table(200_000)
    put(store, proxy, large := written(200_000, row_group_size=50_000, compression="none"))
    with store.open_input_file("x", len(large)) as source:
        assert isinstance(source, ColumnPrefetch)
        with pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20) as file:
            source.prefetch_columns(places(large, names))
            assert pa.Table.from_batches(file.iter_batches(batch_size=10_000, columns=names)).equals(
                data.select([name for name in data.column_names if name in names])
            )
    wanted = sum(end - start for _, start, end in places(large, names))
    assert bytes_asked(proxy, len(large)) < 1.05 * wanted + s3_storage.TAIL_BYTES + 8 * s3_ranges.MAX_GAP_BYTES


def test_of_some_row_groups(store: S3Storage, proxy: Proxy) -> None:
    data = table(200_000)
    put(store, proxy, large := written(200_000, row_group_size=20_000, compression="none"))
    with store.open_input_file("x", len(large)) as source:
        assert isinstance(source, ColumnPrefetch)
        with pq.ParquetFile(source) as file:
            source.prefetch_columns(places(large, data.column_names, [3]))
            assert file.read_row_group(3).equals(data.slice(60_000, 20_000))
    assert bytes_asked(proxy, len(large)) < len(large) / 8


def test_reads_that_were_not_announced(store: S3Storage, proxy: Proxy) -> None:
    random = np.random.default_rng(3)
    data = random.bytes(s3_storage.WHOLE_OBJECT_BYTES + 3_000_000)
    put(store, proxy, data)
    for size in (None, len(data)):
        with store.open_input_file("x", size) as source:
            assert source.size() == len(data)
            for start in (0, 5, 1_500_000, len(data) - 3, 4_100_000, 17):
                source.seek(start)
                assert source.read(1_200_000) == data[start : start + 1_200_000]
            source.seek(0)
            assert source.read() == data
            assert source.read(1) == b""


def test_what_is_held_is_bounded(store: S3Storage, proxy: Proxy) -> None:
    """A reader that takes a step ahead of its announcement, and one that never comes for it: alone, and beside another one."""
    data = table(1_200_000)
    put(store, proxy, large := written(1_200_000, row_group_size=1_200_000, compression="none"))
    assert len(large) > 2.5 * s3_ranges.PREFETCH_BYTES
    with store.open_input_file("x", len(large)) as source:
        for limit in (2 * s3_ranges.PREFETCH_BYTES, s3_ranges.PREFETCH_BYTES):
            with store.open_input_file("x", len(large)) if limit == s3_ranges.PREFETCH_BYTES else nullcontext():
                assert isinstance(source, ColumnPrefetch)
                source._ranges._pieces = [source._ranges._known]  # type: ignore[attr-defined]
                source.prefetch_columns(places(large, data.column_names))
                held = sum(piece.end - piece.start for piece in source._ranges._pieces if piece.future is not None)  # type: ignore[attr-defined]
                assert limit - s3_ranges.MAX_GET_BYTES < held <= limit + s3_storage.TAIL_BYTES


def test_the_end_of_a_range_is_kept_for_a_page_that_goes_on(
    store: S3Storage, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two columns in turn, each read to the end of its third range and then across it: no byte is fetched twice."""
    step = s3_ranges.MAX_GET_BYTES
    monkeypatch.setattr(s3_ranges, "KEPT_BYTES", 2 * step)
    size = 10 * step + s3_storage.TAIL_BYTES
    put(store, proxy, data := np.random.default_rng(5).bytes(size))
    with store.open_input_file("x", size), store.open_input_file("x", size) as source:
        ranges = source._ranges
        first = (0, 5 * step)
        for at in sorted(range(0, 10 * step, step), key=lambda at: at % (5 * step)):
            ranges._planned.append(s3_ranges.Piece(at, at + step, step))
        ranges._pieces = sorted([*ranges._planned, ranges._known], key=lambda piece: piece.start)
        for read in range(3):
            for column in first:
                at = column + read * step
                assert bytes(source.buffer_at(10, step, at)) == data[at : at + step]
        for column in first:
            end = column + 3 * step
            assert bytes(source.buffer_at(200, 200, end - 100)) == data[end - 100 : end + 100]
    asked = [each.range.removeprefix("bytes=") for each in proxy.asked]
    starts, ends = zip(
        *sorted(tuple(map(int, each.split("-"))) for each in asked if not each.startswith("-")), strict=True
    )
    assert all(end < start for end, start in zip(ends, starts[1:], strict=False)), asked


def test_a_thread_that_waits_for_a_range_does_not_block_another(store: S3Storage, proxy: Proxy) -> None:
    size = 3 * s3_ranges.MAX_GET_BYTES
    put(store, proxy, data := np.random.default_rng(6).bytes(size))
    late = f"bytes={s3_ranges.MAX_GET_BYTES}-"
    with ThreadPoolExecutor(1) as pool:
        with store.open_input_file("x", size) as source:
            proxy.faults = [Fault("stall", concerns=lambda asked: asked.range.startswith(late))]
            waiting = pool.submit(source.buffer_at, 100, 100, s3_ranges.MAX_GET_BYTES)
            while not any(asked.range.startswith(late) for asked in proxy.asked):
                sleep(0.01)
            assert source.buffer_at(100, 100, 0) == data[:100]
            assert not waiting.done()
        with pytest.raises(StorageError, match="closed"):
            waiting.result()


def test_a_fault_under_way_is_said(store: S3Storage, proxy: Proxy, bucket: str) -> None:
    """pyarrow passes on an error of cdfd, from any thread."""
    put(store, proxy, large := written(200_000, row_group_size=50_000, compression="none"))
    for use_threads in (False, True):
        with store.open_input_file("x", len(large)) as source, pq.ParquetFile(source) as file:
            proxy.faults = [Fault("answer", 99, 403, "AccessDenied", concerns=_is_inside)]
            with pytest.raises(StorageError, match="Allow s3:GetObject"):
                file.read(use_threads=use_threads)
            proxy.faults = []


def _is_inside(asked: Asked) -> bool:
    return asked.method == "GET"


def test_places_of_columns_are_those_of_pyarrow() -> None:
    data = written(3000, row_group_size=1000)
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    expected = []
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            start = column.dictionary_page_offset or column.data_page_offset
            expected.append((group, start, start + column.total_compressed_size))
    assert places(data, table(1).column_names) == expected
