"""The chat page in a real browser, where one is installed: writes, streams, stops, survives a crash, runs no markup."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.gateway.browser import CHROMIUM, Page, browser_page
from tests.gateway.harness import GatewayProcess, wait_until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

READY = "document.querySelector('#state').dataset.state === 'ready'"
LAST = "document.querySelector('.turn.assistant:last-child')"
DONE = f"{LAST} && !document.querySelector('.turn.writing') && {READY}"
HOSTILE = "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script>"


def in_browser(gateway: GatewayProcess, profile: Path, test: Callable[[Page], Awaitable[None]]) -> None:
    async def main() -> None:
        async with browser_page(profile) as page:
            await page.open(gateway.url)
            await page.until(READY)
            await test(page)

    asyncio.run(main())


def test_the_page(gateway: GatewayProcess, tmp_path: Path) -> None:
    async def scenario(page: Page) -> None:
        # a reply with thinking, code and markup
        text = f"<think>a plan</think>See `x < 1`:\n```\n{HOSTILE}\n```\n{HOSTILE}"
        gateway.play(["text", text, 0], ["token", 319], ["done", "stop"])
        await page.write("first\n" + HOSTILE)
        await page.until(DONE)
        assert await page.run(f"{LAST}.querySelector('.thinking-text').textContent") == "a plan"
        assert await page.run(f"{LAST}.querySelector('details').open") is False
        assert await page.run(f"{LAST}.querySelector('.text pre').textContent") == HOSTILE
        assert await page.run(f"{LAST}.querySelector('.text').lastElementChild.textContent") == HOSTILE
        assert await page.run("document.querySelectorAll('.turns img, .turns script').length") == 0
        assert await page.run("window.pwned") is None
        assert "tokens" in await page.run(f"{LAST}.querySelector('.figures').textContent")

        # the stop button ends the engine's work
        gateway.play(["text", "slowly ", 0.05], ["sleep", 60], ["done", "stop"])
        await page.write("second")
        await page.until(f"{LAST}.querySelector('.text').textContent.includes('slow')")
        await page.run("document.querySelector('#send').click()")
        await page.until(DONE)
        assert "stopped" in await page.run(f"{LAST}.querySelector('.figures').textContent")
        await asyncio.to_thread(wait_until, lambda: any(line.startswith("STOP") for line in gateway.received()))

        # a crash is said in the turn, and trying again works
        gateway.play(["text", "half", 0], ["crash", 7])
        await page.write("third")
        await page.until(f"{LAST} && !{LAST}.querySelector('.failure').hidden")
        assert "exit code 7" in await page.run(f"{LAST}.querySelector('.failure').textContent")
        gateway.play(["text", "whole", 0], ["done", "stop"])
        await page.until(DONE)
        await page.run(f"{LAST}.querySelector('.retry').click()")
        await page.until(f"{LAST} && {LAST}.querySelector('.text').textContent === 'whole'")

        # nothing is cut off on a phone
        await page.show_as(width=360, height=700, phone=True)
        await page.run("document.querySelector('#settings-button').click()")
        assert await page.run("document.documentElement.scrollWidth <= innerWidth")
        assert page.errors == []

    in_browser(gateway, tmp_path, scenario)
    assert gateway.received()[-1].startswith("GEN")


def test_the_page_says_why_there_is_no_engine(start_gateway: Callable[..., GatewayProcess], tmp_path: Path) -> None:
    script = '{"start": [["line", "ERR bad_model fatal=1 needs 9 GiB, has 4"], ["crash", 1]]}'
    gateway = start_gateway(script=script)

    async def main() -> None:
        async with browser_page(tmp_path / "profile") as page:
            await page.open(gateway.url)
            await page.until("document.querySelector('#state').dataset.state === 'failed'")
            assert await page.run("document.querySelector('#notice').textContent") == "Needs 9 GiB, has 4"
            assert await page.run("document.querySelector('#send').disabled")

    asyncio.run(main())
