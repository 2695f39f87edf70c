"""Mutations of tables: of log entries and their order, checkpoints, data files, vectors, hints, names."""

import io
import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.delta import paths
from tests.support.checkpoint_layout import part_name, v2_name
from tests.support.fuzz import mutate, thrift
from tests.support.fuzz.lakes import Files, commit, parquet

LOG = f"{paths.LOG}/"
PROPERTIES = (
    *("delta.enableChangeDataFeed", "delta.columnMapping.mode", "delta.columnMapping.maxColumnId", "delta.appendOnly"),
    *("delta.enableInCommitTimestamps", "delta.inCommitTimestampEnablementVersion", "delta.checkpointPolicy"),
    *("delta.inCommitTimestampEnablementTimestamp", "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"),
    *("delta.enableDeletionVectors", "delta.enableRowTracking", "delta.enableTypeWidening", "delta.checkpointInterval"),
    *("delta.dataSkippingNumIndexedCols", "delta.minReaderVersion", "delta.setTransactionRetentionDuration"),
)
FEATURES = (
    *(
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "typeWidening",
        "variantType",
        "vacuumProtocolCheck",
    ),
    *("inCommitTimestamp", "catalogManaged", "identityColumns", "icebergCompatV2", "shredding", "", "\n"),
)
VERSIONS = (0, 1, 2, 3, 5, 10, 99, 2**31, 2**63 - 2, 2**63 - 1, 2**63, 10**20 - 1)


def is_json(path: str) -> bool:
    return path.endswith((".json", ".crc", "_last_checkpoint"))


def is_hint(path: str) -> bool:
    return path.endswith((".crc", "_last_checkpoint", ".compacted.json"))


def pick(random: Random, files: Files, wanted: Callable[[str], bool]) -> str | None:
    paths = [path for path in sorted(files) if wanted(path)]
    return random.choice(paths) if paths else None


def line(random: Random, files: Files, wanted: Callable[[str], bool] = is_json) -> None:
    """A value in a line of the log."""
    path = pick(random, files, wanted)
    if path is None:
        return
    lines = files[path].splitlines() or [b""]
    at = random.randrange(len(lines))
    lines[at] = mutate.document(random, lines[at])
    files[path] = b"\n".join(lines) + b"\n"


def order(random: Random, files: Files) -> None:
    """Lines that are missing, there twice, elsewhere, or of another entry."""
    path = pick(random, files, lambda p: p.endswith(".json"))
    if path is None:
        return
    lines = files[path].splitlines()
    other = pick(random, files, lambda p: p.endswith(".json")) or path
    kind = random.randrange(5)
    if kind == 0 and lines:
        lines.pop(random.randrange(len(lines)))
    elif kind == 1 and lines:
        lines.append(random.choice(lines))
    elif kind == 2:
        random.shuffle(lines)
    elif kind == 3:
        lines[random.randrange(len(lines) + 1) :] = files[other].splitlines()
    else:
        lines.insert(random.randrange(len(lines) + 1), random.choice((b"", b"{}", b"[]", b"null", b"\0", b'{"x":{}}')))
    files[path] = b"\n".join(lines) + random.choice((b"\n", b"", b"\r\n", b"\n\n"))


def names(random: Random, files: Files) -> None:
    """Files that are missing, empty, there twice, exchanged, or of another version."""
    path = random.choice(sorted(files))
    kind = random.randrange(7)
    if kind == 0:
        del files[path]
    elif kind == 1:
        files[path] = b""
    elif kind == 2:
        other = random.choice(sorted(files))
        files[path], files[other] = files[other], files[path]
    elif kind == 3:
        files[commit(random.choice(VERSIONS))] = files[path]
    elif kind == 4:
        files[renamed(random)] = files[path]
    elif kind == 5 and path.startswith(LOG):
        files[LOG + f"{random.choice(VERSIONS):020d}"[:20] + path[len(LOG) + 20 :]] = files.pop(path)
    else:
        files[
            mutate.text(random, path).replace("\0", "").replace("..", "").strip("/").replace("//", "/")[:200] or "x"
        ] = files[path]


