"""The kernels for Parquet and their counterparts in Python find the same, in whole files and in damaged ones."""

from __future__ import annotations

import io
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd.parquet import arrow_run, decoding, dictionaries, layout, pages, reader
from cdfd.parquet.layout import ChunkLocation
from cdfd.parquet.pages import Page

CODECS = ("none", "snappy", "zstd", "gzip", "lz4", "brotli")
ROWS = 3_000


def file(codec: str = "snappy", version: str = "1.0", **options: Any) -> bytes:
    words = [f"word {number % 700}" * (1 + number % 9) for number in range(ROWS)]
    table = pa.table(
        {
            "id": range(ROWS),
            "word": words,
            "own": [f"{number}-{word}" for number, word in enumerate(words)],
            "list": [[word, "x"] for word in words],
            "struct": [{"a": number, "b": None if number % 3 else word} for number, word in enumerate(words)],
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, compression=codec, data_page_version=version, row_group_size=1_000, **options)
    return sink.getvalue()


def footer(data: bytes) -> bytes:
    (length,) = struct.unpack("<I", data[-8:-4])
    return data[-8 - length : -8]


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (layout, pages, decoding):
        monkeypatch.setattr(module, "native", None)


def native() -> Any:
    return pytest.importorskip("cdfd.native.parquet", reason="the kernels are not built")


def runs(found: list[Page], *, strings: bool) -> list[Page]:
    """The pages of a column chunk as kernels join them."""
    joined: list[Page] = []
    for page in found:
        last = joined[-1] if joined else None
        plain = strings and page.encoding not in (pages.PLAIN_DICTIONARY, pages.RLE_DICTIONARY)
        if (
            last is None
            or plain
            or page.kind == pages.DICTIONARY
            or (page.kind, page.encoding) != (last.kind, last.encoding)
        ):
            joined.append(page)
        else:
            stored = last.stored + page.start + page.stored
            joined[-1] = last._replace(size=max(last.size, page.size), stored=stored, values=last.values + page.values)
    return joined


def in_python(found: bytes, monkeypatch: pytest.MonkeyPatch) -> list[ChunkLocation] | None:
    with monkeypatch.context() as patch:
        patch.setattr(layout, "native", None)
        try:
            return layout.chunks(found)
        except ValueError:
            return None


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_places_and_pages(codec: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, data = native(), file(codec, version, write_page_checksum=version == "2.0", data_page_size=4_000)
    found = kernels.chunks(footer(data))
    assert found == in_python(footer(data), monkeypatch)
    assert len(found) == 3 * 6
    monkeypatch.setattr(pages, "native", None)
    for _, _, start, end, _, values in found:
        expected = list(pages.pages(lambda at, count: data[at : at + count], start, end, values))
        for strings in (True, False):
            joined = list(map(Page._make, kernels.pages(data, start, end, values, strings)))
            assert joined == runs(expected, strings=strings)
        assert Page._make(kernels.page(data, start)) == expected[0]


def test_a_damaged_footer_is_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, whole = native(), footer(file())
    chance, answers = random.Random(15), 0
    for _ in range(3_000):
        spoilt = bytearray(whole[: chance.randrange(1, len(whole) + 1)] if chance.random() < 0.3 else whole)
        for _ in range(chance.randrange(3)):
            spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
        found = kernels.chunks(bytes(spoilt))
        if found is not None:
            answers += 1
            assert found == in_python(bytes(spoilt), monkeypatch)
    assert answers > 100


def test_a_damaged_page_header_is_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, data = native(), file()
    first = kernels.chunks(footer(data))[1]
    header = data[first[2] : first[2] + 200]
    monkeypatch.setattr(pages, "native", None)
    chance, answers = random.Random(15), 0
    for _ in range(3_000):
        spoilt = bytearray(header[: chance.randrange(1, 60)] if chance.random() < 0.3 else header)
        for _ in range(chance.randrange(3)):
            spoilt[chance.randrange(min(30, len(spoilt)))] = chance.randrange(256)
        found = kernels.page(bytes(spoilt), 0)
        if found is not None:
            answers += 1
            assert Page._make(found) == pages.page(bytes(spoilt), 0)
    assert answers > 100


@pytest.mark.parametrize(
    ("values", "longest"), [([], 0), ([b""], 0), ([b"a", b"", b"abc", b"de"], 3), ([b"x" * 300, b"y" * 7], 300)]
)
def test_the_longest_value(values: list[bytes], longest: int) -> None:
    kernels, data = native(), b"".join(struct.pack("<I", len(value)) + value for value in values)
    assert kernels.longest(data, len(values)) == longest
    assert kernels.longest(data + b"rest", len(values)) == longest
    assert kernels.longest(data, len(values) + 1) == -1
    if data:
        assert kernels.longest(data[:-1], len(values)) == -1


@pytest.mark.parametrize("codec", CODECS)
def test_dictionaries_are_measured_without_decoding_them(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    native()
    monkeypatch.setattr(decoding, "native", None)
    measured = []

    def stored_longest(*arguments: Any) -> int | None:
        measured.append(dictionaries.stored_longest(*arguments))
        return measured[-1]

    monkeypatch.setattr(arrow_run, "stored_longest", stored_longest)
    monkeypatch.setattr(arrow_run, "DIRECT_BYTES", 1)
    with reader.opened(pa.BufferReader(file(codec))) as found:
        assert sum(batch.num_rows for batch in found.batches(["word", "own"], rows=500)) == ROWS
    words = [f"word {number % 700}" * (1 + number % 9) for number in range(ROWS)]
    own = [f"{number}-{word}" for number, word in enumerate(words)]
    groups = [column[first : first + 1_000] for column in (words, own) for first in range(0, ROWS, 1_000)]
    assert set(measured) == {max(map(len, group)) for group in groups}


@pytest.mark.parametrize("kernels", [True, False])
def test_lists_of_strings_whose_dictionary_was_given_up(
    kernels: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not kernels:
        request.getfixturevalue("no_kernels")
    rows = 200_000
    texts = pa.array([f"{number * 7919 % 1_000_003}-{number}" for number in range(3 * rows)])
    lists = pa.ListArray.from_arrays(pa.array(range(0, 3 * rows + 1, 3), pa.int32()), texts)
    path = tmp_path / "lists.parquet"
    pq.write_table(pa.table({"list": lists}), path)
    with reader.opened(pa.OSFile(str(path))) as found:
        batches = list(found.batches(["list"], rows=65_536))
    assert pa.Table.from_batches(batches)["list"].combine_chunks().equals(lists)


def test_a_small_file_is_read_without_its_page_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(arrow_run, "pages", lambda *place: asked.append(place) or iter(()))
    monkeypatch.setattr(arrow_run, "pages_in", lambda *place: asked.append(place) or iter(()))
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(50), "text": [f"row {number}" for number in range(50)]}), sink)
    with reader.opened(pa.BufferReader(sink.getvalue())) as found:
        assert sum(batch.num_rows for batch in found.batches(["id", "text"], rows=1_000)) == 50
    assert not asked


def test_views_of_the_writer_are_read_as_strings() -> None:
    texts = [None if number % 5 == 0 else f"text {number}" * 3 for number in range(ROWS)]
    table = pa.table({"text": pa.array(texts, pa.string_view()), "ARROW:schemas": range(ROWS)})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    with reader.opened(pa.BufferReader(sink.getvalue())) as found:
        assert found.schema_arrow.field("text").type == pa.string()
        assert [text for batch in found.batches(["text"], rows=700) for text in batch["text"].to_pylist()] == texts


def test_a_column_that_is_named_as_the_key_of_the_schema_keeps_its_name() -> None:
    name = "ARROW:schema"
    table = pa.table({name: pa.array(["a", "b"], pa.string_view())})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    with reader.opened(pa.BufferReader(sink.getvalue())) as found:
        assert found.schema_arrow.names == [name]
        [batch] = found.batches([name], rows=10)
    assert batch[name].to_pylist() == ["a", "b"]


def test_some_columns_have_their_share_of_the_size() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(ROWS), "text": [f"{number}" * 50 for number in range(ROWS)]}), sink)
    with reader.opened(pa.BufferReader(sink.getvalue())) as found:
        whole = found.metadata.row_group(0).total_byte_size
        parts = [found.size_of([name]) for name in ("id", "text")]
    assert whole - 2 <= sum(parts) <= whole
    assert 0 < parts[0] < parts[1]


