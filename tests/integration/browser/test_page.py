"""The page in a real browser: shown, sorted, searched and refreshed, and of strangers' text nothing runs."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from cdfd.config.sections import Http
from cdfd.config.values import Listen
from cdfd.daemon.election.candidate import Candidate
from cdfd.daemon.election.election import Election
from cdfd.daemon.http.history import POINTS, SECONDS, History
from cdfd.daemon.http.status import Status
from cdfd.errors import StorageError
from cdfd.sinks.lease import Claim, Lease
from tests.support.browser import daemons
from tests.support.browser.chromium import Tab, browser
from tests.support.manual_time import ManualClock
from tests.support.statuses import configuration, serve_status, table_monitor

WITHIN = 120
MANY = [*(f"table_{number:03}" for number in range(497)), *daemons.NAMES[3:5], "stores"]
NAMES = "[...document.querySelectorAll('tr.row td.name button')].map((each) => each.textContent)"
HEADLINE = "document.getElementById('headline').textContent"
SHOWN = "Number(document.body.dataset.shown)"


def an_hour_ago() -> ManualClock:
    """The page compares times with the browser's clock."""
    return ManualClock(round(time.time() * 1000 - POINTS * SECONDS * 1000))


@asynccontextmanager
async def open_page(status: Status, history: History, chosen: str = "", *, dark: bool = False) -> AsyncIterator[Tab]:
    async with serve_status(Http(listen=Listen("127.0.0.1", 0)), status, history) as address, browser() as tab:
        await tab.open(f"http://{address}/{chosen}", dark=dark)
        await tab.until(f"{SHOWN} > 0")
        yield tab
        assert tab.problems == []
        assert all(each == "about:blank" or each.startswith(f"http://{address}/") for each in tab.requests)


async def test_it_says_which_table_is_behind_and_why_and_what_comes_next(tmp_path: Path) -> None:
    async with open_page(*daemons.troubled(an_hour_ago())) as tab:
        assert await tab.evaluate(HEADLINE) == "payments: error, 4 versions, 10 s behind"
        verdict = await tab.evaluate("document.getElementById('verdict').innerText")
        for line in (
            "the file is gone",
            "It retries in 48.0 s",
            "VACUUM may have removed it",
            "Other tables: 2 behind.",
        ):
            assert line in verdict
        assert (await tab.evaluate(NAMES))[:3] == ["payments", "stores", "orders"]
        orders = await tab.evaluate("document.querySelectorAll('tr.row')[2].innerText")
        for part in (
            "catching up",
            "379",
            "18 min",
            "most time goes to sending to the sink",
            "does not shrink",
            "6 d 23 h",
        ):
            assert part in orders
        lines = await tab.evaluate(
            "[...document.querySelectorAll('#charts .stroke')].map((each) => each.getAttribute('d').length)"
        )
        assert min(lines) > 1000
        # A whole screenful, with colours: an empty or unstyled page would compress to far less.
        assert len(await tab.picture(tmp_path / "page.png")) > 50_000


async def test_it_is_calm_where_all_is_well() -> None:
    async with open_page(*daemons.calm(an_hour_ago())) as tab:
        assert await tab.evaluate(HEADLINE) == "All 7 tables are up to date"
        assert await tab.evaluate("document.getElementById('verdict').dataset.level") == "good"
        assert await tab.evaluate("document.getElementById('reasons').hidden")
        assert await tab.evaluate("document.title") == "All 7 tables are up to date · cdfd"


async def test_standby_names_the_process_that_delivers() -> None:
    clock = an_hour_ago()
    status = Status(configuration(), clock, standby=True)
    status.election = Election(cast(Lease, None), clock, 0.1, Candidate("me", 2.5))
    status.election.candidate, _ = status.election.candidate.after(Claim("shop-cdfd-1", 1), 0)
    async with open_page(status, History(status)) as tab:
        assert await tab.evaluate(HEADLINE) == "Standing by: shop-cdfd-1 delivers"
        assert await tab.evaluate("document.getElementById('verdict').dataset.level") == "good"


async def test_details_of_a_table_open_with_a_click_and_stay_in_the_address() -> None:
    async with open_page(*daemons.troubled(an_hour_ago())) as tab:
        await tab.click("tr.row td.name button")
        await tab.until("document.querySelector('.details li')")
        text = await tab.evaluate("document.querySelector('.details').innerText")
        for part in ("version 361", "of 30 d 0 h", "has removed undelivered changes", "3 times", "does not answer"):
            assert part in text
        assert await tab.evaluate("location.hash") == "#table=payments"
        await tab.call("Page.reload")
        await tab.until("document.querySelector('.details li')")
        await tab.click("tr.row td.name button")
        await tab.until("document.querySelector('.details') === null && location.hash === ''")


@pytest.mark.parametrize("dark", [False, True])
async def test_light_and_dark(dark: bool) -> None:
    """Text has a contrast of at least 4.5 to 1, as WCAG asks for."""
    contrast = """(() => {
      const light = (rgb) => rgb.map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
      const colour = (text) => text.match(/[\\d.]+/g).map(Number);
      const back = (node) => {
        const found = colour(getComputedStyle(node).backgroundColor);
        return found.length < 4 || found[3] > 0 ? found : back(node.parentElement);
      };
      const ratio = (node) => {
        const [high, low] = [colour(getComputedStyle(node).color), back(node)].map((c) => light(c.slice(0, 3))).sort((a, b) => b - a);
        return (high + 0.05) / (low + 0.05);
      };
      const texts = [...document.querySelectorAll('body *')].filter((each) => each.innerText && !each.children.length && each.offsetParent);
      return texts.map((each) => [ratio(each), each.innerText]).sort((a, b) => a[0] - b[0])[0];
    })()"""

    async with open_page(*daemons.troubled(an_hour_ago()), "#table=payments", dark=dark) as tab:
        await tab.until("document.querySelector('.details li')")
        lightness = await tab.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (max(lightness) < 60) == dark
        ratio, text = await tab.evaluate(contrast)
        assert ratio >= 4.5, text