def renamed(random: Random) -> str:
    """A name that means something."""
    version, other = random.choice(VERSIONS), random.choice(VERSIONS)
    return LOG + random.choice(
        (
            paths.checkpoint_name(version),
            part_name(version, random.randrange(4), random.choice((1, 2, 3, 10**9))),
            v2_name(version, "00000000-0000-0000-0000-000000000007", random.choice(("json", "parquet"))),
            f"{version:020d}.{other:020d}.compacted.json",
            f"{version:020d}.crc",
            "_last_checkpoint",
            f"{version:020d}.json.tmp",
            f".{version:020d}.json.crc",
        )
    )


def setting(random: Random, files: Files) -> None:
    """A table property, a feature, a schema string."""
    path = pick(random, files, lambda p: p.endswith(".json") and b'"metaData"' in files[p])
    if path is None:
        return
    lines = files[path].splitlines()
    for at, text in enumerate(lines):
        try:
            action = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if not isinstance(action, dict):
            continue
        metadata, protocol = action.get("metaData"), action.get("protocol")
        if isinstance(metadata, dict):
            kind = random.randrange(3)
            if kind == 0:
                value = random.choice(
                    (*mutate.TEXTS, "true", "id", "name", "9" * 5000, 1, None, [], "interval 9e9 weeks")
                )
                metadata["configuration"] = {random.choice(PROPERTIES): value}
            elif kind == 1 and isinstance(metadata.get("schemaString"), str):
                schema = metadata["schemaString"].encode()
                metadata["schemaString"] = mutate.document(random, schema).decode(errors="replace")
            elif kind == 2:
                metadata["partitionColumns"] = random.choice(
                    (["id"], ["ID"], ["nope"], ["id", "id"], "id", None, [1], ["v", "id"])
                )
        elif isinstance(protocol, dict) and random.random() < 0.3:
            features = random.sample(FEATURES, random.randrange(4))
            protocol |= {
                "minReaderVersion": random.choice((1, 2, 3, 4, 2**40)),
                "minWriterVersion": random.choice((1, 4, 7, 8)),
            }
            protocol |= {"readerFeatures": features, "writerFeatures": features}
        lines[at] = mutate.dumps(action)
    files[path] = b"\n".join(lines) + b"\n"


def raw(random: Random, files: Files) -> None:
    """Bytes of any file."""
    path = random.choice(sorted(files))
    files[path] = mutate.content(random, files[path], [*files.values()])


def columnar(random: Random, files: Files) -> None:
    """Mutate a Parquet file: its footer, its pages, or its rows."""
    path = pick(random, files, lambda p: p.endswith(".parquet"))
    if path is None:
        return
    change = random.choice((thrift.footer, thrift.footer, thrift.page, thrift.page, rewritten, rewritten, tail))
    try:
        files[path] = change(random, files[path])
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        OverflowError,
        struct.error,
        RecursionError,
        UnicodeError,
        pa.ArrowException,
        OSError,
    ):
        # It was changed before, and cannot be taken apart any more.
        files[path] = mutate.content(random, files[path])


def tail(random: Random, data: bytes) -> bytes:
    """A Parquet file with another end: its footer's length, its magic number."""
    length = random.choice((0, 1, 8, len(data), len(data) + 1, 2**31 - 1, 2**32 - 1))
    return data[:-8] + struct.pack("<I", length) + random.choice((b"PAR1", b"PARE", b"par1", b"PAR1"))


