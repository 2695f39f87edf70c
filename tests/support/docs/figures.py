"""The figures of `docs/performance.md`, from the results of the benchmarks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench import results

FROM_S3 = "change rows from S3 into Arrow"
COMMIT = "commit's appearance to its committed row at a reader (300 commits of one row; 30 of Spark's)"
SNAPSHOT = "planning a first snapshot of 1 M files that"
FEW_LARGE = "few large files (3.23 M rows)"
UPSERT = "`Upsert` against a written MERGE: 200,000 keys, repeats and late changes (950,000 rows)"

PARTS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "reading": (
        "measured",
        (
            ("change rows into Arrow (3.23 M rows)", "change rows into Arrow, 3.23 M rows"),
            (
                "change rows as JSON lines, process start included (3.23 M rows, 953 MB)",
                "the same as JSON lines, `cdfd tail -o FILE`, 953 MB, with the start of the process",
            ),
            ("open a table of 1 M live files and list them: time", "open a table of 1 M live files, and list them"),
            ("open a table of 1 M live files and list them: peak memory above imports", "its memory, above imports"),
            (
                "resume at a position to the first batch, 1 M live files, after imports",
                "resume at a position to the first batch, 1 M live files",
            ),
            ("one commit of one file applied: 1 M against 1 k live files", "apply one commit of one file"),
            (
                "commit file's appearance to row on standard output (300 commits of one file; 150 a process)",
                "commit to row on standard output, `cdfd tail`",
            ),
        ),
    ),
    "stores": (
        "from s3",
        (
            (f"{FROM_S3}: eight versions, near", "change rows into Arrow, a server on the same machine"),
            (f"{FROM_S3}: eight versions, 20 ms away", "the same, with each request held for 20 ms"),
            (f"{FROM_S3}: 200 small versions, near", "200 versions of 1,000 rows, a server on the same machine"),
            (f"{FROM_S3}: 200 small versions, 20 ms away", "the same, with each request held for 20 ms"),
        ),
    ),
    "kafka": (
        "delivered",
        (
            (
                "table to committed in Kafka, exactly once, from the start of the process (3.23 M rows of 287 bytes)",
                "table to committed rows, 3.23 M rows of 287 bytes, from the start of the process",
            ),
            (
                "the same without start-up: from the first row in the topic; Spark's second query of a session",
                "the same from the first row in the topic",
            ),
            (f"{COMMIT}: p50", "commit to committed row at a consumer, one row: p50"),
            ("the same: p90", "p90"),
            ("the same: p99", "p99"),
            (
                "catch-up over 10000 commits of one row each, from the first row in the topic",
                "catch-up over 10,000 commits of one row, from the first row in the topic",
            ),
            (
                "peak memory of `cdfd run` above a bare interpreter's, one commit of 5 M rows in 20 files",
                "memory of `cdfd run` above that of Python alone, one commit of 5 M rows in 20 files",
            ),
            (
                "processor time of `cdfd run` for a million rows, with its start, one commit of 5 M rows in 20 files",
                "its processor time for a million rows, with its start",
            ),
            ("CPU of `cdfd run` with 20 tables without commits, over 45 s", "`cdfd run` with 20 tables at rest"),
        ),
    ),
    "spark": (
        "on spark",
        (
            (f"batch read of changes, {FEW_LARGE}", "`cdfd.spark.changes`, few large files, 3.23 M rows"),
            (f"`select` of one column, {FEW_LARGE}", "the same, one column"),
            (f"filter on a key, {FEW_LARGE}", "the same, a filter on the key"),
            (f"count by change type, {FEW_LARGE}", "the same, a count by change type"),
            ("the same, 300 versions of small files (30,000 rows)", "300 versions of small files, 30,000 rows"),
            ("snapshot, few large files (1.76 M rows)", "`cdfd.spark.snapshot`, 1.76 M rows"),
            (
                "derived changes of a table without a feed, by row ids (40,000 rows)",
                "changes of a table without a feed, by row ids, 40,000 rows",
            ),
            (
                "stream to Kafka, exactly once against at least once (3.23 M rows)",
                "stream to Kafka, exactly once, [packed](spark-kafka.md#packed-rows)",
            ),
            (f"{UPSERT}, as exact as `Upsert`", "`apply_changes` to a copy: 200,000 keys, some twice and some late"),
            ("micro-batch at the tip of a table, p50, whole", "a micro-batch of one row at the tip of a table: p50"),
            (f"{SNAPSHOT} the driver lists: the driver's Python", "plan a first snapshot of 1 M files"),
            (
                f"{SNAPSHOT} executors list: the driver's Python",
                "the same if [executors list the files](spark-source.md#large-snapshots)",
            ),
        ),
    ),
}
"""By name of a part of the page: the section of the results, and its measurements with what the page calls them."""


def part(name: str) -> Iterator[str]:
    """The lines of a part.

    Raises:
        KeyError: the results have no measurement of such a name.
    """
    section_name, chosen = PARTS[name]
    section = results.read()[section_name]
    measured = {_plain(row[0]): section.row(row[0]) for row in section.rows}
    yield "| measured | cdfd | peer |\n|---|---|---|"
    for what, label in chosen:
        row = measured[what]
        yield f"| {label} | {row['cdfd']} | {row['peer']} |"
    machine = section.conditions.partition(" on ")[2].partition(", numpy")[0]
    yield f"\nMeasured on {section.date} at commit `{section.commit}`, on {machine}."


def _plain(what: str) -> str:
    """The name of a measurement, without what a run adds to it."""
    return re.sub(r" \(worst round [\d.]+×\)$", "", what)
