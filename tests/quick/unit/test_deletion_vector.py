import contextlib
import json
import pickle
import random
import struct
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from cdfd.delta import deletion_vector, roaring, z85
from cdfd.delta.actions import DeletionVectorDescriptor
from cdfd.delta.deletion_vector import RowSet
from cdfd.errors import CdfdError, DataError, UnsupportedError

GOLDEN = Path(__file__).parents[4] / "shared" / "golden"
SPEC_ROWS = [3, 4, 7, 11, 18, 29]
# Example 3 of the specification, corrected: its own text has neither of the two magic numbers.
CORRECTED = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
SPEC_UUID = UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")

row_numbers = st.one_of(
    st.integers(0, 300),
    st.integers(65_530, 65_545),
    st.integers(2**32 - 5, 2**32 + 5),
    st.integers(0, 2**40),
    st.integers(2**63 - 5, 2**63 - 1),
)
runs = st.tuples(st.integers(0, 400_000), st.integers(0, 9_000)).map(lambda run: set(range(run[0], sum(run))))
sparse_rows = st.sets(row_numbers, max_size=60)
row_sets = sparse_rows | st.builds(lambda one, two, three: one | two | three, sparse_rows, runs, runs)


def rows_of(rows: RowSet) -> set[int]:
    return set(rows.bitmap)


def inline(text: str, size: int, cardinality: int) -> DeletionVectorDescriptor:
    return DeletionVectorDescriptor("i", text, None, size, cardinality)


def stored(offset: int | None, size: int, cardinality: int) -> DeletionVectorDescriptor:
    return DeletionVectorDescriptor("u", z85.encode(SPEC_UUID.bytes), offset, size, cardinality)


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def native(*bitmaps: Iterable[int], order: str = "<") -> bytes:
    parts = [struct.pack(f"{order}II", roaring.NATIVE, len(bitmaps))]
    for rows in bitmaps:
        data = BitMap(rows).serialize()
        parts += [struct.pack(f"{order}I", len(data)), data]
    return b"".join(parts)


def samples() -> list[RowSet]:
    """One set for each kind of container, and mixtures over several buckets."""
    return [
        RowSet.of([]),
        RowSet.of([3]),
        RowSet.of(SPEC_ROWS),
        RowSet.of(range(100_000)),
        RowSet.of(range(0, 30_000, 3)),
        RowSet.of([0, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1]),
        RowSet.of([*range(0, 20_000, 2), *range(70_000, 80_000), 2**33 + 1]),
    ]


