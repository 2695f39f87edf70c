"""One scan, read: which rows, in which columns, and what there is instead where the file is not what the log says."""

import asyncio
import errno
import io
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.delta import deletion_vector
from cdfd.delta.actions import DeletionVectorDescriptor
from cdfd.delta.deletion_vector import RowSet
from cdfd.delta.types.schema import Primitive, StructField, StructType, TableSchema, from_arrow
from cdfd.errors import CdfdError, DataError, LogError, MissingFileError, PathError, StorageError, UnsupportedError
from cdfd.model.columns import CHANGE_COLUMNS
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.plan.shape.parser import parse_filter
from cdfd.scan.file_reader import BATCH_BYTES
from cdfd.scan.read import ScanReader
from cdfd.scan.table_files import TableFiles
from tests.support.memory_storage import MemoryStorage

Rows = list[dict[str, Any]]
LONG, STRING = Primitive("long"), Primitive("string")
SCHEMA = TableSchema(StructType((StructField("a", LONG), StructField("s", STRING))))


def numbers(count: int) -> pa.Table:
    return pa.table({"a": pa.array(range(count), pa.int64()), "s": [f"row {number}" for number in range(count)]})


def written(rows: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, **options)
    return buffer.getvalue()


def stored(files: Mapping[str, bytes], uri: str = "memory://") -> MemoryStorage:
    storage = MemoryStorage(uri)
    for path, data in files.items():
        asyncio.run(storage.put(path, data))
    return storage


def table_files(files: Mapping[str, bytes]) -> TableFiles:
    def open_root(root: str) -> MemoryStorage:
        raise AssertionError(f"{root} was opened")

    return TableFiles(stored(files), open_root)


def scan(path: str = "f", change_type: Any = "insert", **more: Any) -> FileScan:
    return FileScan(path, change_type, more.pop("partition_values", {}), more.pop("size", 0), **more)


def hidden(*rows: int) -> DeletionVectorDescriptor:
    return deletion_vector.inline(RowSet.of(rows))


def read(
    file: FileScan, schema: TableSchema, files: TableFiles, *, threads: int = 1, **options: Any
) -> Iterator[pa.RecordBatch]:
    reader = ScanReader(files, lambda _: schema, threads=threads, **options)
    return (scanned.rows for scanned in reader.read(ChangePlan(0, 0, schema, (file,), "files"), file))


def rows_of(file: FileScan, data: bytes | Mapping[str, bytes], schema: TableSchema = SCHEMA, **options: Any) -> Rows:
    files = table_files({"f": data} if isinstance(data, bytes) else data)
    batches = list(read(file, schema, files, **options))
    for batch in batches:
        assert batch.num_rows
        assert batch.schema.equals(pa.schema([*schema.arrow, CHANGE_COLUMNS[0]]))
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


def which(file: FileScan, data: bytes, **options: Any) -> list[int]:
    return [row["a"] for row in rows_of(file, data, **options)]


