"""The Monitor and About pages in a real browser: they move, give orders, and do not pretend to know."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.browser import CHROMIUM, Page
from tests.gateway.harness import GatewayProcess, process_gone
from tests.gateway.test_page import in_browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

Start = Callable[..., GatewayProcess]

STATE = "document.querySelector('#engine-state').dataset.state"
DONE = "DONE 3 $N 10.0 20.0 stop 1 2 4 30 40 5 6 7 8 id=$ID"


def text(selector: str) -> str:
    return f"document.querySelector('{selector}').textContent"


def test_it_moves_with_a_request(gateway: GatewayProcess, tmp_path: Path) -> None:
    async def scenario(page: Page) -> None:
        await page.run("location.hash = '#monitor'")
        gateway.play(["progress", 6, 12], ["sleep", 60], ["done", "stop"])
        connection = gateway.open_chat(stream=True)
        await page.until(f"{text('#now-text')} === 'Reading a prompt' && {text('#now-facts')}.includes('6 of')")
        assert await page.run("document.querySelector('#now-progress').getAttribute('aria-valuenow')") != "0"
        connection.close()
        await page.until(f"{text('#now-text')}.startsWith('Idle')")
        await page.until(f"{text('#requests tbody tr')}.includes('cancelled')")

        gateway.play(["text", "yes", 0], ["line", DONE])
        await asyncio.to_thread(gateway.chat, "SECRETWORD")
        await page.until(f"{text('#requests tbody tr')}.includes('finished')")
        row = await page.run(f"{text('#requests tbody tr')}")
        assert all(part in row for part in ("/v1/chat/completions", "50 %", "75 %", "5 / 6")), row
        bars = await page.run(text("#bars"))
        assert all(part in bars for part in ("VRAM", "Accepted", "From the cache", "RAM")), bars
        assert "SECRETWORD" not in await page.run("document.body.textContent")
        assert await page.run("document.querySelectorAll('canvas.plot').length") == 6
        drawn = "[...document.querySelectorAll('canvas.plot')].every((c) => c.width > 50 && c.getAttribute('aria-label'))"
        assert await page.run(drawn)
        assert page.errors == []

    in_browser(gateway, tmp_path, scenario)


def test_what_is_not_known_is_said_to_be_unknown(start_gateway: Start, tmp_path: Path) -> None:
    gateway = start_gateway()
    gateway.wait_ready()

    async def scenario(page: Page) -> None:
        await page.run("location.hash = '#monitor'")
        await page.until(f"{text('#engine-facts')}.includes('4,096')")
        boxes = "[...document.querySelectorAll('#plots .card, .stack')]"
        unknown = await page.run(f"{boxes}.filter((box) => box.textContent.includes('unknown')).length")
        assert unknown >= 5  # plots of card, drafts and experts; bars of card memory, experts, drafts, prompt tokens
        await page.show_as(width=360, height=700, phone=True)
        assert await page.run("document.documentElement.scrollWidth <= innerWidth")
        await page.run("location.hash = '#about'")
        await page.until(f"{text('#about-settings')}.includes('max_queue')")
        assert await page.run("document.documentElement.scrollWidth <= innerWidth")
        assert gateway.url + "/v1" in await page.run(text("#addresses"))
        assert page.errors == []

    in_browser(gateway, tmp_path / "profile", scenario)


def test_orders_and_a_killed_engine(start_gateway: Start, tmp_path: Path) -> None:
    gateway = start_gateway()
    gateway.wait_ready()

    async def click(page: Page, order: str) -> None:
        button = f"document.querySelector('#order-{order}')"
        await page.until(f"!{button}.hidden && !{button}.disabled")
        await page.run(f"{button}.click()")

    async def scenario(page: Page) -> None:
        await page.run("location.hash = '#monitor'")
        first = gateway.engine_pid()
        await click(page, "restart")
        await page.until("document.querySelector('#confirm').open")
        await page.run("document.querySelector('#confirm button[value=no]').click()")
        assert not process_gone(first)  # not without a yes
        await click(page, "restart")
        await page.run("document.querySelector('#confirm-yes').click()")
        await page.until(f"{STATE} === 'ready' && {text('#engine-facts')}.includes('Restarts1')")
        assert process_gone(first)

        await click(page, "unload")
        await page.run("document.querySelector('#confirm-yes').click()")
        await page.until(f"{STATE} === 'unloaded'")
        await click(page, "load")
        await page.until(f"{STATE} === 'ready'")

        os.kill(gateway.engine_pid(), signal.SIGKILL)
        await page.until(f"{text('#last-error')}.includes('something killed it')")
        await page.until(f"{STATE} === 'ready'")
        await page.run("location.hash = '#chat'")
        await page.write("still there?")
        await page.until("document.querySelector('.turn.assistant .text')?.textContent === 'ok'")
        assert page.errors == []

    in_browser(gateway, tmp_path / "profile", scenario)


def test_a_server_that_goes_away_is_noticed(start_gateway: Start, tmp_path: Path) -> None:
    gateway = start_gateway()
    gateway.wait_ready()

    async def scenario(page: Page) -> None:
        assert gateway.stop() == 0
        await page.until("document.querySelector('#state').dataset.state === 'offline'")
        assert "does not answer" in await page.run(text("#notice"))

    in_browser(gateway, tmp_path / "profile", scenario)
