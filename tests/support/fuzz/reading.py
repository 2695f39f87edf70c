"""Reads of tables: by the public functions, by the log's reader, and by two ways whose results are compared."""

import asyncio
import contextlib
import json
from random import Random
from typing import Any

import cdfd
from cdfd.encode.json import LineEncoder
from cdfd.errors import Within
from cdfd.log.log import DeltaLog
from cdfd.log.start import start_version
from cdfd.runtime.clock import SystemClock
from cdfd.sinks.ledger.txn_log import TxnLog
from cdfd.storage.base import Storage
from tests.support.fuzz import cases, lakes, mutate, stores, tables
from tests.support.fuzz.cases import Case, Target, Violation, guarded
from tests.support.fuzz.lakes import Files, commit
from tests.support.fuzz.tables import LOG

ROWS, BYTES = 100_000, 1 << 30
"""Rows and their bytes after which enough is read."""
_bases: dict[str, Files] = {}
_expected: dict[str, tuple[list[bytes], list[bytes]]] = {}
UNVERSIONED = ("_commit_timestamp", "_change_ordinal")


def prepare() -> None:
    """Make the tables that cases begin with. Not in a process that forks afterwards: Arrow has threads then."""
    _bases.update(lakes.tables())
    _bases.update((name, files) for name, files in lakes.golden())


def bases() -> dict[str, Files]:
    if not _bases:
        prepare()
    return _bases


class Enough(Exception):
    pass


def lines_of(reader: Any) -> list[bytes]:
    """Rows as JSON lines, without times; each batch is valid."""
    encoder = LineEncoder()
    lines: list[bytes] = []
    count = size = 0
    for batch in reader:
        batch.validate(full=True)
        count += batch.num_rows
        size += batch.nbytes
        lines += encoder(batch.drop_columns(["_commit_timestamp"])).to_pybytes().splitlines()
        if count > ROWS or size > BYTES:
            raise Enough
    return lines


def expected(name: str) -> tuple[list[bytes], list[bytes]]:
    """The changes of a base, and its live rows."""
    if name not in _expected:
        with stores.in_memory(Case("", bases()[name])) as uri:
            _expected[name] = lines_of(cdfd.changes(uri, "earliest")), lines_of(cdfd.snapshot(uri))
    return _expected[name]


def base(random: Random, *names: str) -> tuple[str, Files]:
    known = bases()
    name = random.choice(names or sorted(known))
    return name, dict(known[name])


def versioned(lines: list[bytes]) -> list[tuple[int, bytes]]:
    return [(json.loads(line)["_commit_version"], line) for line in lines]


def compare(kind: str, actual: list[bytes], wanted: list[bytes]) -> None:
    if actual != wanted:
        pairs = zip([*actual, b"nothing"], [*wanted, b"nothing"], strict=False)
        first = next(((a, b) for a, b in pairs if a != b), (b"", b""))
        raise Violation(kind, f"{len(actual)} rows, not {len(wanted)}: {first[0]!r:.300} instead of {first[1]!r:.300}")


# --- changes and snapshots ---


def _make_read(random: Random) -> Case:
    _, files = base(random)
    files = tables.mutated(random, files)
    args: dict[str, Any] = {"start": random.randrange(6), "version": random.randrange(8)}
    if random.random() < 0.1 and files:
        args["sparse"] = {random.choice(sorted(files)): random.choice((10 << 20, 100 << 20, 10 << 40))}
    args["remote"] = random.random() < 0.3
    if random.random() < 0.1:
        args["columns"] = [random.choice(("id", "ID", "v", "nope", "", "\0", "_change_type"))]
    return Case("read", files, args)


def check_read(case: Case) -> str:
    """Changes from the beginning and from later on agree; snapshots end in rows or in an error."""
    with stores.in_memory(case) as uri:

        def read() -> str:
            columns = case.args.get("columns")
            lines = lines_of(cdfd.changes(uri, "earliest", columns=columns))
            if not any("checkpoint" in path or "compacted" in path for path in case.files) and lines:
                start = case.args.get("start", 0)
                later = lines_of(cdfd.changes(uri, start, columns=columns))
                compare("start differs", later, [line for at, line in versioned(lines) if at >= start])
            return "rows"

        try:
            outcome = guarded(read, uri)
            snapshot = guarded(lambda: f"rows {len(lines_of(cdfd.snapshot(uri)))}", uri)
            guarded(lambda: f"rows {len(lines_of(cdfd.snapshot(uri, case.args.get('version', 0))))}", uri)
        except Enough:
            return "enough"
        return outcome if outcome != "rows" else snapshot.split()[0].rstrip(":") if snapshot else outcome


def _make_parquet(random: Random) -> Case:
    _, files = base(random, "typed", "mapped-name", "mapped-id", "written", "partitioned")
    return Case("parquet", tables.mutated(random, files, tables.columnar))


def check_parquet(case: Case) -> str:
    with stores.in_memory(case) as uri:
        try:
            return guarded(lambda: (lines_of(cdfd.changes(uri, 0)) and "rows") or "no rows", uri)
        except Enough:
            return "enough"


# --- what must not change rows ---


HINTED = ("hinted", "written", "partitioned", "typed", "mapped-name")