class TestRows:
    def test_all_of_a_file(self) -> None:
        assert rows_of(scan(), written(numbers(2))) == [
            {"a": 0, "s": "row 0", "_change_type": "insert"},
            {"a": 1, "s": "row 1", "_change_type": "insert"},
        ]
        assert {row["_change_type"] for row in rows_of(scan(change_type="delete"), written(numbers(2)))} == {"delete"}

    def test_an_empty_file(self) -> None:
        assert rows_of(scan(), written(numbers(0))) == []

    def test_vectors_choose_and_hide_rows(self) -> None:
        data = written(numbers(6))
        assert which(scan(without=hidden(0, 5)), data) == [1, 2, 3, 4]
        assert which(scan(only=hidden(0, 5)), data) == [0, 5]
        # removed with {0, 1}, added with {1, 2}: row 2 was deleted, row 0 is back
        assert which(scan(only=hidden(1, 2), without=hidden(0, 1)), data) == [2]
        assert which(scan(only=hidden(0, 1), without=hidden(1, 2)), data) == [0]
        assert which(scan(only=hidden(3), without=hidden(3)), data) == []
        assert which(scan(only=hidden()), data) == []
        assert which(scan(without=hidden()), data) == [0, 1, 2, 3, 4, 5]
        assert which(scan(without=hidden(*range(6))), data) == []

    @given(
        count=st.integers(0, 40),
        group=st.integers(1, 15),
        batch=st.integers(1, 15),
        data=st.data(),
    )
    def test_whatever_the_row_groups_and_batches(self, count: int, group: int, batch: int, data: st.DataObject) -> None:
        chosen = st.none() | st.sets(st.integers(0, max(count - 1, 0)), max_size=count)
        only, without = data.draw(chosen), data.draw(chosen)
        actual = scan(
            only=None if only is None else hidden(*only), without=None if without is None else hidden(*without)
        )
        expected = [row for row in range(count) if (only is None or row in only) and row not in (without or ())]
        assert which(actual, written(numbers(count), row_group_size=group), batch_rows=batch) == expected

    def test_row_groups_without_a_wanted_row_are_not_read(self) -> None:
        """Their bytes are damaged, and the read succeeds."""
        data = bytearray(written(numbers(40), row_group_size=10, compression="snappy"))
        metadata = pq.ParquetFile(pa.BufferReader(bytes(data))).metadata
        for group in (0, 2):
            for column in range(2):
                chunk = metadata.row_group(group).column(column)
                start = chunk.dictionary_page_offset
                data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
        assert which(scan(only=hidden(12, 39)), bytes(data)) == [12, 39]
        with pytest.raises(DataError):
            which(scan(), bytes(data))

    def test_rows_in_threads_are_the_same(self) -> None:
        data = written(numbers(1_000), row_group_size=100)
        assert rows_of(scan(), data, threads=2) == rows_of(scan(), data)


class TestBatches:
    def sizes(self, data: bytes, **options: Any) -> list[int]:
        return [rows.num_rows for rows in read(scan(), SCHEMA, table_files({"f": data}), **options)]

    def test_have_so_many_rows(self) -> None:
        data = written(numbers(2_500))
        assert self.sizes(data, batch_rows=1_000) == [1_000, 1_000, 500]
        assert self.sizes(data) == [2_500]

    def test_of_wide_rows_are_shorter(self) -> None:
        """A megabyte a row, as documents and images have: a batch has bytes of its own to keep to."""
        wide = pa.table({"a": range(40), "s": [chr(97 + number % 26) * (1 << 20) for number in range(40)]})
        data = written(wide, compression="zstd", use_dictionary=False)
        sizes = self.sizes(data)
        assert sum(sizes) == 40
        assert max(sizes) <= BATCH_BYTES >> 20


class TestColumns:
    def test_a_missing_one_is_null(self) -> None:
        schema = TableSchema(StructType((StructField("new", STRING), StructField("a", LONG))))
        assert rows_of(scan(), written(numbers(1)), schema) == [{"new": None, "a": 0, "_change_type": "insert"}]

    def test_all_of_them_missing(self) -> None:
        """There are rows all the same, and vectors hide some."""
        schema = TableSchema(StructType((StructField("new", STRING),)))
        data = written(numbers(5), row_group_size=2)
        assert rows_of(scan(), data, schema) == [{"new": None, "_change_type": "insert"}] * 5
        assert len(rows_of(scan(without=hidden(1, 4)), data, schema)) == 3
        assert len(rows_of(scan(only=hidden(1, 4)), data, schema)) == 2

    def test_no_columns_at_all(self) -> None:
        assert rows_of(scan(), written(numbers(2)), TableSchema(StructType(()))) == [{"_change_type": "insert"}] * 2

    def test_partition_value_is_the_column_of_all_rows(self) -> None:
        schema = TableSchema(StructType((StructField("p", LONG), StructField("a", LONG))), ("p",))
        actual = scan(partition_values={"p": "7"})
        assert rows_of(actual, written(numbers(1)), schema) == [{"p": 7, "a": 0, "_change_type": "insert"}]
        assert rows_of(scan(), written(numbers(1)), schema)[0]["p"] is None
        with pytest.raises(LogError, match="not a value of type long") as caught:
            rows_of(scan(partition_values={"p": "x"}), written(numbers(1)), schema)
        assert caught.value.path == "f"

    def test_a_physical_column_of_the_name_of_the_change_type(self) -> None:
        """Outside of change data files it is none of the table's."""
        data = written(numbers(1).append_column("_change_type", pa.array(["update_preimage"])))
        assert rows_of(scan(), data) == [{"a": 0, "s": "row 0", "_change_type": "insert"}]

    def test_a_type_that_the_table_does_not_hold(self) -> None:
        with pytest.raises(DataError, match="file has double, table says long") as caught:
            rows_of(scan(), written(pa.table({"a": [1.5]})))
        assert caught.value.path == "f"

    def test_names_with_dots(self) -> None:
        nested = pa.table({"a": [{"b": 1}], "a.b": [2], "a.b.c": [3]})
        schema = TableSchema(from_arrow(nested.schema))
        assert rows_of(scan(), written(nested), schema) == [
            {"a": {"b": 1}, "a.b": 2, "a.b.c": 3, "_change_type": "insert"}
        ]

    @pytest.mark.parametrize("different", [1, 3, 10_000, 51_000])
    def test_strings_that_repeat_are_the_same_strings(self, different: int) -> None:
        """They are read as dictionaries, as long as they are in one."""
        count = 51_000
        strings = [None if number % 7 == 0 else f"value {number % different}" for number in range(count)]
        data = written(pa.table({"a": range(count), "s": strings}))
        actual = list(read(scan(without=hidden(3)), SCHEMA, table_files({"f": data})))
        everything = pa.Table.from_batches(actual)
        assert everything.column("s").type == pa.string()
        assert everything.column("s").to_pylist() == strings[:3] + strings[4:]


