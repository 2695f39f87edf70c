"""Decoders by themselves: bytes, texts and values that come from a log, a file or a store."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from random import Random

import pyarrow as pa
from fuzz import lakes, mutate, thrift
from fuzz.cases import Case, Target, Violation, guarded
from fuzz.lakes import Files
from fuzz.reading import bases
from fuzz.tables import PROPERTIES, is_json

from cdfd.changes import variant
from cdfd.delta import commit as commits
from cdfd.delta import (
    deletion_vector,
    header,
    last_checkpoint,
    paths,
    roaring,
    schema_string,
    snapshot,
    statistics,
    values,
    z85,
)
from cdfd.delta.actions import DeletionVectorDescriptor, Metadata
from cdfd.delta.datatypes import DataType, Decimal, Primitive
from cdfd.delta.schema import TableSchema
from cdfd.storage import parquet_layout

_pools: dict[str, list[bytes]] = {}


def pool(name: str, wanted: Callable[[str, Files], Sequence[bytes]]) -> list[bytes]:
    """Pieces of the tables that cases begin with."""
    if name not in _pools:
        _pools[name] = sorted({each for files in bases().values() for path in files for each in wanted(path, files)})
    return _pools[name]


def entries() -> list[bytes]:
    return pool("entries", lambda path, files: [files[path]] if is_json(path) and len(files[path]) < 20_000 else [])


def fields(*names: str) -> list[bytes]:
    """What is at that place of an action, wherever it is in a log."""

    def found(path: str, files: Files) -> list[bytes]:
        values = []
        for line in files[path].splitlines() if is_json(path) else ():
            each = json.loads(line)
            for name in names:
                each = each.get(name) if isinstance(each, dict) else None
            if each is not None:
                values.append(each.encode() if isinstance(each, str) else mutate.dumps(each))
        return values

    return pool("/".join(names), found)


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
    found = DeletionVectorDescriptor(args["type"], args["text"], args["offset"], args["size"], args["count"])

    def decode() -> str:
        path, wanted = deletion_vector.path_of(found), deletion_vector.range_of(found)
        if path is None or wanted is None:
            rows = deletion_vector.decode_inline(found)
        else:
            rows = deletion_vector.decode_stored(found, blob[wanted[0] : sum(wanted)])
        again = roaring.decode(roaring.encode(rows), len(rows))
        if again != rows or len(rows) != found.cardinality:
            raise Violation("written otherwise", f"{len(rows)} rows")
        rows.mask(0, 100)
        rows.positions(max((rows.max() or 0) - 50, 0), 100)
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
            count = len(roaring._portable(bits[4:])) if random.random() < 0.7 else random.choice((0, 1, 5, -1, 2**63))
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


def check_schema(case: Case) -> str:
    """A schema string, with partition columns and a mapping."""

    def parse() -> str:
        metadata = Metadata("id", case.args["schema"], tuple(case.args["partitions"]), case.args["configuration"])
        found = TableSchema.of(metadata)
        for child in found.struct:
            found.physical_name(child)
        again = schema_string.parse(schema_string.serialize(found.struct))
        if again != found.struct:
            raise Violation("written otherwise", f"{again} {found.struct}"[:500])
        snapshot.retention_ms(metadata)
        return "value"

    return guarded(parse)


def _make_schema(random: Random) -> Case:
    text = random.choice(fields("metaData", "schemaString")).decode()
    if random.random() < 0.8:
        for _ in range(mutate.times(random)):
            text = mutate.document(random, text.encode()).decode(errors="replace")
    else:
        text = mutate.text(random, text)
    configuration = (
        {"delta.columnMapping.mode": random.choice(("none", "name", "id", "x"))} if random.random() < 0.5 else {}
    )
    configuration |= {random.choice(PROPERTIES): random.choice(mutate.TEXTS) for _ in range(random.randrange(3))}
    partitions = random.choice(([], [], ["id"], ["ID"], ["s", "d"], ["nope"], ["id", "Id"], [""]))
    return Case("schema", {}, {"schema": text, "partitions": partitions, "configuration": configuration})


KINDS: dict[str, DataType] = {
    **{
        str(n): Primitive(n)
        for n in ("string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary")
    },  # type: ignore[arg-type]
    **{str(n): Primitive(n) for n in ("date", "timestamp", "timestamp_ntz")},  # type: ignore[arg-type]
    "decimal(5,2)": Decimal(5, 2),
    "decimal(38,38)": Decimal(38, 38),
}
SEEDS = (
    *("1", "-7", "1.5", "1e3", "NaN", "-Infinity", "true", "FALSE", "abc", "", "2020-02-29", "2020-01-01 00:00:00"),
    *(
        "2020-01-01T00:00:00.123456Z",
        "1969-12-31 23:59:59.999999999+14:00",
        "9999-12-31",
        "-290308-12-21 19:59:05.224192",
    ),
    *(
        "123456789012345678901234567890.12",
        "\\u00ff",
        "é",
        "0x1p3",
        "1_000",
        " 1 ",
        "+1",
        "1e400",
        "1E-400",
        "infinity",
    ),
)


def check_value(case: Case) -> str:
    def parse() -> str:
        kind = KINDS[case.args["kind"]]
        found = values.parse(case.args["text"], kind, "c")
        found.validate(full=True)
        text = values.serialize(found)
        again = values.parse(text, kind, "c")
        if text is not None and not again.equals(found) and "nan" not in str(found).lower():
            raise Violation("written otherwise", f"{text!r:.300} {again!r:.300} {found!r:.300}")
        return "value"

    return guarded(parse)


def _make_value(random: Random) -> Case:
    text = random.choice(SEEDS)
    if random.random() < 0.9:
        text = mutate.repeated(random, text, mutate.text)
    return Case("value", {}, {"kind": random.choice(sorted(KINDS)), "text": text})


_typed = TableSchema(
    schema_string.parse(
        '{"type":"struct","fields":['
        + ",".join(
            f'{{"name":"{n}","type":"{k}","nullable":true,"metadata":{{}}}}'
            for n, k in (
                ("id", "long"),
                ("s", "string"),
                ("d", "date"),
                ("t", "timestamp"),
                ("x", "decimal(38,10)"),
                ("f", "double"),
                ("b", "boolean"),
            )
        )
        + "]}"
    )
)


def check_statistics(case: Case) -> str:
    """Counts of many files at once are those of each by itself; bounds are values or nothing."""
    texts: list[str | None] = case.args["stats"]
    utf8 = [None if t is None else t.encode("utf-8", "replace").decode() for t in texts]
    together = statistics.record_counts(pa.array(utf8, pa.large_string())).to_pylist()
    single = [statistics.record_counts(pa.array([text], pa.string()))[0].as_py() for text in utf8]
    if together != single:
        raise Violation("together otherwise", f"{together}, not {single}")
    statistics.counts_only(pa.array(utf8, pa.large_string())).validate(full=True)
    for text in texts:
        found = statistics.parse(text, _typed)
        for name in (*_typed.names, "nope"):
            found.null_count((name,))
            bounds = found.bounds((name,))
            for bound in (bounds.min, bounds.max):
                if bound is not None:
                    bound.validate(full=True)
    return "value"


STATS = (
    '{"numRecords":10,"minValues":{"id":5,"s":"a","d":"2026-01-05","t":"2026-01-05T00:00:00.000Z","x":1.5,"f":0.5,"b":true},'
    '"maxValues":{"id":9,"s":"z","d":"2026-01-09","t":"2026-01-09T00:00:00.001Z","x":7.25,"f":2.5,"b":true},"nullCount":{"id":0,"s":10}}',
    '{"numRecords":3,"tightBounds":false}',
    "{}",
)


def _make_statistics(random: Random) -> Case:
    found: list[str | None] = []
    for _ in range(random.randrange(1, 4)):
        text = random.choice(STATS)
        if random.random() < 0.6:
            text = mutate.repeated(random, text.encode(), mutate.document).decode(errors="replace")
        elif random.random() < 0.7:
            text = mutate.repeated(random, text, mutate.text)
        found.append(None if random.random() < 0.1 else text)
    return Case("statistics", {}, {"stats": found})


def check_path(case: Case) -> str:
    """A path leads to a place below the root, or nowhere; of many paths at once each is what it is by itself."""
    text, root = case.args["path"], case.args["root"]
    paths.parse_name(text)

    def resolve() -> str:
        decoded = paths.decode(text)
        column = (
            paths.decode_column(pa.array([text, None, "a%20b", text])).to_pylist() if _is_utf8(text) else [decoded] * 4
        )
        if column != [decoded, None, "a b", decoded] and _is_utf8(text):
            raise Violation("together otherwise", f"{column!r:.500}")
        found = paths.resolve(root, decoded, case.args["roots"])
        parts = found.path.split("/")
        if (
            found.root not in (root, *case.args["roots"])
            or found.path.startswith("/")
            or {"..", ".", ""} & {*parts}
            or (not found.path.isprintable() and any(ord(c) < 32 for c in found.path))
        ):
            raise Violation("leads elsewhere", repr(found)[:500])
        return "value"

    return guarded(resolve)


def _is_utf8(text: str) -> bool:
    return not any(0xD800 <= ord(char) < 0xE000 for char in text)


def _make_path(random: Random) -> Case:
    seeds = (
        "part-0.parquet",
        "a=b/c%20d.parquet",
        "/data/t/x.parquet",
        "file:///data/t/x",
        "s3://b/t/x",
        "s3a://b/t/%2e%2e/x",
        "_change_data/x",
        "00000000000000000001.json",
        "00000000000000000001.checkpoint.0000000001.0000000002.parquet",
    )
    text = mutate.repeated(
        random, random.choice((*seeds, *(p.decode() for p in fields("add", "path")[:30]))), mutate.text
    )
    root = random.choice(("/data/t", "file:///data/t", "s3://b/t", "t", "memory://x", "/"))
    return Case("path", {}, {"path": text, "root": root, "roots": random.choice(([], ["/data/clones", "s3://c/"]))})


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
    """Where columns are; `ValueError` for what is damaged."""
    data = case.files["footer"]
    try:
        return f"value {bool(parquet_layout.chunks(data))}"
    except ValueError:
        return "refused: ValueError"


def _make_footer(random: Random) -> Case:
    footers = pool("footers", lambda path, files: [files[path]] if path.endswith(".parquet") else [])
    data = random.choice(footers)
    if random.random() < 0.6:
        data = thrift.footer(random, data)
    (length,) = struct.unpack_from("<I", data, len(data) - 8)
    found = data[-8 - length : -8]
    return Case(
        "footer", {"footer": found if random.random() < 0.3 else mutate.repeated(random, found, mutate.content)}
    )


TARGETS = (
    Target("commit", _make_commit, check_commit, 220),
    Target("hint", _make_hint, check_hint, 60),
    Target("vector", _make_vector, check_vector, 120),
    Target("z85", _make_z85, check_z85, 30),
    Target("schema", _make_schema, check_schema, 100),
    Target("value", _make_value, check_value, 90),
    Target("statistics", _make_statistics, check_statistics, 25),
    Target("path", _make_path, check_path, 80),
    Target("variant", _make_variant, check_variant, 80),
    Target("footer", _make_footer, check_footer, 30),
)
