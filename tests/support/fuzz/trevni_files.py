"""Trevni files: those of the reference, if their folder exists, and cdfd's own with all types and codecs."""

from __future__ import annotations

import io
from pathlib import Path
from random import Random

import pyarrow as pa

import cdfd.trevni as trevni
from cdfd.cli.commands.trevni import physical_document
from cdfd.runtime import native
from cdfd.trevni.rows import Reader
from tests.support.fuzz import mutate
from tests.support.fuzz.cases import Case, Target, Violation, guarded, last_refusal
from tests.support.trevni import rows
from tests.support.trevni.memory import memory_source

GOLDEN = Path(__file__).parents[4] / "shared" / "golden" / "trevni"
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
    """Physical columns, and rows: by `cdfd_native`, if it is installed, and by plain code. Both give the same, or the same error."""
    data = case.files["file"]
    answers = []
    for built in {native.built, False}:
        before, native.built = native.built, built
        texts: list[bytes] = []
        try:
            outcome = guarded(lambda texts=texts: read(data, texts))
        finally:
            native.built = before
        answers.append((outcome, last_refusal[:] if outcome != "value" else texts))
    if answers[0] != answers[-1]:
        raise Violation("cdfd_native and plain code differ", f"{answers[0]!r:.300} and {answers[-1]!r:.300}")
    return answers[0][0]


def read(data: bytes, texts: list[bytes]) -> str:
    """Physical columns, which are put into `texts`; and rows: all of them, in batches, and some of them."""
    texts.extend(physical_document(Reader(memory_source(data))))
    table = trevni.read_table(pa.BufferReader(data), use_threads=False)
    table.validate(full=True)
    with trevni.TrevniFile(pa.BufferReader(data), use_threads=False) as file:
        start = table.num_rows // 2
        # A table without columns would have as many rows as a slice asks for.
        expected = table.slice(start, min(20, table.num_rows - start))
        some = pa.Table.from_batches(list(file.iter_batches(7, rows=(start, start + 20))), table.schema)
    if repr(some.to_pylist()) != repr(expected.to_pylist()):
        raise Violation("some rows differ", f"from {start} on")
    return "value"


def make(random: Random) -> Case:
    data = mutate.repeated(random, random.choice(files()), lambda r, d: mutate.content(r, d, files()))
    return Case("trevni", {"file": data})


TARGETS = (Target("trevni", make, check, 60),)
