"""The picture of the page in the documentation: `make page` takes it again."""

import asyncio
import time
from pathlib import Path

from cdfd.config.sections import Http
from cdfd.config.values import Listen
from cdfd.daemon.http.history import POINTS, SECONDS
from tests.support.browser import daemons
from tests.support.browser.chromium import browser
from tests.support.manual_time import ManualClock
from tests.support.statuses import serve_status

FOLDER = Path(__file__).parents[3] / "docs" / "img"


async def take(folder: Path) -> None:
    """Take a picture in light and in dark."""
    status, history = daemons.troubled(ManualClock(round(time.time() * 1000 - POINTS * SECONDS * 1000)))
    async with serve_status(Http(listen=Listen("127.0.0.1", 0)), status, history=history) as address, browser() as tab:
        for name, chosen, dark in (("page", "", False), ("page-details", "#table=payments&search=payments", True)):
            await tab.open(f"http://{address}/{chosen}", 1280, 900, dark=dark)
            await tab.until(
                "document.body.dataset.shown > 0 && (location.hash === '' || document.querySelector('.details li'))"
            )
            await tab.picture(folder / f"{name}.png")


if __name__ == "__main__":
    asyncio.run(take(FOLDER))
