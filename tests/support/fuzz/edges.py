"""Cases that mutations seldom reach: arguments of the public functions, checkpoints only, files that expand."""

import asyncio
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import PurePosixPath
from random import Random
from typing import Any

import pyarrow as pa

import cdfd
from cdfd.log.log import DeltaLog
from tests.support.fuzz import lakes, mutate, stores, tables
from tests.support.fuzz.cases import Case, Target, guarded
from tests.support.fuzz.reading import Enough, base, lines_of
from tests.support.fuzz.tables import LOG

# --- arguments ---

STARTS: tuple[Any, ...] = (
    *(
        0,
        3,
        -1,
        -2,
        -99,
        99,
        10**18,
        2**63,
        10**30,
        -(10**30),
        "earliest",
        "latest",
        "now",
        "-1",
        "7",
        " 3 ",
        "1700000003000",
    ),
    *(
        "2023-11-14",
        "2023-11-14T22:13:23Z",
        "2023-11-14 22:13:23.5+14:00",
        "0001-01-01",
        "9999-12-31T23:59:59.999999-23:59",
    ),
    *(
        "1 hour ago",
        "99999999999 weeks ago",
        "-1 days ago",
        "1e9 hours ago",
        "0 seconds ago",
        "1 fortnight ago",
        "٣",
        "1_000",
    ),
    *("date:min", "date:max", "moment:min", "moment:max", "moment:aware-min", "moment:aware-max"),
)

TIMES = (0, -1, -(10**14), 10**13, 253_402_300_800_000, 10**16)
MOMENTS = {
    "date:min": date.min,
    "date:max": date.max,
    "moment:min": datetime(1, 1, 1, tzinfo=UTC).replace(tzinfo=None),
    "moment:max": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC).replace(tzinfo=None),
    "moment:aware-min": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=23))),
    "moment:aware-max": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone(-timedelta(hours=23))),
}


def value_of(text: Any) -> Any:
    """The argument that a case's JSON stands for."""
    if not isinstance(text, str):
        return text
    return MOMENTS.get(text, text)


def check_arguments(case: Case) -> str:
    """Any versions, times, columns and places give rows or an error of cdfd."""
    args = case.args
    start, end, version = (value_of(args[name]) for name in ("start", "end", "version"))
    with stores.in_memory(case) as memory:
        uri = args["uri"] or memory
        place = PurePosixPath(uri) if args["as_path"] and "\0" not in uri else uri

        def changes() -> str:
            options = {"columns": args["columns"], "allowed_roots": args["roots"], "changes": args["changes"]}
            lines_of(cdfd.changes(place, start, end, **options))
            return "rows"

        outcome = guarded(changes)
        guarded(lambda: f"{len(lines_of(cdfd.snapshot(place, version, columns=args['columns'])))}")
    return outcome


def _make_arguments(random: Random) -> Case:
    _, files = base(random, "written", "partitioned", "mapped-name", "single-True")

    def start() -> Any:
        first = random.choice(STARTS)
        return mutate.text(random, first) if isinstance(first, str) and random.random() < 0.3 else first

    places = (
        "",
        "/nowhere",
        "nowhere",
        "file:",
        "file://host/x",
        "file:///%zz",
        "fuzz://other",
        "x://y",
        "\0",
        "\ud800",
        "a" * 5000,
        "/dev/null",
    )
    args = {
        "uri": random.choice(places) if random.random() < 0.2 else None,
        "as_path": random.random() < 0.1,
        "start": start(),
        "end": random.choice((None, start())),
        "version": start(),
        "columns": random.choice(
            (None, None, ["id"], "id", [], ["id", "ID"], [""], ["\ud800"], ["x" * 9000], ["\x1b[0m"])
        ),
        "roots": random.choice(([], [], ["/"], [""], ["\0"], ["s3://b"], ["file://h/x"], ["%"])),
        "changes": random.choice(("auto", "auto", "cdf", "files")),
        "times": {path: random.choice(TIMES) for path in random.sample(sorted(files), 2)}
        if random.random() < 0.3
        else {},
        "remote": random.random() < 0.3,
    }
    if random.random() < 0.3:
        files = tables.mutated(random, files)
    return Case("arguments", files, args)


# --- checkpoints ---


def check_checkpoint(case: Case) -> str:
    """The state of a table whose checkpoint is damaged, or says something odd."""

    async def read() -> str:
        log = DeltaLog(stores.Stored(case.files, case.args))
        async with asyncio.timeout(20):
            state = await log.snapshot(None, with_stats=case.args["stats"], with_tombstones=True, with_counts=True)
        return f"read {len([*state.live()]) > 0}"

    return guarded(lambda: asyncio.run(read()), stores.URI)


def _make_checkpoint(random: Random) -> Case:
    names = [f"{kind}-{hint}" for kind in ("single", "parts", "v2-json", "v2-parquet") for hint in (True, False)]
    _, files = base(random, *names)
    files = {path: data for path, data in files.items() if path.startswith(LOG)}
    files = tables.mutated(random, files, tables.columnar, tables.columnar, tables.columnar, tables.raw, tables.names)
    return Case("checkpoint", files, {"stats": random.random() < 0.5, "remote": random.random() < 0.3})


# --- files that expand ---


def check_bomb(case: Case) -> str:
    """A small file of many long values: read in batches that are bounded."""
    args = case.args
    texts = pa.array([b"x" * args["length"], b"y" * args["length"]])
    column: Any = pa.DictionaryArray.from_arrays(pa.array([n % 2 for n in range(args["rows"])], pa.int32()), texts)
    kind: pa.DataType = pa.binary()
    if args["nested"]:
        column = pa.array([[1] * args["length"]] * min(args["rows"], 40), pa.list_(pa.int64()))
        kind = column.type
    data = lakes.parquet(
        pa.table({"v": column}), compression=args["codec"], store_schema=False, row_group_size=args["group"]
    )
    files = {
        "a.parquet": data,
        lakes.commit(0): lakes.entry(
            lakes.protocol(), lakes.metadata(pa.schema({"v": kind})), lakes.file("add", "a.parquet", data)
        ),
    }
    with stores.in_memory(Case("", files)) as uri:
        try:
            return guarded(lambda: f"rows {_largest(cdfd.changes(uri))}"[:4], uri)
        except Enough:
            return "enough"


def _largest(reader: Any) -> int:
    total = largest = 0
    for batch in reader:
        largest = max(largest, batch.nbytes)
        total += batch.nbytes
        if total > 1 << 29:
            raise Enough
    return largest


def _make_bomb(random: Random) -> Case:
    length = random.choice((1, 1 << 10, 1 << 16, 1 << 20, 8 << 20))
    rows = random.choice((3, 300, 20_000)) if length < 1 << 16 else random.choice((3, 600))
    codec = random.choice(("snappy", "zstd", "brotli", "none"))
    return Case(
        "bomb",
        {},
        {
            "length": length,
            "rows": rows,
            "codec": codec,
            "group": random.choice((7, 1 << 20)),
            "nested": length <= 1 << 16 and random.random() < 0.2,
        },
    )


TARGETS = (
    Target("arguments", _make_arguments, check_arguments, 4),
    Target("checkpoint", _make_checkpoint, check_checkpoint, 4),
    Target("bomb", _make_bomb, check_bomb, 0.1),
)