def rewritten(random: Random, data: bytes) -> bytes:
    """A Parquet file with other values, columns, types or pages."""
    table = pq.read_table(io.BytesIO(data))
    kind = random.randrange(9)
    at = random.randrange(table.num_columns) if table.num_columns else 0
    name = table.column_names[at] if table.num_columns else ""
    if kind == 0:
        table = table.remove_column(at)
    elif kind == 1:
        names = [*table.column_names]
        names[at] = random.choice((name.upper(), "id", "_change_type", "", "a.b", *mutate.TEXTS[:20]))
        table = table.rename_columns(names)
    elif kind == 2:
        table = table.set_column(at, name, pa.nulls(table.num_rows, table.column(at).type))
    elif kind == 3:
        column = table.column(at).combine_chunks()
        made = odd(random, table.num_rows)
        table = table.set_column(at, name, inside(random, column, made) if random.random() < 0.6 else made)
    elif kind == 4:
        table = table.slice(0, random.randrange(table.num_rows + 1))
    elif kind == 5:
        table = pa.concat_tables([table] * random.choice((2, 5, 30)))
    elif kind == 6:
        table = table.append_column(random.choice((name, "new", "_change_type", "")), odd(random, table.num_rows))
    elif kind == 7:
        rows = table.to_pylist()
        for _ in range(mutate.times(random)):
            rows = mutate.tree(random, rows)
        table = pa.Table.from_pylist([row for row in rows if isinstance(row, dict)], table.schema)
    version: Any = random.choice(("1.0", "2.4", "2.6"))
    options = {"compression": random.choice(("none", "snappy", "zstd", "gzip", "brotli", "lz4")), "version": version}
    options |= {"use_dictionary": random.random() < 0.5, "data_page_version": random.choice(("1.0", "2.0"))}
    options |= {"data_page_size": random.choice((1, 100, 1 << 20)), "write_page_index": random.random() < 0.2}
    options |= {"row_group_size": random.choice((1, 3, 1 << 20)), "store_schema": random.random() < 0.5}
    encodings = (
        "PLAIN",
        "DELTA_BINARY_PACKED",
        "DELTA_BYTE_ARRAY",
        "DELTA_LENGTH_BYTE_ARRAY",
        "BYTE_STREAM_SPLIT",
        "RLE",
    )
    if not options["use_dictionary"] and random.random() < 0.4:
        try:
            return parquet(table, **options, column_encoding=random.choice(encodings))
        except (pa.ArrowException, OSError):
            pass  # no encoding of that type
    return parquet(table, **options)


def inside(random: Random, column: pa.Array, made: pa.Array) -> pa.Array:
    """A struct with another column among its children; anything else becomes that column."""
    if not pa.types.is_struct(column.type) or not column.type.num_fields:
        return made
    children, names = column.flatten(), [field.name for field in column.type]
    at = random.randrange(len(names))
    children[at] = inside(random, children[at], made) if len(made) == len(children[at]) else children[at]
    return pa.StructArray.from_arrays(children, names, mask=column.is_null())


def odd(random: Random, count: int) -> pa.Array:
    """A column of any type."""
    values: Any = random.choice(
        (
            pa.array([2**63 - 1] * count, pa.int64()),
            pa.array(["x" * 1000] * count),
            pa.array([b"\xff\xfe"] * count),
            pa.array([b"\xff\xfe"] * count, pa.binary(2)),
            pa.array([[1, None]] * count),
            pa.array([{"a": {"b": [1]}}] * count),
            pa.array([[("k", 1)]] * count, pa.map_(pa.string(), pa.int32())),
            pa.array([float("nan")] * count),
            pa.array([True] * count),
            pa.array([2**62] * count, pa.timestamp("us")),
            pa.array([-(2**62)] * count, pa.timestamp("ns", "UTC")),
            pa.array([2**31 - 1] * count, pa.date32()),
            pa.array([1] * count, pa.decimal128(38, 37)),
            pa.array([1] * count, pa.uint64()),
            pa.array([1] * count, pa.time64("us")),
            pa.array(["a"] * count).dictionary_encode(),
            pa.nulls(count),
        )
    )
    return values


ANY = (line, line, line, order, names, setting, raw, columnar)


def mutated(random: Random, files: Files, *mutators: Callable[[Random, Files], None]) -> Files:
    """Another table: one to three of these mutations."""
    made = dict(files)
    for _ in range(mutate.times(random)):
        if made:
            random.choice(mutators or ANY)(random, made)
    return made