async def test_five_hundred_tables_can_be_searched_filtered_and_sorted() -> None:
    async with open_page(*daemons.troubled(an_hour_ago(), MANY)) as tab:
        assert len(await tab.evaluate(NAMES)) == 500
        await tab.write("#search", "TABLE_04")
        await tab.until("document.querySelectorAll('tr.row').length === 10")
        assert (await tab.evaluate(NAMES))[0] == "table_040"
        await tab.evaluate("document.getElementById('search').select()")
        await tab.write("#search", "nothing like it")
        await tab.until("!document.getElementById('empty').hidden")
        await tab.evaluate("document.getElementById('search').select()")
        await tab.call("Input.dispatchKeyEvent", type="keyDown", key="Delete", code="Delete", windowsVirtualKeyCode=46)
        await tab.until("document.querySelectorAll('tr.row').length === 500")
        await tab.click("button[data-filter=behind]")
        await tab.until("document.querySelectorAll('tr.row').length === 3")
        await tab.click("th[data-column=versions] button")
        assert await tab.evaluate(NAMES) == ["orders", "payments", "stores"]
        await tab.click("th[data-column=versions] button")
        assert await tab.evaluate(NAMES) == ["stores", "payments", "orders"]
        assert await tab.evaluate("location.hash") == "#filter=behind&sort=versions&reversed=1"


async def test_a_refresh_replaces_texts_and_nothing_else() -> None:
    """A refresh keeps everything else: unchanged rows, the scroll position, the focus and the selection."""
    watch = """(() => { window.changed = []; new MutationObserver((all) => all.forEach((each) => window.changed.push(
      [each.type, (each.target.id || each.target.className || each.target.nodeName).toString()])))
      .observe(document.body, { subtree: true, childList: true, characterData: true }); })()"""

    clock = an_hour_ago()
    status, history = daemons.troubled(clock)
    async with open_page(status, history) as tab:
        await tab.evaluate("document.querySelectorAll('tr.row td.name button')[5].focus()")
        await tab.evaluate("window.scrollTo(0, 120)")
        await tab.evaluate(watch)
        shown = await tab.evaluate(SHOWN)
        await tab.until(f"{SHOWN} > {shown}")
        unchanged = await tab.evaluate(
            "window.changed.filter(([, name]) => !['state', 'number', 'about'].includes(name))"
        )
        assert [each for each in unchanged if each[1] not in ("TD", "about")] == []
        table_monitor(status, "payments").committed(
            daemons.at(POINTS + 5), [daemons.version(POINTS + 4, clock.now_ms())], {}, 0
        )
        table_monitor(status, "payments").at_tip()
        await tab.until(f"{HEADLINE}.startsWith('stores')")
        assert (await tab.evaluate(NAMES))[:2] == ["stores", "orders"]
        assert await tab.evaluate("document.activeElement.textContent") == "invoices"
        assert await tab.evaluate("window.scrollY") == 120


async def test_a_daemon_that_is_gone_and_comes_back() -> None:
    status, history = daemons.calm(an_hour_ago())
    async with browser() as tab:
        async with serve_status(Http(listen=Listen("127.0.0.1", 0)), status, history) as address:
            assert address is not None
            await tab.open(f"http://{address}/")
            await tab.until(f"{SHOWN} > 0")
        await tab.until(f"{HEADLINE} === 'The daemon does not answer'")
        async with serve_status(Http(listen=address), status, history):
            await tab.until(f"{HEADLINE} === 'All 7 tables are up to date'")


async def test_text_of_others_is_text() -> None:
    hostile = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>\u202e$`&lt;"

    status, history = daemons.calm(an_hour_ago())
    error = StorageError(hostile, hint=hostile, path=hostile, version=3)
    table_monitor(status, "payments").failed(error, 5.0)
    async with open_page(status, history, "#table=payments") as tab:
        await tab.until("document.querySelector('.details li')")
        text = await tab.evaluate("document.body.innerText")
        assert text.count("<img src=x onerror='window.hacked=1'>") >= 6
        assert "\u202e" not in text
        assert await tab.evaluate("document.querySelectorAll('img, script').length") == 1  # the page's own
        assert await tab.evaluate("window.hacked === undefined")


async def test_the_policy_stops_scripts_that_get_into_the_page() -> None:
    status, history = daemons.calm(an_hour_ago())
    async with serve_status(Http(listen=Listen("127.0.0.1", 0)), status, history) as address, browser() as tab:
        await tab.open(f"http://{address}/")
        for attack in (
            "document.body.innerHTML = '<img src=x onerror=window.hacked=1>'",
            "const s = document.createElement('script'); s.textContent = 'window.hacked=1'; document.body.append(s)",
            "const s = document.createElement('script'); s.append('window.hacked=1'); document.body.append(s)",
            "eval('window.hacked=1')",
        ):
            await tab.evaluate(f"(() => {{ try {{ {attack} }} catch {{}} }})()")
        for attack in ("fetch('http://127.0.0.1:9/')", "fetch('https://example.com/')"):
            assert await tab.evaluate(f"{attack}.then(() => 'sent', () => 'refused')") == "refused"
        assert await tab.evaluate("window.hacked === undefined")
        assert tab.problems  # the browser has reported what the policy stopped
