"""Tables in a folder, tables that are followed, and the command line."""

import asyncio
import contextlib
import io
import json
import sys
from contextlib import aclosing
from random import Random
from typing import Any

import cdfd
from cdfd import cli
from cdfd.cli.parameters import GlobalOptions
from cdfd.errors import CdfdError
from tests.support.fuzz import mutate, stores, tables
from tests.support.fuzz.cases import Case, Target, Violation, check_text, guarded
from tests.support.fuzz.lakes import Files, commit
from tests.support.fuzz.reading import Enough, base, lines_of
from tests.support.fuzz.tables import LOG

# --- a folder ---


def _make_local(random: Random) -> Case:
    _, files = base(random, "written", "hinted", "partitioned", "mapped-name", "v2-json-True")
    case = Case("local", files, {})
    if random.random() < 0.3:
        case.files = tables.mutated(random, files)
        return case
    targets = (
        "{outside}/canary.parquet",
        "{outside}/00000000000000000001.json",
        "{outside}",
        "/dev/zero",
        "/dev/full",
        "/proc/self/mem",
    )
    for _ in range(mutate.times(random)):
        path = random.choice([*sorted(files), LOG, f"{LOG}_sidecars", "_change_data", commit(3)])
        kind = random.randrange(6)
        if kind <= 1:
            target = random.choice((*targets, "{root}/" + path, "nowhere", "../outside/canary.parquet"))
            case.args.setdefault("links", {})[path] = target
        elif kind == 2:
            case.args.setdefault("pipes", []).append(path)
        elif kind == 3:
            case.args.setdefault("folders", []).append(path)
        elif kind == 4:
            case.args.setdefault("sparse", {})[path] = random.choice((1 << 20, 1 << 31, 10 << 40))
        else:
            _redirected(random, case.files)
    return case


def _redirected(random: Random, files: Files) -> None:
    """A path in the log that leads elsewhere."""
    path = random.choice([p for p in sorted(files) if p.endswith(".json")])
    elsewhere = (
        "../outside/canary.parquet",
        "%2e%2e/outside/canary.parquet",
        "x/../../outside/canary.parquet",
        "/../outside/canary.parquet",
        "file:../outside/canary.parquet",
        "file:///dev/zero",
        "/proc/self/environ",
        "./../outside//canary.parquet",
    )
    lines = []
    for line in files[path].splitlines():
        action = json.loads(line)
        for kind in ("add", "remove", "cdc", "sidecar"):
            if kind in action:
                action[kind]["path"] = random.choice(elsewhere)
        lines.append(mutate.dumps(action))
    files[path] = b"\n".join(lines) + b"\n"


def check_local(case: Case) -> str:
    """Nothing outside is read, nothing is written; where there are only files, it is as in memory."""
    with stores.on_disk(case) as root:
        try:
            rows: list[bytes] = []

            def read() -> str:
                rows[:] = lines_of(cdfd.changes(root, "earliest"))
                rows.extend(lines_of(cdfd.snapshot(root)))
                return "rows"

            try:
                outcome = guarded(read, root)
            except CdfdError as error:
                check_text(str(error))
                raise
        except Enough:
            return "enough"
        if any(stores.CANARY.encode() in line for line in rows):
            raise Violation("read outside the table", repr(rows)[:500])
    if not case.args:
        with stores.in_memory(case) as uri:
            other = guarded(
                lambda: (
                    (lines_of(cdfd.changes(uri, "earliest")) + lines_of(cdfd.snapshot(uri)) == rows and "rows")
                    or "other rows"
                ),
                uri,
            )
        if other != outcome:
            raise Violation("local differs from memory", f"{outcome}, in memory {other}")
    return outcome


# --- following, commands ---


def _make_follow(random: Random) -> Case:
    _, files = base(random)
    return Case("follow", tables.mutated(random, files), {"start": random.choice((0, 1, 3, "earliest", "latest"))})


def check_follow(case: Case) -> str:
    async def follow(uri: str) -> str:
        count = 0
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(0.05),
                aclosing(cdfd.follow(uri, case.args["start"], poll_interval=0.001)) as batches,
            ):
                async for batch in batches:
                    batch.validate(full=True)
                    count += 1
        return "rows" if count else "waits"

    with stores.in_memory(case) as uri:
        return guarded(lambda: asyncio.run(follow(uri)), uri)


ARGUMENTS = (
    *(
        "--from",
        "--until",
        "now",
        "latest",
        "earliest",
        "0",
        "3",
        "99",
        "-1",
        "2020-01-01",
        "--snapshot",
        "--columns",
        "id",
    ),
    *(
        "--format",
        "debezium",
        "flat",
        "--changes",
        "cdf",
        "files",
        "--json",
        "--version",
        "2",
        "",
        "é",
        "\udcff",
        "--debug",
    ),
    *(
        "--log-format",
        "json",
        "--log-level",
        "debug",
        "--help",
        "-o",
        "/dev/null",
        "--allowed-root",
        "/",
        "x\ny",
        "\x1b[31m",
    ),
)


def _make_command(random: Random) -> Case:
    _, files = base(random, "written", "hinted", "typed", "v2-json-True")
    if random.random() < 0.6:
        files = tables.mutated(random, files)
    if random.random() < 0.5:
        args = ["tail", "TABLE", "--from", random.choice(("earliest", "0", "2")), "--until", "now"]
    else:
        args = ["inspect", "TABLE"]
    for _ in range(random.choice((0, 0, 1, 2))):
        args.insert(random.randrange(len(args) + 1), random.choice((*ARGUMENTS, mutate.text(random, "earliest"))))
    if args[:1] == ["tail"] and "--until" not in args:
        args += ["--until", "now"]
    return Case("command", files, {"argv": [arg.replace("\0", "") for arg in args]})


def check_command(case: Case) -> str:
    """The exit code is 0, 1, 2, 3 or 130. An error is one line without a traceback."""
    with stores.in_memory(case) as uri:
        argv = [uri if arg == "TABLE" else arg for arg in case.args["argv"]]
        if any(arg in ("demo", "run", "backfill") for arg in argv) or ("tail" in argv and "--until" not in argv):
            return "not tried"
        code, err = run_command(argv)
    if code not in (0, 1, 2, 3, 130):
        raise Violation("exit code", f"{code}: {err[:500]}")
    said = [line for line in err.splitlines() if line.startswith("cdfd: ")]
    for line in said:
        check_text(line)
    if "--debug" not in argv and ("Traceback" in err or (code == 1 and len(said) != 1)):
        raise Violation("what a command says", err[:1000])
    return f"exit {code}"


def run_command(argv: list[str]) -> tuple[int, str]:
    """The command in this process: its exit code and its standard error."""
    before = sys.argv, sys.stdout, sys.stderr
    sys.argv = ["cdfd", *argv]
    sys.stdout = io.TextIOWrapper(io.BytesIO(), "utf-8")
    sys.stderr = errors = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    code: Any = 0
    GlobalOptions.debug = False
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.argv, sys.stdout, sys.stderr = before
    errors.flush()
    return code, errors.buffer.getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined]


TARGETS = (
    Target("local", _make_local, check_local, 1.5),
    Target("follow", _make_follow, check_follow, 0.5),
    Target("command", _make_command, check_command, 2),
)
