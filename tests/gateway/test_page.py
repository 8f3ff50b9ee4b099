"""The chat page in a real browser, where one is installed: writes, streams, stops, survives a crash, runs no markup."""

import asyncio
import json
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

        # copying works where the browser has no clipboard for pages, as over plain HTTP from another machine
        await page.run("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        await page.click(f"{LAST}.querySelector('.copy')")
        await page.until(f"{LAST}.querySelector('.copy').textContent === 'Copied'")

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


def test_conversations(gateway: GatewayProcess, tmp_path: Path) -> None:
    async def scenario(page: Page) -> None:
        gateway.play(["text", "one", 0], ["done", "stop"])
        await page.write("first question")
        await page.until(f"{LAST}.querySelector('.text').textContent === 'one' && {DONE}")

        # edit and send again: what came after is gone, and the engine gets the new text
        gateway.play(["text", "two", 0], ["done", "stop"])
        await page.run("document.querySelector('.turn.user button').click()")
        await page.run("document.querySelector('.edit').value = 'better question'")
        await page.run("document.querySelector('.edit-form').requestSubmit()")
        await page.until(f"{LAST}.querySelector('.text').textContent === 'two' && {DONE}")
        assert await page.run("document.querySelectorAll('.turn').length") == 2
        assert await page.run("document.querySelector('.turn.user .text').textContent") == "better question"

        # kept over a reload, with its figures; another one begins empty
        await page.open(gateway.url + "/?again")
        await page.until(READY)
        assert await page.run("document.querySelectorAll('.turn').length") == 0
        await page.run("document.querySelector('.conversation .open').click()")
        assert await page.run(f"{LAST}.querySelector('.text').textContent") == "two"
        assert "% cached" in await page.run(f"{LAST}.querySelector('.figures').textContent")
        await page.run("document.querySelector('.new-chat').click()")
        assert await page.run("document.querySelectorAll('.turn').length") == 0

        # forgotten only after a question
        await page.run("document.querySelector('.conversation .forget').click()")
        await page.until("document.querySelector('#confirm').open")
        await page.run("document.querySelector('#confirm-yes').click()")
        await page.until("document.querySelectorAll('.conversation').length === 0")
        assert page.errors == []

    in_browser(gateway, tmp_path, scenario)


def test_settings_reach_the_engine(gateway: GatewayProcess, tmp_path: Path) -> None:
    async def scenario(page: Page) -> None:
        gateway.play(["text", "x", 0], ["done", "stop"])
        for field, value in (("temperature", "0.5"), ("top-k", "7"), ("seed", "42"), ("max-tokens", "9"), ("stop", "END")):
            await page.run(f"document.querySelector('#{field}').value = '{value}'")
        await page.write("q")
        await page.until(DONE)
        await page.run("document.querySelector('#tools').value = '[{'")
        await page.write("q")
        await page.until(f"{LAST} && !{LAST}.querySelector('.failure').hidden")
        assert page.errors == []

    in_browser(gateway, tmp_path, scenario)
    (line,) = [line for line in gateway.received() if line.startswith("GEN")]
    assert {"temperature=0.5", "top_k=7", "seed=42"} <= set(line.split())
    assert line.startswith("GEN 9 ")


def test_the_progress_of_a_prompt(gateway: GatewayProcess, tmp_path: Path) -> None:
    async def scenario(page: Page) -> None:
        gateway.play(["progress", 6, 12], ["sleep", 60], ["done", "stop"])
        await page.write("a long prompt")
        bar = f"{LAST}.querySelector('.waiting')"
        await page.until(f"{LAST} && {bar}.textContent.includes('6 of') && {bar}.getAttribute('aria-valuenow') > 0")
        await page.run("document.querySelector('#send').click()")
        await page.until(DONE)
        assert await page.run(f"{bar}.hidden")

    in_browser(gateway, tmp_path, scenario)


def test_a_key_is_asked_for(start_gateway: Callable[..., GatewayProcess], tmp_path: Path) -> None:
    gateway = start_gateway("--api-key", "k")
    gateway.wait_ready()

    async def scenario(page: Page) -> None:
        await page.until("document.querySelector('#notice').textContent.includes('API key')")
        await page.run("location.hash = '#monitor'")
        await page.until("!document.querySelector('#monitor-locked').hidden")
        await page.run("document.querySelector('#api-key').value = 'k'")
        await page.run("document.querySelector('#api-key').dispatchEvent(new Event('change', {bubbles: true}))")
        await page.until("document.querySelector('#monitor-locked').hidden")
        await page.until("document.querySelector('#engine-facts').textContent.includes('4,096 tokens')")

    in_browser(gateway, tmp_path / "profile", scenario)


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


CALLS = [
    {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}},
    {"index": 0, "function": {"arguments": '{"city": "<b>'}},
    {"index": 0, "function": {"arguments": 'Oslo</b>"}'}},
    {"index": 1, "id": "call_2", "type": "function", "function": {"name": "clock", "arguments": ""}},
    {"index": 1, "function": {"arguments": "{}"}},
]

# Answers the first request with tool calls and the others with what they were sent.
STUB = """
    window.sent = [];
    const real = window.fetch;
    window.fetch = (path, options) => {
      if (path !== "/v1/chat/completions") return real(path, options);
      sent.push(JSON.parse(options.body));
      const deltas = sent.length === 1 ? CALLS.map((call) => ({ tool_calls: [call] })) : [{ content: "done" }];
      const finish = sent.length === 1 ? "tool_calls" : "stop";
      const events = [...deltas.map((delta) => ({ choices: [{ index: 0, delta, finish_reason: null }] })),
        { choices: [{ index: 0, delta: {}, finish_reason: finish }] }];
      const lines = [...events.map((event) => JSON.stringify(event)), "[DONE]"].map((data) => `data: ${data}\\n\\n`);
      return Promise.resolve(new Response(lines.join("")));
    };
"""


def test_tool_calls_are_shown_and_can_be_answered(gateway: GatewayProcess, tmp_path: Path) -> None:
    async def scenario(page: Page) -> None:
        await page.run(STUB.replace("CALLS", json.dumps(CALLS)))
        await page.run("document.querySelector('#tools').value = '{\"name\": \"weather\", \"parameters\": {}}'")
        await page.write("weather and time?")
        await page.until("document.querySelectorAll('.call textarea').length === 2")
        assert await page.run("document.querySelector('.call h3').textContent") == "weather"
        assert json.loads(await page.run("document.querySelector('.call pre').textContent")) == {"city": "<b>Oslo</b>"}
        assert await page.run("sent[0].tools[0].function.name") == "weather"

        await page.run("document.querySelectorAll('.call textarea').forEach((field, n) => { field.value = `result ${n}`; })")
        await page.run("document.querySelector('.calls > .edit-buttons button').click()")
        await page.until(f"{LAST}.querySelector('.text').textContent === 'done'")
        history = await page.run("sent[1].messages")
        assert [message["role"] for message in history] == ["user", "assistant", "tool", "tool"]
        assert [call["id"] for call in history[1]["tool_calls"]] == ["call_1", "call_2"]
        assert history[1]["tool_calls"][0]["function"]["arguments"] == '{"city": "<b>Oslo</b>"}'
        assert [(m["tool_call_id"], m["content"]) for m in history[2:]] == [("call_1", "result 0"), ("call_2", "result 1")]
        assert all(set(message) <= {"role", "content", "tool_calls", "tool_call_id"} for message in history)
        assert await page.run("document.querySelectorAll('.call .result').length") == 2
        assert page.errors == []

    in_browser(gateway, tmp_path, scenario)
