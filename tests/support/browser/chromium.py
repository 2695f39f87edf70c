"""A real Chromium without a screen, steered over its DevTools protocol."""

import asyncio
import base64
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.installation import missing_package, package

_SECONDS = 30.0


def missing() -> str | None:
    """Why there can be no browser here, or None."""
    return missing_package("chromium")


def chromium() -> str:
    """The browser, from Debian's package where it is not installed yet."""
    return package("chromium", "chromium")


class Tab:
    """One page in the browser.

    Attributes:
        problems: errors of the page: of its scripts, of its policy, of requests.
        requests: the URLs that it has asked for.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.problems: list[str] = []
        self.requests: list[str] = []

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the DevTools protocol."""
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(_SECONDS):
            return await self._answers[number]

    async def listen(self) -> None:
        """Receive answers and events, until the connection ends."""
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                answer = self._answers.pop(event["id"])
                if "error" in event:
                    answer.set_exception(RuntimeError(event["error"]["message"]))
                else:
                    answer.set_result(event["result"])
            else:
                self._note(event["method"], event["params"])

    def _note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(event["exceptionDetails"]["exception"].get("description", "an exception"))
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.problems.append(event["entry"]["text"])
        elif method == "Audits.issueAdded":
            self.problems.append(event["issue"]["code"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])

    async def open(self, url: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Show a page, in a window of this size."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.navigate", url="about:blank")
        await self.call("Page.navigate", url=url)
        await self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        reply = await self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
            allowUnsafeEvalBlockedByCSP=False,  # `eval` inside of it is under the page's policy
        )
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression in the page is true."""
        async with asyncio.timeout(_SECONDS):
            while not await self.evaluate(f"Boolean({expression})"):
                await asyncio.sleep(0.02)

    async def click(self, selector: str) -> None:
        """Press the mouse on an element, at its place on the screen."""
        place = f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}}); "
        box = await self.evaluate(
            place + "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    async def write(self, selector: str, text: str) -> None:
        """Type text into an element."""
        await self.click(selector)
        await self.call("Input.insertText", text=text)

    async def picture(self, file: Path, *, whole: bool = False) -> bytes:
        """A screenshot as PNG, also written to a file. `whole`: with the parts below the window."""
        taken = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        data = base64.b64decode(taken["data"])
        file.write_bytes(data)
        return data


@asynccontextmanager
async def browser() -> AsyncIterator[Tab]:
    """A browser with one tab, until the block ends."""
    with tempfile.TemporaryDirectory(prefix="cdfd-chromium-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            chromium(),
            "--headless=new",
            "--no-sandbox",  # it shows only our page, and tests may run as root
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--hide-scrollbars",
            "--force-color-profile=srgb",
            f"--user-data-dir={folder}",
            "--remote-debugging-port=0",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            async with asyncio.timeout(2 * _SECONDS):
                port = await _port(process.stderr)
            draining = asyncio.create_task(process.stderr.read())
            async with _tab(port) as tab:
                yield tab
            draining.cancel()
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _port(errors: asyncio.StreamReader) -> int:
    while line := await errors.readline():
        if b"DevTools listening on" in line:
            return int(line.split(b":")[2].split(b"/")[0])
    raise RuntimeError("Chromium ended before it was ready")


@asynccontextmanager
async def _tab(port: int) -> AsyncIterator[Tab]:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
            (page,) = [each for each in await response.json() if each["type"] == "page"]
        async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            tab = Tab(socket)
            listening = asyncio.create_task(tab.listen())
            for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
                await tab.call(f"{domain}.enable")
            try:
                yield tab
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
