"""Decoders of bytes by themselves: log entries, hints, deletion vectors, variants, footers."""

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from random import Random

import pyarrow as pa
from pyroaring import FrozenBitMap64

from cdfd.delta import commit as commits
from cdfd.delta import (
    deletion_vector,
    header,
    last_checkpoint,
    roaring,
    z85,
)
from cdfd.delta.actions import DeletionVectorDescriptor
from cdfd.errors import DataError
from cdfd.scan import variant
from cdfd.scan.parquet import reader as parquet_reader
from tests.support.fuzz import lakes, mutate, thrift
from tests.support.fuzz.cases import Case, Target, Violation, guarded
from tests.support.fuzz.lakes import Files
from tests.support.fuzz.reading import bases
from tests.support.fuzz.tables import is_json

_pools: dict[str, list[bytes]] = {}


def pool(name: str, wanted: Callable[[str, Files], Sequence[bytes]]) -> list[bytes]:
    """Pieces of the tables that cases begin with."""
    if name not in _pools:
        _pools[name] = sorted({each for files in bases().values() for path in files for each in wanted(path, files)})
    return _pools[name]


def entries() -> list[bytes]:
    return pool("entries", lambda path, files: [files[path]] if is_json(path) and len(files[path]) < 20_000 else [])


def fields(*names: str) -> list[bytes]:
    """The values at this path of an action, in all log entries."""

    def values_of(path: str, files: Files) -> list[bytes]:
        values = []
        for line in files[path].splitlines() if is_json(path) else ():
            each = json.loads(line)
            for name in names:
                each = each.get(name) if isinstance(each, dict) else None
            if each is not None:
                values.append(each.encode() if isinstance(each, str) else mutate.dumps(each))
        return values

    return pool("/".join(names), values_of)


def check_commit(case: Case) -> str:
    """A log entry in one piece, in two, and its header only."""
    data, at = case.files["entry"], case.args["at"]

    def parse() -> str:
        whole = commits.parse(5, data, with_stats=True)
        header.scan(5, data)
        pieces = commits.parse(5, iter([data[:at], data[at:]]), with_stats=True)
        if repr(whole) != repr(pieces):
            raise Violation("pieces differ", f"{whole!r:.500} {pieces!r:.500}")
        return "value"

    return guarded(parse)


def _make_commit(random: Random) -> Case:
    data = random.choice(entries())
    lines = data.splitlines() or [b""]
    if random.random() < 0.7:
        for _ in range(mutate.times(random)):
            at = random.randrange(len(lines))
            lines[at] = mutate.document(random, lines[at])
        data = b"\n".join(lines)
    else:
        data = mutate.repeated(random, data, lambda r, d: mutate.content(r, d, entries()))
    return Case("commit", {"entry": data}, {"at": random.randrange(len(data) + 1)})


def check_hint(case: Case) -> str:
    data = case.files["hint"]

    def parse() -> str:
        hint = last_checkpoint.parse(data)
        again = last_checkpoint.parse(last_checkpoint.serialize(hint))
        if again.version != hint.version:
            raise Violation("written otherwise", f"{hint!r:.300} {again!r:.300}")
        return "value"

    return guarded(parse)


def _make_hint(random: Random) -> Case:
    hints = pool("hints", lambda path, files: [files[path]] if path.endswith((".crc", "_last_checkpoint")) else [])
    data = mutate.repeated(random, random.choice(hints), mutate.document, mutate.document, mutate.content)
    return Case("hint", {"hint": data})


def check_vector(case: Case) -> str:
    """A deletion vector in the log or in a file, as its descriptor says."""
    args, blob = case.args, case.files["vector"]
    descriptor = DeletionVectorDescriptor(args["type"], args["text"], args["offset"], args["size"], args["count"])

    def decode() -> str:
        path, wanted = deletion_vector.path_of(descriptor), deletion_vector.range_of(descriptor)
        if path is None or wanted is None:
            rows = deletion_vector.decode_inline(descriptor)
        else:
            rows = deletion_vector.decode_stored(descriptor, blob[wanted[0] : sum(wanted)])
        again = roaring.decode(roaring.encode(rows), len(rows))
        if again != rows or len(rows) != descriptor.cardinality:
            raise Violation("written otherwise", f"{len(rows)} rows")
        rows.mask(0, 100)
        return "value"

    return guarded(decode)