class TestZ85:
    def test_vector_of_the_standard(self) -> None:
        assert z85.encode(bytes.fromhex("864fd26fb559f75b")) == "HelloWorld"
        assert z85.decode("HelloWorld") == bytes.fromhex("864fd26fb559f75b")

    @given(st.binary(max_size=64))
    def test_z85_decodes_what_it_encoded_with_padding(self, data: bytes) -> None:
        text = z85.encode(data)
        assert len(text) == -(-len(data) // 4) * 5
        assert z85.decode(text) == data + bytes(-len(data) % 4)

    @given(st.binary(max_size=32), st.binary(min_size=1, max_size=3))
    def test_tail_padded_with_hashes(self, whole: bytes, tail: bytes) -> None:
        whole = whole[: len(whole) // 4 * 4]
        # So does the z85 crate: the tail is a smaller number in fewer digits.
        text = z85.encode(bytes(4 - len(tail)) + tail)[4 - len(tail) :]
        assert z85.decode(z85.encode(whole) + text.rjust(5, "#")) == whole + tail

    def test_z85_of_no_bytes_is_empty(self) -> None:
        assert z85.encode(b"") == ""
        assert z85.decode("") == b""

    @pytest.mark.parametrize(
        "text",
        [
            "a",
            "abcd",
            "abcdef",
            "abc d",
            "abcd~",
            "abcdé",
            "abcdef000é",
            "#####",
            "%nSc1",
            "####0",
            "##093HelloW",
        ],
    )
    def test_malformed_z85_is_refused(self, text: str) -> None:
        with pytest.raises(DataError, match="Z85"):
            z85.decode(text)

    def test_greatest_group_of_z85_is_four_bytes_of_ones(self) -> None:
        assert z85.encode(b"\xff" * 4) == "%nSc0"
        assert z85.decode("%nSc0") == b"\xff" * 4

    @given(st.text(max_size=20))
    def test_noise_is_a_data_error(self, text: str) -> None:
        with contextlib.suppress(DataError):
            z85.decode(text)


class TestRowSet:
    @given(row_sets, row_sets)
    def test_operations_are_those_of_sets(self, one: set[int], two: set[int]) -> None:
        left, right = RowSet.of(one), RowSet.of(two)
        assert rows_of(left.difference(right)) == one - two
        assert rows_of(left.union(right)) == one | two
        assert rows_of(left.intersection(right)) == one & two
        assert len(left) == len(one)
        assert left.max() == (max(one) if one else None)
        assert bool(left) == bool(one)
        assert (left == right) == (one == two)

    @given(row_sets, st.integers(0, 100_000), st.integers(0, 5_000))
    def test_range_of_rows_is_that_of_the_set(self, rows: set[int], start: int, length: int) -> None:
        compressed = RowSet.of(rows)
        expected = [row in rows for row in range(start, start + length)]
        assert compressed.mask(start, length).tolist() == expected
        assert compressed.count(start, length) == sum(expected)

    def test_masks_of_batches_make_the_mask_of_the_file(self) -> None:
        rows = RowSet.of(range(0, 1_000_000, 7))
        batches = [rows.mask(start, min(65_536, 1_000_000 - start)) for start in range(0, 1_000_000, 65_536)]
        expected = np.zeros(1_000_000, dtype=bool)
        expected[::7] = True
        assert np.array_equal(np.concatenate(batches), expected)

    def test_can_be_sent_to_another_process(self) -> None:
        for rows in samples():
            assert pickle.loads(pickle.dumps(rows)) == rows

    def test_billions_of_rows_stay_compressed(self) -> None:
        rows = RowSet.of(range(2**33))
        assert len(rows) == 2**33
        assert rows.count(2**32, 1_000_000) == 1_000_000
        assert len(rows.difference(RowSet.of([5]))) == 2**33 - 1


class TestPaths:
    @pytest.mark.parametrize(
        ("kind", "text", "path"),
        [
            # Specification, "JSON Example 1" and 2.
            ("u", "ab^-aqEH.-t@S}K{vb[*k^", f"ab/deletion_vector_{SPEC_UUID}.bin"),
            ("u", "^-aqEH.-t@S}K{vb[*k^", f"deletion_vector_{SPEC_UUID}.bin"),
            ("p", f"s3://mytable/deletion_vector_{SPEC_UUID}.bin", f"s3://mytable/deletion_vector_{SPEC_UUID}.bin"),
            ("p", "file:///t%20x/a.bin", "/t x/a.bin"),
            ("i", CORRECTED, None),
        ],
    )
    def test_path_of_each_storage_type_is_that_of_the_specification(
        self, kind: str, text: str, path: str | None
    ) -> None:
        assert deletion_vector.path_of(DeletionVectorDescriptor(kind, text, 4, 40, 6)) == path

    @pytest.mark.parametrize(
        ("kind", "text"),
        [("u", ""), ("u", "short"), ("u", "^-aqEH.-t@S}K{vb[*k~"), ("u", "^-aqEH.-t@S}K{v####0"), ("p", "/a%zz")],
    )
    def test_malformed_path_is_refused(self, kind: str, text: str) -> None:
        with pytest.raises(DataError):
            deletion_vector.path_of(DeletionVectorDescriptor(kind, text, 1, 40, 6))

    @pytest.mark.parametrize("kind", ["", "r", "U", "ui"])
    def test_unknown_storage_type(self, kind: str) -> None:
        with pytest.raises(UnsupportedError, match=f"storage type '{kind}'") as caught:
            deletion_vector.path_of(DeletionVectorDescriptor(kind, "x", 1, 40, 6))
        assert caught.value.hint == "The types u, i and p are specified: the writer of the table is newer or faulty"

    @given(st.uuids(), st.sampled_from(["", "ab", "a/b"]))
    def test_described_vector_has_the_path_of_its_uuid(self, uuid: UUID, prefix: str) -> None:
        descriptor = deletion_vector.describe(uuid, prefix, 1, 40, 6)
        assert deletion_vector.path_of(descriptor) == f"{prefix}{'/' if prefix else ''}deletion_vector_{uuid}.bin"


class TestInline:
    @pytest.mark.parametrize(
        ("text", "size", "rows"),
        [
            (CORRECTED, 44, SPEC_ROWS),
            ("^Bg9^0rr910000000000iXQKl0rr91000935c8Xg000311onP9", 40, [0, 1, 4, 5]),
            ("^Bg9^0rr910000000000iXQKl0rr91000315c8Xg000f5", 36, [0, 5]),
            ("^Bg9^0rr910000000000iXQKl0rr91000005c8Xg##093", 34, [3]),
        ],
    )
    def test_inline_vector_of_real_writers_is_decoded(self, text: str, size: int, rows: list[int]) -> None:
        assert rows_of(deletion_vector.decode_inline(inline(text, size, len(rows)))) == set(rows)

    def test_example_of_the_specification(self) -> None:
        """It is in the format of before the specification, and big-endian."""
        example = inline("wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", 40, 6)
        assert rows_of(deletion_vector.decode_inline(example)) == set(SPEC_ROWS)

    @given(row_sets)
    def test_inline_vector_is_decoded_to_its_rows(self, rows: set[int]) -> None:
        descriptor = deletion_vector.inline(RowSet.of(rows))
        assert descriptor.cardinality == len(rows)
        assert descriptor.offset is None
        assert deletion_vector.range_of(descriptor) is None
        assert rows_of(deletion_vector.decode_inline(descriptor)) == rows

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"size_in_bytes": 40}, "descriptor says 40"),
            ({"size_in_bytes": 45}, "descriptor says 45"),
            ({"size_in_bytes": -1}, "of -1 bytes"),
            ({"size_in_bytes": 2**31}, "6 rows cannot have 2147483648 bytes"),
            ({"path_or_inline": CORRECTED * 100_000}, "of 44 bytes has 5500000 characters"),
            ({"size_in_bytes": 43}, "roaring"),
            ({"cardinality": 5}, "removes 6 rows, its descriptor says 5"),
            ({"path_or_inline": CORRECTED[:-1]}, "Z85"),
            ({"path_or_inline": CORRECTED[:-5]}, "descriptor says 44"),
            ({"path_or_inline": ""}, "descriptor says 44"),
            ({"path_or_inline": "", "size_in_bytes": 0, "cardinality": 0}, "magic number"),
        ],
    )
    def test_inline_vector_that_contradicts_its_descriptor_is_refused(
        self, change: dict[str, int | str], message: str
    ) -> None:
        with pytest.raises(DataError, match=message):
            deletion_vector.decode_inline(replace(inline(CORRECTED, 44, 6), **change))

    def test_stored_one_is_not_asked_for_a_file(self) -> None:
        with pytest.raises(DataError, match="inline"):
            deletion_vector.decode_stored(inline(CORRECTED, 44, 6), b"")