class TestChangeData:
    TYPES = ("insert", "update_preimage", "update_postimage", "delete")

    def file(self, types: Sequence[object], kind: pa.DataType | None = None) -> bytes:
        return written(numbers(len(types)).append_column("_change_type", pa.array(types, kind)))

    @pytest.mark.parametrize(
        "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()]
    )
    def test_every_row_has_its_own_type(self, kind: pa.DataType) -> None:
        types = pa.array([*self.TYPES, "insert"])
        data = written(numbers(5).append_column("_change_type", types.cast(kind)))
        actual = rows_of(scan(change_type=None), data)
        assert [(row["a"], row["_change_type"]) for row in actual] == [
            *((1, "update_preimage"), (2, "update_postimage"), (3, "delete")),
            *((0, "insert"), (4, "insert")),
        ]

    def test_columns_before_and_after_it(self) -> None:
        rows = pa.table({"a": [1], "_change_type": ["delete"], "s": ["x"]})
        assert rows_of(scan(change_type=None), written(rows)) == [{"a": 1, "s": "x", "_change_type": "delete"}]

    def test_without_any_other_column(self) -> None:
        data = written(pa.table({"_change_type": ["delete", "insert"]}))
        schema = TableSchema(StructType((StructField("p", LONG),)), ("p",))
        actual = rows_of(scan(change_type=None, partition_values={"p": "1"}), data, schema)
        assert actual == [{"p": 1, "_change_type": "delete"}, {"p": 1, "_change_type": "insert"}]

    @pytest.mark.parametrize("wrong", ["", "Insert", "upsert", None])
    def test_a_type_that_is_none(self, wrong: str | None) -> None:
        with pytest.raises(DataError, match="_change_type") as caught:
            rows_of(scan(change_type=None), self.file(["insert", wrong]))
        assert caught.value.path == "f"

    @pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.string())])
    def test_a_column_of_it_that_is_no_text(self, kind: pa.DataType) -> None:
        with pytest.raises(DataError):
            rows_of(scan(change_type=None), self.file([None, None], kind))

    @pytest.mark.parametrize("count", [0, 2])
    def test_a_file_without_it_and_one_that_has_it_twice(self, count: int) -> None:
        table = numbers(1)
        for _ in range(count):
            table = table.append_column("_change_type", pa.array(["insert"] * table.num_rows))
        with pytest.raises(DataError, match=f"has {count} _change_type columns") as caught:
            rows_of(scan(change_type=None), written(table))
        assert caught.value.path == "f"


