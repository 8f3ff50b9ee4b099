"""A headless Chromium driven over its DevTools socket: enough to open a page, run script in it and take pictures."""

import asyncio
import contextlib
import itertools
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


class Page:
    """One page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.errors: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One DevTools command and its result."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await asyncio.wait_for(self._socket.receive_json(), 20)
            self._note(message)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def _note(self, message: dict[str, Any]) -> None:
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(message["params"]["exceptionDetails"]))
            case "Log.entryAdded" if message["params"]["entry"]["level"] == "error":
                self.errors.append(message["params"]["entry"]["text"])

    async def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, script: str, timeout_s: float = 15) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(timeout_s):
            while not await self.run(script):  # noqa: ASYNC110  (the event is in another process)
                await asyncio.sleep(0.03)

    async def click(self, element: str) -> None:
        """Click as a person does, which lets the page do what it may not do by itself."""
        result = await self.call("Runtime.evaluate", expression=f"{element}.click()", userGesture=True)
        assert "exceptionDetails" not in result, result

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until(f"location.href.startsWith({url!r}) && document.readyState === 'complete'")

    async def show_as(self, *, width: int, height: int, dark: bool = False, phone: bool = False) -> None:
        """Pretend to be a screen."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def write(self, text: str) -> None:
        """Write into the composer and send."""
        await self.run("document.querySelector('#input').focus()")
        await self.call("Input.insertText", text=text)
        await self.run("document.querySelector('#send').click()")


@asynccontextmanager
async def browser_page(profile: Path) -> AsyncIterator[Page]:
    """A page in a browser of its own; `profile` is an empty directory."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *_FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        port = await asyncio.wait_for(_port(process.stderr), 30)
        async with aiohttp.ClientSession() as session:
            targets: list[dict[str, Any]] = []
            while not targets:
                async with session.get(f"http://127.0.0.1:{port}/json") as response:
                    targets = [target for target in await response.json() if target["type"] == "page"]
                await asyncio.sleep(0.02)
            async with session.ws_connect(targets[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                yield page
    finally:
        process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 5)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _port(log: asyncio.StreamReader) -> int:
    async for line in log:
        if found := re.search(rb"DevTools listening on ws://[^:]+:(\d+)/", line):
            return int(found.group(1))
    raise AssertionError("the browser did not start")