KNOWN_MAGIC = {
    struct.pack("<I", roaring.PORTABLE),
    struct.pack("<I", roaring.NATIVE),
    struct.pack(">I", roaring.NATIVE),
}
ALMOST_MAGIC = {(int.from_bytes(magic) ^ 1 << bit).to_bytes(4) for magic in KNOWN_MAGIC for bit in range(32)}
UNKNOWN_MAGIC = sorted(
    (ALMOST_MAGIC | {struct.pack(">I", roaring.PORTABLE), bytes(4), b"PAR1", b"\xff" * 4}) - KNOWN_MAGIC
)


class TestMagicNumber:
    """The bytes behind an unknown number are of a format of tomorrow: read as one of today, they would delete other rows."""

    @pytest.mark.parametrize("body", [roaring.encode(RowSet.of(SPEC_ROWS))[4:], native(SPEC_ROWS)[4:], native([])[4:]])
    def test_an_unknown_one_is_an_error_that_names_it(self, body: bytes) -> None:
        for magic in UNKNOWN_MAGIC:
            number = int.from_bytes(magic, "little")
            for cardinality in (6, 0):
                with pytest.raises(
                    DataError, match=f"magic number {number}, which is neither 1681511377 nor 1681511376"
                ):
                    roaring.decode(magic + body, cardinality)

    @pytest.mark.parametrize("magic", UNKNOWN_MAGIC[::9])
    def test_inline_and_in_a_file(self, magic: bytes) -> None:
        data = magic + roaring.encode(RowSet.of(SPEC_ROWS))[4:]
        with pytest.raises(DataError, match="magic number"):
            deletion_vector.decode_inline(inline(z85.encode(data), len(data), 6))
        with pytest.raises(DataError, match="magic number"):
            deletion_vector.decode_stored(stored(1, len(data), 6), b"\x01" + framed(data))