class TestVectors:
    NAME = UUID(int=1)
    ROWS = RowSet.of([1, 2])

    def on_disk(self) -> tuple[DeletionVectorDescriptor, dict[str, bytes]]:
        data, places = deletion_vector.store([RowSet.of([0]), self.ROWS])
        offset, size = places[1]
        described = deletion_vector.describe(self.NAME, "ab", offset, size, 2)
        return described, {f"ab/deletion_vector_{self.NAME}.bin": data, "f": written(numbers(4))}

    def test_vector_in_a_file_hides_rows(self) -> None:
        described, files = self.on_disk()
        assert [row["a"] for row in rows_of(scan(without=described), files)] == [0, 3]

    def test_whose_file_is_gone(self) -> None:
        described, files = self.on_disk()
        with pytest.raises(MissingFileError) as caught:
            rows_of(scan(without=described), {"f": files["f"]})
        assert caught.value.path == f"ab/deletion_vector_{self.NAME}.bin"

    @pytest.mark.parametrize("at", range(0, 40, 3))
    def test_whose_file_is_truncated(self, at: int) -> None:
        described, files = self.on_disk()
        name = f"ab/deletion_vector_{self.NAME}.bin"
        with pytest.raises(DataError) as caught:
            rows_of(scan(without=described), files | {name: files[name][: -at - 1]})
        assert caught.value.path == name

    @pytest.mark.parametrize(("offset", "size"), [(10**6, 34), (2**62, 34), (1, 2**62), (2**63 - 1, 2**63 - 1)])
    def test_places_that_are_not_in_the_file(self, offset: int, size: int) -> None:
        described, files = self.on_disk()
        wrong = DeletionVectorDescriptor("u", described.path_or_inline, offset, size, 2)
        with pytest.raises(DataError):
            rows_of(scan(without=wrong), files)

    @pytest.mark.parametrize("role", ["only", "without"])
    def test_of_rows_that_the_file_does_not_have(self, role: str) -> None:
        with pytest.raises(DataError, match="hides row 4 of a file of 4 rows") as caught:
            rows_of(scan(**{role: hidden(0, 4)}), written(numbers(4)))
        assert caught.value.path == "f"

    def test_of_an_unknown_kind(self) -> None:
        with pytest.raises(UnsupportedError, match="storage type 'x'"):
            rows_of(scan(without=DeletionVectorDescriptor("x", "", None, 1, 1)), written(numbers(1)))


class TestDamage:
    @pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1PAR1", b"x" * 50, b"PAR1" + b"\xff" * 20 + b"PAR1"])
    def test_what_is_no_parquet(self, data: bytes) -> None:
        with pytest.raises(DataError, match="cannot be read") as caught:
            rows_of(scan(), data)
        assert caught.value.path == "f"
        assert caught.value.hint

    def test_a_device_that_fails_is_retried_and_not_taken_for_damage(self) -> None:
        class Failing(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                raise OSError(errno.EIO, "Input/output error")

        class Device(MemoryStorage):
            def open_input_file(self, path: str, size: int | None = None) -> pa.NativeFile:
                return pa.PythonFile(Failing(written(numbers(3))), "r")

        with pytest.raises(StorageError, match="Input/output error") as failed:
            list(read(scan(), SCHEMA, TableFiles(Device("memory://"), Device)))
        assert (failed.value.retriable, failed.value.path) == (True, "f")

    def test_truncated_file_is_refused(self) -> None:
        data = written(numbers(50), row_group_size=20)
        for at in range(0, len(data), 11):
            with pytest.raises(DataError):
                rows_of(scan(), data[:at])

    def test_a_file_that_is_gone(self) -> None:
        with pytest.raises(MissingFileError, match="the file is gone") as caught:
            rows_of(scan("elsewhere"), written(numbers(1)))
        assert caught.value.path == "elsewhere"
        assert caught.value.hint
        assert "VACUUM" in caught.value.hint

    @pytest.mark.parametrize("count", [60, 20_000])
    @pytest.mark.parametrize("seed", range(2))
    def test_mutated_file_is_read_or_refused(self, seed: int, count: int) -> None:
        """Each mutation gives rows or an error of cdfd, and none ends the process."""
        chance = random.Random(seed)
        bases = list(self.bases(count))
        taken = 0
        for _ in range(300 if count < 100 else 60):
            data = bytearray(chance.choice(bases))
            footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
            for _ in range(chance.choice((1, 1, 2, 4))):
                at = chance.randrange(footer if chance.random() < 0.7 else 0, len(data))
                data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, data[at] ^ (1 << chance.randrange(8))))
            taken += self.survives(bytes(data), chance)
        assert taken

    def survives(self, data: bytes, chance: random.Random) -> bool:
        file = scan(
            change_type=chance.choice(["insert", None]),
            only=chance.choice([None, hidden(1, 50)]),
            without=chance.choice([None, hidden(1, 30)]),
        )
        schema = TableSchema(from_arrow(self.rows(1).drop_columns("_change_type").schema))
        try:
            where = chance.choice([None, parse_filter("a > 7"), parse_filter("t IS NULL OR a = 3")])
            threads = 1 + (chance.random() < 0.3)
            for batch in read(file, schema, table_files({"f": data}), threads=threads, where=where):
                batch.validate()
        except CdfdError:
            return False
        return True

    def rows(self, count: int) -> pa.Table:
        return (
            numbers(count)
            .append_column("l", pa.array([[1, None]] * count))
            .append_column("t", pa.array(np.arange(count), pa.timestamp("us", "UTC")))
            .append_column("_change_type", pa.array(["insert"] * count))
        )

    def bases(self, count: int) -> Iterator[bytes]:
        for compression in ("snappy", "zstd", "none"):
            for version in ("1.0", "2.0"):
                yield written(
                    self.rows(count),
                    compression=compression,
                    data_page_version=version,
                    row_group_size=count // 3 + 1,
                    write_statistics=version == "1.0",
                )