def _make_hints(random: Random) -> Case:
    name, files = base(random, *HINTED)
    others = {p: d for f in bases().values() for p, d in f.items() if tables.is_hint(p) or p.endswith("00000.json")}
    for _ in range(mutate.times(random)):
        hints = [path for path in files if tables.is_hint(path)]
        kind = random.randrange(6)
        if kind <= 1 and hints:
            tables.line(random, files, tables.is_hint)
        elif kind == 2 and hints:
            path = random.choice(hints)
            files[path] = mutate.content(random, files[path])
        elif kind == 3:
            version = random.randrange(9)
            files[f"{LOG}{version:020d}.crc"] = _checksum(random, random.choice(sorted(others.values())))
        elif kind == 4 and hints:
            files[random.choice(hints)] = random.choice(sorted(others.values()))
        else:
            _neutral(random, files)
    return Case("hints", files, {"base": name, "start": random.randrange(1, 5), "remote": random.random() < 0.3})


def _checksum(random: Random, entry: bytes) -> bytes:
    """A well-formed checksum file, with protocol and metadata of some table."""
    document: dict[str, Any] = {}
    for line in entry.splitlines():
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            action = json.loads(line)
            document |= {"metadata": action["metaData"]} if "metaData" in action else {}
            document |= {"protocol": action["protocol"]} if "protocol" in action else {}
    if random.random() < 0.5:
        document = mutate.tree(random, document)
    return mutate.dumps(document)


def _neutral(random: Random, files: Files) -> None:
    """Change only parts that readers ignore: unknown files, actions and fields, statistics, and the order of keys."""
    kind = random.randrange(5)
    commits = [
        path for path in files if path.startswith(LOG) and len(path) == len(commit(0)) and path.endswith(".json")
    ]
    path = random.choice(commits)
    lines = [json.loads(line) for line in files[path].splitlines()]
    if kind == 0:
        files[LOG + random.choice((".x.json", "x.json", "1.json", "_x/1.json", "00000000000000000009.json.tmp"))] = b"x"
    elif kind == 1:
        lines.insert(random.randrange(len(lines) + 1), {"unknown" + str(random.randrange(9)): _plain(random)})
    elif kind == 2:
        for action in lines:
            for fields in action.values():
                if isinstance(fields, dict):
                    fields["unknown"] = _plain(random)
    elif kind == 3:
        for action in lines:
            if "add" in action:
                action["add"]["stats"] = random.choice(
                    ('{"numRecords":"x"}', "null", "", "[]", "{", '{"numRecords":1e99}', "\n")
                )
    else:
        lines = [{kind: _reversed(fields) for kind, fields in action.items()} for action in lines]
    files[path] = b"\n".join(map(mutate.dumps, lines)) + b"\n"


def _plain(random: Random) -> Any:
    """A value that every reader of JSON takes."""
    return random.choice(
        (None, True, 0, -1.5, 2**53, "a", "", [], {}, [1, {"a": [None]}], {"path": "x", "add": {"path": 1}})
    )


def _reversed(fields: Any) -> Any:
    return dict(reversed(fields.items())) if isinstance(fields, dict) else fields


def check_hints(case: Case) -> str:
    """The rows are those of the table without the mutation. Compactions that are damaged may be refused."""
    wanted, live = expected(case.args["base"])
    with stores.in_memory(case) as uri:

        def read() -> str:
            compare("hint changes rows", lines_of(cdfd.changes(uri, 0)), wanted)
            start = min(case.args["start"], versioned(wanted)[-1][0])
            later = [line for version, line in versioned(wanted) if version >= start]
            compare("hint changes rows", lines_of(cdfd.changes(uri, start)), later)
            compare("hint changes snapshot", lines_of(cdfd.snapshot(uri)), live)
            return "rows"

        outcome = guarded(read, uri)
        if outcome != "rows" and not any("compacted" in path for path in case.files):
            raise Violation("hint stops reading", cases.last_refusal[0])
        return outcome


# --- the log by itself ---


def _make_log(random: Random) -> Case:
    _, files = base(random)
    files = {path: data for path, data in tables.mutated(random, files).items() if path.startswith(LOG)}
    ask = random.choice(("snapshot", "snapshot", "header", "partial_header", "timestamp", "ledger", "entries"))
    return Case(
        "log",
        files,
        {
            "ask": ask,
            "version": random.choice((None, None, 0, 1, 3, 4, 5, 99)),
            "time": random.choice((0, 1002, 1_700_000_003_000)),
        },
    )


def check_log(case: Case) -> str:
    return guarded(lambda: asyncio.run(_asked(stores.Stored(case.files, {}), case.args)), stores.URI)


async def _asked(storage: Storage, args: dict[str, Any]) -> str:
    log, version = DeltaLog(storage), args["version"]
    async with asyncio.timeout(20):
        match args["ask"]:
            case "snapshot":
                state = await log.snapshot(version, with_stats=True, with_tombstones=True)
                with Within(stores.URI):  # as commands do with a snapshot, which knows no table
                    sum(add.size for add in state.live())
            case "header":
                await log.header(version)
            case "partial_header":
                await log.partial_header(version)
            case "timestamp":
                from datetime import UTC, datetime

                await start_version(log, datetime.fromtimestamp(args["time"] / 1000, UTC))
            case "ledger":
                await TxnLog(storage, SystemClock()).state()
            case "entries":
                for each in range(version or 0, 6):
                    await log.entry(each, with_stats=True)
    return "read"


TARGETS = (
    Target("read", _make_read, check_read, 6),
    Target("parquet", _make_parquet, check_parquet, 8),
    Target("hints", _make_hints, check_hints, 3),
    Target("log", _make_log, check_log, 40),
)