class TestStored:
    DATA = roaring.encode(RowSet.of(SPEC_ROWS))

    def read(self, descriptor: DeletionVectorDescriptor, file: bytes) -> set[int]:
        wanted = deletion_vector.range_of(descriptor)
        assert wanted is not None
        start, length = wanted
        return rows_of(deletion_vector.decode_stored(descriptor, file[start : start + length]))

    @given(st.lists(row_sets, max_size=4))
    def test_stored_vectors_are_read_to_their_rows(self, sets: list[set[int]]) -> None:
        file, places = deletion_vector.store([RowSet.of(rows) for rows in sets])
        assert file[0] == 1
        for rows, (offset, size) in zip(sets, places, strict=True):
            descriptor = deletion_vector.describe(SPEC_UUID, "ab", offset, size, len(rows))
            assert self.read(descriptor, file) == rows

    def test_first_vector_is_at_offset_1(self) -> None:
        file, places = deletion_vector.store([RowSet.of(SPEC_ROWS), RowSet.of([1])])
        assert places == [(1, 44), (53, 34)]
        assert len(file) == 1 + 52 + 42

    @pytest.mark.parametrize("offset", [None, 0])
    def test_stored_vector_without_an_offset_is_read_with_or_without_the_version(self, offset: int | None) -> None:
        descriptor = stored(offset, len(self.DATA), 6)
        assert self.read(descriptor, b"\x01" + framed(self.DATA)) == set(SPEC_ROWS)
        assert self.read(descriptor, framed(self.DATA)) == set(SPEC_ROWS)
        assert self.read(descriptor, b"\x01" + framed(self.DATA) + b"more") == set(SPEC_ROWS)
        with pytest.raises(DataError, match="version 2"):
            self.read(descriptor, b"\x02" + framed(self.DATA))

    def test_offset_1_means_the_version_byte_is_there(self) -> None:
        with pytest.raises(DataError, match="version 0"):
            self.read(stored(1, len(self.DATA), 6), framed(self.DATA))

    @pytest.mark.parametrize(
        ("file", "message"),
        [
            (b"", "empty"),
            (b"\x02" + framed(DATA), "version 2, not 1"),
            (b"\x01", "ends after 0"),
            (b"\x01" + framed(DATA)[:-1], "ends after 51"),
            (b"\x01" + framed(DATA[:-1]), "ends after 51"),
            (b"\x01" + struct.pack(">i", 43) + framed(DATA)[4:], "43 bytes, its descriptor says 44"),
            (b"\x01" + struct.pack("<i", 44) + framed(DATA)[4:], "its descriptor says 44"),
            (b"\x01" + framed(DATA)[:-4] + b"\0\0\0\0", "checksum"),
            (b"\x01" + framed(bytes([1]) + DATA[1:]), "magic number"),
        ],
    )
    def test_stored_vector_that_contradicts_its_descriptor_is_refused(self, file: bytes, message: str) -> None:
        with pytest.raises(DataError, match=message):
            self.read(stored(1, len(self.DATA), 6), file)

    @pytest.mark.parametrize(("offset", "size"), [(-1, 44), (1, -1), (1, -44), (None, -8)])
    def test_negative_offsets_and_sizes(self, offset: int | None, size: int) -> None:
        with pytest.raises(DataError, match="offset"):
            deletion_vector.decode_stored(stored(offset, size, 6), b"\x01" + framed(self.DATA))

    def test_hostile_size_allocates_nothing(self) -> None:
        for rows, size in ((6, 2**31 - 1), (6, 5_000), (2**40, 2**31 - 1)):
            with pytest.raises(DataError, match=f"{rows} rows cannot have {size} bytes"):
                deletion_vector.range_of(stored(1, size, rows))

    @given(st.sets(st.integers(0, 2**63 - 1), max_size=40))
    def test_no_honest_size_is_refused(self, rows: set[int]) -> None:
        """Rows that are far apart take most, each a bitmap of its own."""
        data = roaring.encode(RowSet.of(rows))
        assert deletion_vector.range_of(stored(1, len(data), len(rows))) is not None

    def test_every_truncation_is_a_data_error(self) -> None:
        for rows in samples():
            file, [(offset, size)] = deletion_vector.store([rows])
            descriptor = deletion_vector.describe(SPEC_UUID, "", offset, size, len(rows))
            ends = range(len(file)) if len(file) < 2000 else [*range(200), *range(200, len(file), 97), len(file) - 1]
            for end in ends:
                with pytest.raises(DataError):
                    deletion_vector.decode_stored(descriptor, file[:end])

    def test_every_changed_byte_is_a_data_error(self) -> None:
        file, [(offset, size)] = deletion_vector.store([RowSet.of(SPEC_ROWS)])
        descriptor = deletion_vector.describe(SPEC_UUID, "", offset, size, 6)
        for at in range(len(file)):
            with pytest.raises(DataError):
                deletion_vector.decode_stored(descriptor, file[:at] + bytes([file[at] ^ 1]) + file[at + 1 :])


