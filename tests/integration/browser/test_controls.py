"""The buttons of the page, at a real daemon: they need a token, and do what they say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.browser.chromium import Tab, browser
from tests.support.kafka.daemon_process import Daemon
from tests.support.lake import SCHEMA, rows

TOKEN = "a-token-of-many-letters"
STATE = "document.querySelector('tr.row .state')?.textContent"
ANSWER = "document.querySelector('.actions [role=status]').textContent"
INPUT = ".actions input"
VISIBLE = "[...document.querySelectorAll('.actions button')].filter((each) => !each.hidden).map((each) => each.dataset.action)"


class Table:
    """A table, a daemon that delivers it to files, and the page."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.folder = folder
        self.writer = TableWriter(LocalStorage(folder / "orders", sync=False), SCHEMA)
        self.config = folder / "shop.yaml"
        document = {
            "pipeline": "shop",
            "tables": [{"uri": str(folder / "orders"), "start": "earliest"}],
            "sink": {"kind": "files", "path": str(folder / "out")},
            "poll": {"interval": "20ms", "max_interval": "50ms"},
            "http": {"listen": "127.0.0.1:0"},
        }
        self.config.write_text(json.dumps(document | sections))

    async def create(self) -> None:
        await self.writer.create()
        await self.writer.insert(rows(1, 2))

    def delivered(self) -> int:
        files = (self.folder / "out" / "orders").glob("*.jsonl")
        return sum(len(file.read_text().splitlines()) for file in files)

    async def until_delivered(self, count: int) -> None:
        async with asyncio.timeout(20):
            while self.delivered() != count:
                await asyncio.sleep(0.02)

    @asynccontextmanager
    async def open_tab(self, chosen: str = "") -> AsyncIterator[Tab]:
        with Daemon(self.config) as daemon:
            said = await asyncio.to_thread(daemon.wait_for, "metrics, health and status at")
            async with browser() as tab:
                await tab.open(f"{said['message'].rpartition(' ')[2]}/{chosen}")
                yield tab
            await asyncio.to_thread(daemon.stop)


def within(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 120))


async def enter_token(tab: Tab, token: str) -> None:
    await tab.until(f"{VISIBLE}.includes('use')")
    await tab.write(INPUT, token)
    await tab.click("[data-action=use]")
    await tab.until(f"{VISIBLE}.includes('forget')")


def test_pause_and_resume(tmp_path: Path) -> None:
    async def test() -> None:
        table = Table(tmp_path, controls={"token": TOKEN})
        await table.create()
        async with table.open_tab("#table=orders") as tab:
            await table.until_delivered(2)
            await enter_token(tab, TOKEN)
            await tab.click("[data-action=pause]")
            await tab.until(f"{ANSWER}.startsWith('PAUSED: ')")
            await tab.until(f"{STATE} === 'paused' && {VISIBLE}.includes('resume')")
            await tab.until("document.getElementById('headline').textContent.startsWith('orders is paused')")
            await table.writer.insert(rows(3))
            await asyncio.sleep(0.5)
            assert table.delivered() == 2
            await tab.click("[data-action=resume]")
            await table.until_delivered(3)
            await tab.until(f"{STATE} === 'at the tip'")
            await tab.click("[data-action=forget]")
            await tab.until(f"JSON.stringify({VISIBLE}) === '[\"use\"]'")
            assert tab.problems == []

    within(test())


def test_rows_are_published_again_after_a_second_click(tmp_path: Path) -> None:
    async def test() -> None:
        table = Table(tmp_path, controls={"token": TOKEN})
        await table.create()
        async with table.open_tab("#table=orders") as tab:
            await table.until_delivered(2)
            await enter_token(tab, TOKEN)
            await tab.click("[data-action=snapshot]")
            assert await tab.evaluate(VISIBLE) == ["really", "cancel"]
            await tab.click("[data-action=cancel]")
            await tab.click("[data-action=snapshot]")
            await tab.write(INPUT, "nothing like a condition")
            await tab.click("[data-action=really]")
            await tab.until(f"{ANSWER}.startsWith('REFUSED: ')")
            assert table.delivered() == 2
            await tab.click("[data-action=snapshot]")
            await tab.write(INPUT, "id >= 2")
            await tab.click("[data-action=really]")
            await table.until_delivered(4)  # the whole file, which may have such rows

    within(test())


def test_a_wrong_token_does_nothing_and_is_forgotten(tmp_path: Path) -> None:
    async def test() -> None:
        table = Table(tmp_path, controls={"token": TOKEN})
        await table.create()
        async with table.open_tab("#table=orders") as tab:
            await enter_token(tab, "not-that-of-the-daemon")
            await tab.click("[data-action=pause]")
            await tab.until(
                f"{ANSWER} === 'REFUSED: the token is missing or wrong: send `Authorization: Bearer <controls.token>`'"
            )
            await tab.until(f"JSON.stringify({VISIBLE}) === '[\"use\"]'")
            await tab.until(f"{STATE} === 'at the tip'")
            assert (
                await tab.evaluate("JSON.stringify([localStorage.length, sessionStorage.length, document.cookie])")
                == '[0,0,""]'
            )

    within(test())


def test_without_controls_there_are_no_buttons(tmp_path: Path) -> None:
    async def test() -> None:
        table = Table(tmp_path)
        await table.create()
        async with table.open_tab("#table=orders") as tab:
            await tab.until("document.querySelector('.details')")
            assert await tab.evaluate("document.querySelector('.actions').hidden")

    within(test())


def test_a_daemon_that_wants_a_token_for_everything(tmp_path: Path) -> None:
    async def test() -> None:
        table = Table(tmp_path, http={"listen": "127.0.0.1:0", "authentication": {"token": "read-only-token-1"}})
        await table.create()
        async with table.open_tab() as tab:
            await tab.until("!document.getElementById('login').hidden")
            assert await tab.evaluate("document.querySelectorAll('tr.row').length") == 0
            await tab.write("#token", "wrong")
            await tab.click("#enter")
            await asyncio.sleep(0.3)
            assert await tab.evaluate("document.querySelectorAll('tr.row').length") == 0
            await tab.write("#token", "read-only-token-1")
            await tab.click("#enter")
            await tab.until(f"{STATE} === 'at the tip'")
            assert await tab.evaluate("document.getElementById('login').hidden")

    within(test())


def test_a_wrong_token_of_controls_leaves_the_token_for_reading(tmp_path: Path) -> None:
    async def test() -> None:
        http = {"listen": "127.0.0.1:0", "authentication": {"token": "read-only-token-1"}}
        table = Table(tmp_path, http=http, controls={"token": TOKEN})
        await table.create()
        async with table.open_tab("#table=orders") as tab:
            await tab.until("!document.getElementById('login').hidden")
            await tab.write("#token", "read-only-token-1")
            await tab.click("#enter")
            await enter_token(tab, "not-that-of-the-daemon")
            await tab.until(f"JSON.stringify({VISIBLE}) === '[\"use\"]'")
            assert await tab.evaluate("document.getElementById('login').hidden")
            await tab.until(f"{STATE} === 'at the tip'")

    within(test())