class TestPaths:
    """A hostile log cannot make a reader publish files outside the table."""

    def files(self, allowed: tuple[str, ...] = ()) -> tuple[TableFiles, list[str]]:
        roots: list[str] = []
        other = stored({"data/f": written(numbers(1))}, "/other")

        def open_root(root: str) -> MemoryStorage:
            roots.append(root)
            return other

        return TableFiles(stored({"f": written(numbers(2))}, "/lake/table"), open_root, allowed), roots

    @pytest.mark.parametrize("path", ["f", "./f", "x/../f", "/lake/table/f", "/lake/table//x/../f"])
    def test_path_inside_the_table_is_read_by_its_own_storage(self, path: str) -> None:
        files, roots = self.files()
        assert sum(rows.num_rows for rows in read(scan(path), SCHEMA, files)) == 2
        assert roots == []

    @pytest.mark.parametrize(
        "path",
        [
            "../f",
            "x/../../f",
            "/etc/passwd",
            "/lake/table/../f",
            "/lake/tablex/f",
            "s3://bucket/f",
            "//host/f",
            "file://host/f",
            "C:\\f",
            "a\\..\\..\\f",
            "f\0",
            "",
            ".",
        ],
    )
    def test_path_outside_the_table_is_refused(self, path: str) -> None:
        files, roots = self.files(("/other",))
        with pytest.raises(PathError) as caught:
            list(read(scan(path), SCHEMA, files))
        assert caught.value.path is not None
        assert roots == []

    def test_where_it_is_allowed(self) -> None:
        files, roots = self.files(("/elsewhere", "/other"))
        assert sum(rows.num_rows for rows in read(scan("/other/data/f"), SCHEMA, files)) == 1
        assert roots == ["/other"]
        with pytest.raises(MissingFileError):
            list(read(scan("/other/data/g"), SCHEMA, files))

    def test_deletion_vector_outside_the_table_is_refused(self) -> None:
        files, roots = self.files()
        vector = DeletionVectorDescriptor("p", "/etc/passwd", 1, 34, 1)
        with pytest.raises(PathError) as caught:
            list(read(scan(without=vector), SCHEMA, files))
        assert caught.value.path == "/etc/passwd"
        assert roots == []


@pytest.mark.parametrize("take", [0, 1])
def test_a_reader_that_is_closed_closes_its_file(take: int, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = stored({"f": written(numbers(10))})
    sources: list[pa.NativeFile] = []
    open_input_file: Callable[..., pa.NativeFile] = storage.open_input_file

    def remembering(path: str, size: int | None = None) -> pa.NativeFile:
        sources.append(open_input_file(path, size))
        return sources[-1]

    monkeypatch.setattr(storage, "open_input_file", remembering)
    batches = read(scan(), SCHEMA, TableFiles(storage, lambda root: storage), batch_rows=2)
    for _ in range(take):
        next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert [file.closed for file in sources] == [True] * take