class TestFormats:
    @pytest.mark.parametrize("order", "<>")
    def test_native_format_is_decoded_in_either_byte_order(self, order: str) -> None:
        several = native([1], [], [2, 70_000], order=order)
        assert rows_of(roaring.decode(native(SPEC_ROWS, order=order), 6)) == set(SPEC_ROWS)
        assert rows_of(roaring.decode(several, 3)) == {1, 2**33 + 2, 2**33 + 70_000}
        assert rows_of(roaring.decode(native(order=order), 0)) == set()

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (native()[:5], "number of bitmaps"),
            (struct.pack(">II", roaring.NATIVE, 2**31), "claims 2147483648 bitmaps in 0 bytes"),
            (struct.pack(">III", roaring.NATIVE, 1, 9) + bytes(8), "bitmap of 9 bytes where 8 are left"),
            (struct.pack("<II", roaring.NATIVE, 2**31), "claims 2147483648 bitmaps in 0 bytes"),
            (struct.pack("<III", roaring.NATIVE, 1, 8) + bytes(4), "claims"),
            (struct.pack("<III", roaring.NATIVE, 1, 9) + bytes(8), "bitmap of 9 bytes where 8 are left"),
            (struct.pack("<III", roaring.NATIVE, 1, 7) + bytes(8), "bitmap of 7 bytes"),
            (struct.pack("<III", roaring.NATIVE, 1, 8) + bytes(8), "not a valid roaring bitmap"),
            (struct.pack("<II", roaring.NATIVE, 2) + native([1, 2])[8:] + bytes(3), "before its bitmap 1 of 2"),
        ],
    )
    def test_broken_native_format_is_refused(self, data: bytes, message: str) -> None:
        with pytest.raises(DataError, match=message):
            roaring.decode(data, 1)

    def test_sparse_buckets_of_spark_are_empty_bitmaps(self) -> None:
        data = struct.pack("<IQ", roaring.PORTABLE, 3)
        for key, rows in enumerate(([], [], [7])):
            data += struct.pack("<I", key) + BitMap(rows).serialize()
        assert rows_of(roaring.decode(data, 1)) == {2**33 + 7}

    def portable(self, *buckets: tuple[int, bytes], count: int | None = None) -> bytes:
        data = struct.pack("<IQ", roaring.PORTABLE, len(buckets) if count is None else count)
        return data + b"".join(struct.pack("<I", key) + bitmap for key, bitmap in buckets)

    def test_broken_buckets_of_the_portable_format_are_refused(self) -> None:
        one = BitMap([1]).serialize()
        for data in (
            self.portable((0, one), count=2),
            self.portable((0, one), count=2**63),
            self.portable((0, one), count=2**32 + 1),
            self.portable((1, one), (0, one)),
            self.portable((1, one), (1, one)),
            self.portable((2**31, one)),
            self.portable((2**32 - 1, one)),
            self.portable((0, b"")),
            self.portable((0, bytes(8))),
            self.portable()[:11],
            self.portable()[:4],
        ):
            with pytest.raises(DataError):
                roaring.decode(data, 1)

    @pytest.mark.parametrize(
        "bitmap",
        [
            # Cookie, containers, (key, cardinality - 1)..., offsets..., values: arrays that contradict themselves.
            struct.pack("<IIHHIHH", 12346, 1, 0, 1, 16, 9, 3),
            struct.pack("<IIHHIHH", 12346, 1, 0, 1, 16, 3, 3),
            struct.pack("<IIHHIH", 12346, 1, 0, 1, 16, 3),
            struct.pack("<II", 12346, 65_537),
            struct.pack("<II", 12346, 2**32 - 1),
            struct.pack("<IIHHHHIIHH", 12346, 2, 5, 0, 4, 0, 24, 26, 1, 1),
            struct.pack("<IIHHHHIIHH", 12346, 2, 5, 0, 5, 0, 24, 26, 1, 1),
            # Runs: one that leaves the container, two that overlap, none.
            struct.pack("<HHBHHHHH", 12347, 0, 1, 0, 1, 1, 65_535, 1),
            struct.pack("<HHBHHHHHHH", 12347, 0, 1, 0, 9, 2, 0, 5, 3, 5),
            struct.pack("<HHBHHH", 12347, 0, 1, 0, 0, 0),
            struct.pack("<HHBHHH", 12347, 0, 1, 0, 0, 65_535),
            # A bitset of fewer bits than it says.
            struct.pack("<IIHHI", 12346, 1, 0, 4999, 16) + b"\xff" * 8 + bytes(8184),
        ],
    )
    def test_bitmaps_that_contradict_themselves(self, bitmap: bytes) -> None:
        for cardinality in (1, 2, 5000):
            with pytest.raises(DataError):
                roaring.decode(self.portable((0, bitmap)), cardinality)

    def test_portable_is_what_the_library_reads(self) -> None:
        for rows in samples():
            data = roaring.encode(rows)
            assert data[:4] == bytes.fromhex("d1d33964")
            assert BitMap64.deserialize(data[4:]) == rows.bitmap

    def test_runs_are_written_as_runs(self) -> None:
        # The union of two sets of single rows has no runs of its own.
        rows = RowSet.of([*range(0, 50_000, 2)]).union(RowSet.of([*range(1, 50_000, 2), 90_000]))
        assert len(roaring.encode(rows)) < 64

    @pytest.mark.parametrize("seed", range(4))
    def test_mutations_never_crash(self, seed: int) -> None:
        chance = random.Random(seed)
        bases = [roaring.encode(rows) for rows in samples()]
        bases += [native(SPEC_ROWS, range(70_000), order=order) for order in "<>"] + [native([], [5])]
        for _ in range(3_000):
            data = bytearray(chance.choice(bases))
            for _ in range(chance.choice((1, 1, 2, 6))):
                # Mostly in the headers: that is where counts, sizes and kinds are.
                at = chance.randrange(4, min(len(data), chance.choice((40, 200, 10**6))))
                data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            if chance.random() < 0.2:
                del data[chance.randrange(len(data)) :]
            for cardinality in {1, 6, 100_000, mutated_cardinality(bytes(data))}:
                with contextlib.suppress(DataError):
                    rows = roaring.decode(bytes(data), cardinality)
                    assert len(rows) == cardinality
                    rows.mask(60_000, 10_000)
                    assert roaring.decode(roaring.encode(rows), cardinality) == rows

    @given(st.binary(max_size=200), st.sampled_from([roaring.PORTABLE, roaring.NATIVE]), st.sampled_from("<>"))
    def test_noise_is_a_data_error(self, noise: bytes, magic: int, order: str) -> None:
        with contextlib.suppress(DataError):
            roaring.decode(struct.pack(f"{order}I", magic) + noise, 1)