def _make_vector(random: Random) -> Case:
    data = random.choice(lakes_vectors())
    count = struct.unpack_from("<I", data, 12)[0] if random.random() < 0.1 and len(data) > 16 else None
    bits = data if random.random() < 0.2 else mutate.repeated(random, data, mutate.content)
    if random.random() < 0.3 and len(bits) > 16:  # as the reference implementation wrote them before
        bits = struct.pack("<II", roaring.NATIVE, 1) + struct.pack("<I", len(bits) - 16) + bits[16:]
    if count is None:
        try:
            count = (
                len(FrozenBitMap64.deserialize(bits[4:]))
                if random.random() < 0.7
                else random.choice((0, 1, 5, -1, 2**63))
            )
        except Exception:  # noqa: BLE001 - any number will do
            count = 5
    size: int = len(bits)
    framed = b"\x01" + struct.pack(">i", len(bits)) + bits + struct.pack(">I", zlib.crc32(bits))
    kind = random.choice(("u", "u", "i", "i", "p", "x"))
    text = (
        z85.encode(bits)
        if kind == "i"
        else random.choice(("ab^-aqEH.-t@S}K{vb[*k^", "x/ab^-aqEH.-t@S}K{vb[*k^", "/t/a%20b.bin"))
    )
    if random.random() < 0.2:
        text = mutate.text(random, text)
    if random.random() < 0.2:
        size = random.choice((0, -1, size - 1, size + 1, 2**31, 2**63 - 1, 2**70))
    if random.random() < 0.2:
        framed = mutate.content(random, framed)
    offset = random.choice((1, 1, 1, None, 0, 5, -1, 2**40))
    return Case(
        "vector", {"vector": framed}, {"type": kind, "text": text, "offset": offset, "size": size, "count": count}
    )


_vectors: list[bytes] = []


def lakes_vectors() -> list[bytes]:
    if not _vectors:
        _vectors.extend(lakes.vectors())
    return _vectors


def check_z85(case: Case) -> str:
    def decode() -> str:
        data = z85.decode(case.args["text"])
        if z85.decode(z85.encode(data)) != data + bytes(-len(data) % 4):
            raise Violation("written otherwise", repr(data))
        return "value"

    return guarded(decode)


def _make_z85(random: Random) -> Case:
    return Case(
        "z85", {}, {"text": mutate.repeated(random, z85.encode(random.randbytes(random.randrange(40))), mutate.text)}
    )


def check_variant(case: Case) -> str:
    def decode() -> str:
        cells = [case.files["metadata"], b"\x01\0\0"], [case.files["value"], b"\0"]
        array = pa.StructArray.from_arrays([pa.array(each, pa.binary()) for each in cells], ["metadata", "value"])
        for text in variant.to_json(array).to_pylist():
            json.loads(text)
        return "value"

    return guarded(decode)


_NAMES = b"\x01\x02\x00\x01\x03abc"
_VARIANTS = (
    b"\x0c\x05", b"\x14" + b"\1" * 8, b"\x0dabc", b"\x40\x03\0\0\0abc", b"\x02\x02\x00\x01\x00\x02\x04\x0c\x05\x0c\x06",
    b"\x03\x02\x00\x02\x04\x0c\x05\x0c\x06", b"\x20\x02\x39\x30\0\0", b"\x28\x0a" + b"\xff" * 16, b"\x2c\x01\x02\0\0", b"\x30" + b"\x7f" * 8,
    b"\x38\0\0\xc0\x7f", b"\x1c" + b"\0" * 6 + b"\xf0\x7f", b"\x4c" + b"\1" * 8, b"\x50" + bytes(range(16)), b"\x3c\x02\0\0\0\xff\0",
)  # fmt: skip


def _make_variant(random: Random) -> Case:
    value = random.choice(_VARIANTS)
    for _ in range(random.choice((0, 0, 1, 3, 200))):  # an array in an array
        value = b"\x03\x01\x00" + bytes([min(len(value), 255)]) + value
    names = mutate.repeated(random, _NAMES, mutate.content) if random.random() < 0.4 else _NAMES
    return Case("variant", {"metadata": names, "value": mutate.repeated(random, value, mutate.content)})


def check_footer(case: Case) -> str:
    """Where columns are; the errors of `open_parquet` for what is damaged."""
    data = case.files["footer"]
    try:
        with parquet_reader.open_parquet(
            pa.BufferReader(b"PAR1" + data + len(data).to_bytes(4, "little") + b"PAR1")
        ) as file:
            return f"value {file.metadata.num_rows}"
    except (pa.ArrowException, ValueError, DataError) as error:
        return f"refused: {type(error).__name__}"


def _make_footer(random: Random) -> Case:
    footers = pool("footers", lambda path, files: [files[path]] if path.endswith(".parquet") else [])
    data = random.choice(footers)
    if random.random() < 0.6:
        data = thrift.footer(random, data)
    (length,) = struct.unpack_from("<I", data, len(data) - 8)
    footer = data[-8 - length : -8]
    return Case(
        "footer", {"footer": footer if random.random() < 0.3 else mutate.repeated(random, footer, mutate.content)}
    )


TARGETS = (
    Target("commit", _make_commit, check_commit, 250),
    Target("hint", _make_hint, check_hint, 60),
    Target("vector", _make_vector, check_vector, 130),
    Target("z85", _make_z85, check_z85, 30),
    Target("variant", _make_variant, check_variant, 90),
    Target("footer", _make_footer, check_footer, 30),
)
