"""Targets that use tables other than by a plain read: versions in splits, writes to ledgers, `cdfd check` and `cdfd progress show`."""

import asyncio
import tempfile
from pathlib import Path
from random import Random

from cdfd.deliver.splits import measure, read_splits
from cdfd.log.table import Table
from cdfd.model.plan import ChangePlan
from cdfd.scan.execute import Execution
from cdfd.scan.splits import place_splits, plan_splits
from cdfd.sinks.ledger import table_ledger, txn_state
from cdfd.sinks.ledger.txn_log import TxnLog
from tests.support.fuzz import mutate, stores, tables
from tests.support.fuzz.cases import Case, Target, Violation, check_text, guarded
from tests.support.fuzz.commands import run_command
from tests.support.fuzz.reading import Enough, base, compare, lines_of
from tests.support.fuzz.tables import LOG
from tests.support.manual_time import ManualClock


def check_slices(case: Case) -> str:
    """A version that is read in splits gives the rows, with their numbers, that it gives as a whole."""
    with stores.in_memory(case) as uri:
        table = Table.open(uri)
        execution = Execution(table.files)

        def read() -> str:
            rows = "no rows"
            for plan in asyncio.run(_plans(table)):
                splits = plan_splits(plan, case.args["limit"])
                whole = lines_of(each.rows for each in execution.batches([plan]))
                known = place_splits(plan, splits, [measure(each, execution) for each in splits])
                parts = [lines_of(each.rows for each in read_splits([part], execution)) for part in known]
                compare("slices differ", [line for part in parts for line in part], whole)
                rows = "rows" if whole else rows
            return rows

        try:
            return guarded(read, uri)
        except Enough:
            return "enough"


async def _plans(table: Table) -> list[ChangePlan]:
    with table.tailer() as tailer:
        newest = await table.log.latest_version()
        return [each.plan async for each in table.stream().versions(tailer, await table.log.earliest_version(), newest)]


def _make_slices(random: Random) -> Case:
    _, files = base(random, "written", "typed", "partitioned", "mapped-name", "hinted")
    files = tables.mutated(random, files, tables.columnar, tables.columnar, tables.line)
    return Case("slices", files, {"limit": random.choice((100_000, 5_000_000, 1 << 40))})


def check_ledger(case: Case) -> str:
    """A position is recorded in a table that others have damaged: it is there afterwards, or there is an error."""

    async def append() -> str:
        storage = stores.Stored(case.files, case.args)
        log = TxnLog(storage, ManualClock(stores.BEGINNING_MS), jitter=lambda: 0.0)
        version = await log.append(lambda state: [txn_state.txn("fuzz", case.args["position"], 1)])
        if version is None:
            return "nothing to write"
        state = await TxnLog(storage, ManualClock(stores.BEGINNING_MS)).state()
        if state is None or state.version < version or state.txns["fuzz"].version != case.args["position"]:
            raise Violation("not recorded", repr(state)[:500])
        await table_ledger.clean_up(log.log, version)
        if (
            again := await TxnLog(storage, ManualClock(stores.BEGINNING_MS)).state()
        ) is None or again.txns != state.txns:
            raise Violation("lost by upkeep", repr(again)[:500])
        return "value"

    return guarded(lambda: asyncio.run(append()), stores.URI)


def _make_ledger(random: Random) -> Case:
    _, files = base(random, "ledger", "ledger", "hinted", "single-True")
    files = {path: data for path, data in tables.mutated(random, files).items() if path.startswith(LOG)}
    return Case("ledger", files, {"position": random.choice((0, 7, 2**63 - 1)), "remote": random.random() < 0.3})


CONFIG = """
pipeline: p
tables: [{uri: "%s", name: t, key: [id], start: %s}]
sink: {kind: files, path: %s}
progress: {ledger: none}
http: {listen: null}
"""


def check_check(case: Case) -> str:
    """`cdfd check` and `cdfd progress show` of a configuration whose table is damaged."""
    with stores.on_disk(case) as root, tempfile.TemporaryDirectory(dir=Path(root).parents[1]) as folder:
        Path(folder, "sink").mkdir()
        config = Path(folder, "cdfd.yaml")
        config.write_text(CONFIG % (root, case.args["start"], Path(folder, "sink")))
        stores.forget_writes()
        ended = [run_command([*command, "-c", str(config)]) for command in (["check"], ["progress", "show"])]
        stores.forget_writes(keep=True)
    for code, err in ended:
        if code not in (0, 1, 2) or "Traceback" in err:
            raise Violation("exit code", f"{code}: {err[:1000]}")
        for line in err.splitlines():
            check_text(line)
    return f"exit {ended[0][0]}"


def _make_check(random: Random) -> Case:
    _, files = base(random, "written", "hinted", "typed", "single-True")
    files = tables.mutated(random, files)
    odd = mutate.text(random, "2").encode("ascii", "ignore").decode()
    return Case("check", files, {"start": random.choice(("snapshot", "earliest", "latest", "3", "99", odd))})


TARGETS = (
    Target("slices", _make_slices, check_slices, 1),
    Target("ledger", _make_ledger, check_ledger, 6),
    Target("check", _make_check, check_check, 0.5),
)