def mutated_cardinality(data: bytes) -> int:
    """The number of rows in a mutated vector if the library accepts it. With it as the cardinality, mutants pass the last check, too."""
    try:
        return len(BitMap64.deserialize(data[4:]))
    except (ValueError, IndexError):
        return 1


@pytest.mark.skipif(not GOLDEN.exists(), reason="golden tables are not here")
def test_vectors_of_real_tables() -> None:
    checked = {"i": 0, "u": 0}
    for entry in sorted(GOLDEN.rglob("_delta_log/*.json")):
        table = entry.parents[1]
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            fields = (action.get("add") or action.get("remove") or {}).get("deletionVector")
            if not fields:
                continue
            descriptor = DeletionVectorDescriptor(
                fields["storageType"],
                fields["pathOrInlineDv"],
                fields.get("offset"),
                fields["sizeInBytes"],
                fields["cardinality"],
            )
            path, wanted = deletion_vector.path_of(descriptor), deletion_vector.range_of(descriptor)
            if path is None or wanted is None:
                rows = deletion_vector.decode_inline(descriptor)
            elif (table / path).exists():
                start, length = wanted
                rows = deletion_vector.decode_stored(descriptor, (table / path).read_bytes()[start : start + length])
            else:
                continue
            assert len(rows) == fields["cardinality"]
            checked[descriptor.storage_type] += 1
    assert checked["i"] >= 6
    assert checked["u"] >= 20


@given(st.binary(max_size=120), st.none() | st.integers(-2, 60), st.integers(-2, 80), st.text(max_size=25))
def test_nothing_but_errors_of_ours(blob: bytes, offset: int | None, size: int, text: str) -> None:
    for kind in ("u", "p", "i"):
        descriptor = DeletionVectorDescriptor(kind, text, offset, size, 1)
        for step in (
            deletion_vector.path_of,
            deletion_vector.range_of,
            deletion_vector.decode_inline,
            lambda descriptor: deletion_vector.decode_stored(descriptor, blob),
        ):
            with contextlib.suppress(CdfdError):
                step(descriptor)