@pytest.mark.parametrize("codec", CODECS)
def test_pages_of_a_stored_file(codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native()
    data = file(codec, data_page_size=200, write_batch_size=50)
    (tmp_path / "file").write_bytes(data)
    with pa.OSFile(str(tmp_path / "file")) as source:
        for chunk in layout.chunks(footer(data)):
            place = chunk.start, chunk.end, chunk.values
            single = list(pages.pages(lambda at, count: data[at : at + count], *place))
            assert len(single) > 6
            for strings in (True, False):
                with monkeypatch.context() as patch:
                    patch.setattr(pages, "MOST_PAGES", 3)
                    parts = list(pages.pages_at(source.read_at, *place, strings=strings))
                assert runs(parts, strings=strings) == runs(single, strings=strings)
                assert len(parts) >= len(single) // 3
                whole = list(pages.pages_at(source.read_at, *place, strings=strings))
                assert whole == list(pages.pages_in(memoryview(data), *place, strings=strings))
                assert whole == runs(single, strings=strings)


def test_damaged_pages_of_a_stored_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native()
    data = bytearray(file())
    chunk = layout.chunks(footer(bytes(data)))[1]
    random_ = random.Random(1)

    def outcome() -> object:
        with pa.OSFile(str(tmp_path / "file")) as source:
            try:
                found = list(pages.pages_at(source.read_at, chunk.start, chunk.end, chunk.values))
                return runs(found, strings=True)
            except ValueError as error:
                return str(error)

    different = set()
    for _ in range(200):
        damaged = data[:]
        for _ in range(3):
            damaged[chunk.start + random_.randrange(30)] = random_.randrange(256)
        (tmp_path / "file").write_bytes(damaged)
        found = outcome()
        with monkeypatch.context() as patch:
            patch.setattr(pages, "native", None)
            assert outcome() == found
        different.add(str(found))
    assert len(different) > 10


STRINGS = {
    "short": ["new", "paid", "", "delivered"],
    "long": ["x" * size for size in range(70)],
    "larger than is padded": ["y" * 40_000, "z" * 30_000, "1"],
    "empty": ["", ""],
    "other letters": ["ä", "日本", "🙂"],
}


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
@pytest.mark.parametrize("name", STRINGS)
@pytest.mark.parametrize("nulls", ["none", "some", "all"])
def test_strings_of_a_dictionary(kind: pa.DataType, name: str, nulls: str) -> None:
    native()
    random_ = random.Random(1)
    dictionary = pa.array(["before", *STRINGS[name], "after"]).cast(kind)[1:-1]
    share = {"none": 0.0, "some": 0.3, "all": 1.0}[nulls]
    numbers = [None if random_.random() < share else random_.randrange(len(dictionary)) for _ in range(100)]
    column = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), dictionary)
    for start, count in ((0, 100), (0, 0), (8, 30), (13, 50), (99, 1)):
        some = column.slice(start, count)
        found = dictionaries._strings(some)
        found.validate(full=True)
        assert found.equals(some.dictionary_decode())
        assert found.null_count == some.null_count


@pytest.mark.parametrize("number", [3, 2**31 - 1, -1, -(2**31)])
def test_an_index_that_is_not_in_the_dictionary(number: int) -> None:
    native()
    indices = pa.array([0, 1, number, 2], pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b", "c"]), safe=False)
    assert dictionaries._taken(column.dictionary, column.indices) is None
    with pytest.raises(pa.ArrowException):
        dictionaries._strings(column)


def test_strings_that_are_too_many_for_their_offsets() -> None:
    native()
    dictionary = pa.array(["x" * (1 << 20)])
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 2048, pa.int32()), dictionary)
    assert dictionaries._taken(column.dictionary, column.indices) is None


def test_codes_are_looked_up_within_their_table() -> None:
    table, found = np.array([4, 5, 6], np.int8), np.empty(3, np.int8)
    assert native().looked_up(np.array([2, 0, 1], np.int32), table, found)
    assert found.tolist() == [6, 4, 5]
    for wrong in (3, -1):
        assert not native().looked_up(np.array([0, wrong, 1], np.int32), table, found)
    assert not native().looked_up(np.array([0, 1], np.int32), table, found)
