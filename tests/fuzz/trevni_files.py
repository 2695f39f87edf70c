"""Trevni files: those of the reference, where their folder is there, and files of ours with all types and codecs."""

from __future__ import annotations

import io
from pathlib import Path
from random import Random

import pyarrow as pa
from fuzz import mutate
from fuzz.cases import Case, Target, Violation, guarded

import cdfd.trevni as trevni
from cdfd.trevni import physical
from cdfd.trevni.rows import Reader
from cdfd.trevni.source import Source
from tests.trevni import rows

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "trevni"
_LARGEST = 100_000

_files: list[bytes] = []


def files() -> list[bytes]:
    if not _files:
        golden = sorted(GOLDEN.glob("*.trv"))
        _files.extend(path.read_bytes() for path in golden if path.stat().st_size < _LARGEST)
        for codec in ("null", "snappy", "deflate", "bzip2"):
            for checksum in ("null", "crc32"):
                file = io.BytesIO()
                table = rows.table(30, seed=len(_files))
                first = ["long", "double"]
                trevni.write_table(table, file, codec=codec, checksum=checksum, block_bytes=64, first_values=first)
                _files.append(file.getvalue())
    return _files


def check(case: Case) -> str:
    """Physical columns, and rows: all of them, in batches, and some of them."""
    data = case.files["file"]

    def read() -> str:
        for _ in physical.document(Reader(Source.of(data))):
            pass
        found = trevni.read_table(pa.BufferReader(data), use_threads=False)
        found.validate(full=True)
        with trevni.TrevniFile(pa.BufferReader(data), use_threads=False) as file:
            start = found.num_rows // 2
            some = pa.Table.from_batches(list(file.iter_batches(7, rows=(start, start + 20))), found.schema)
        if repr(some.to_pylist()) != repr(found.slice(start, 20).to_pylist()):
            raise Violation("some rows differ", f"from {start} on")
        return "value"

    return guarded(read)


def make(random: Random) -> Case:
    data = mutate.repeated(random, random.choice(files()), lambda r, d: mutate.content(r, d, files()))
    return Case("trevni", {"file": data})


TARGETS = (Target("trevni", make, check, 60),)
