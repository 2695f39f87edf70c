"""Polls of a table on S3 by its rhythm: their requests are those that the budget counts."""

import asyncio
import json
import urllib.request
from contextlib import aclosing
from pathlib import Path

from cdfd.log.pace import Pace, PollBudget
from cdfd.log.table import Table
from cdfd.runtime.clock import SystemClock
from tests.standard.s3.test_requests import new_table
from tests.support.kafka.daemon_process import until
from tests.support.kafka.history import Location
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.shared import SharedBroker
from tests.support.lake import WITHIN, rows
from tests.support.s3.proxy import Proxy
from tests.support.s3.server import Server, free_port, s3_section


async def test_requests_of_polls_are_counted(moto_server: Server, bucket: str, proxy: Proxy) -> None:
    uri = f"s3://{bucket}/orders"
    writer = await new_table(moto_server, uri)
    budget = PollBudget(None, 0.5)
    pace = Pace(budget, 0.05)
    table = Table.open(uri, {**moto_server.options(), "aws_endpoint_url": proxy.url})
    with table.tailer(SystemClock(), 0.05, 0.5, pace=pace) as tailer:
        async with aclosing(tailer.entries(2)) as entries:  # type: ignore[type-var]
            async with asyncio.timeout(WITHIN):
                assert (await anext(entries)).commit.version == 2
            upcoming = asyncio.ensure_future(anext(entries))
            async with asyncio.timeout(WITHIN):
                while proxy.count("GET", f"{3:020}.json") < 6:
                    await asyncio.sleep(0.02)
            # The first look was not a poll. A poll may have been decided and not been made yet.
            polls = proxy.count("GET", f"{3:020}.json") - 1
            assert polls <= budget.requests <= polls + 3
            await writer.insert(rows(3))
            async with asyncio.timeout(WITHIN):
                assert (await upcoming).commit.version == 3
    assert len(pace.rhythm.gaps) == 1
    assert budget.tables == 0


def test_daemon_shows_its_budget_and_warns_once(
    moto_server: Server, bucket: str, broker: SharedBroker, name: str, tmp_path: Path
) -> None:
    listen = f"127.0.0.1:{free_port()}"

    def get(path: str) -> str:
        with urllib.request.urlopen(f"http://{listen}{path}", timeout=WITHIN) as response:
            text: str = response.read().decode()
        return text

    def polling() -> dict[str, float]:
        document: dict[str, float] = json.loads(get("/status"))["polling"]
        return document

    options = {key: str(value) for key, value in moto_server.options().items()}
    sections = {
        "storage": {"s3": s3_section(moto_server.url)},
        "poll": {"max_requests_per_hour": 60},
        "progress": {"ledger": "none"},
        "http": {"listen": listen},
    }
    servers = broker.bootstrap_servers
    pipeline = Pipeline(tmp_path, name, servers, servers, Location(f"s3://{bucket}/orders", options), sections)
    pipeline.table()
    with pipeline.daemon() as daemon:
        daemon.wait_for("at version")
        until(lambda: polling()["requests_last_hour"] > 0)
        shown = polling()
        assert (shown["tables"], shown["max_requests_per_hour"]) == (1, 60)
        assert 60 < shown["max_interval_seconds"] < 600
        metrics = get("/metrics")
        assert "cdfd_poll_max_requests_per_hour 60.0" in metrics
        assert f"cdfd_poll_requests_total {shown['requests_last_hour']:.1f}" in metrics
        daemon.stop()
        assert daemon.log().count("does not suffice to poll") == 1
