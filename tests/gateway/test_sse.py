"""Pauses in a stream: every item in order, a None when nothing comes, errors in their place, nothing left running."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from gateway import sse
from gateway.sse import EventStream, with_pauses


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scenario, 10)
        assert asyncio.all_tasks() <= {asyncio.current_task()}

    asyncio.run(main())


class Source:
    """Numbers with a pause (None = at once) before each; then an error, if there is one."""

    def __init__(self, pauses_s: list[float | None], error: Exception | None = None) -> None:
        self.pauses_s, self.error = pauses_s, error
        self.closed = False

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for number, pause_s in enumerate(self.pauses_s):
                if pause_s is not None:
                    await asyncio.sleep(pause_s)
                yield number
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


def test_all_items_in_order() -> None:
    async def scenario() -> None:
        source = Source([None, None, 0, None, 0.01, None, 0])
        assert [item async for item in with_pauses(source.items(), 5.0)] == list(range(7))
        assert source.closed

    run(scenario())


def test_a_pause_is_said_once_for_every_interval() -> None:
    async def scenario() -> None:
        source = Source([None, 0.25, None])
        seen = [item async for item in with_pauses(source.items(), 0.1)]
        assert seen == [0, None, None, 1, 2]
        source = Source([0.3, None])
        seen = [item async for item in with_pauses(source.items(), 5.0, first_pause_s=0.05)]
        assert seen == [None, 0, 1]

    run(scenario())


def test_an_error_comes_behind_the_items_before_it() -> None:
    async def scenario() -> None:
        seen: list[int | None] = []
        with pytest.raises(ValueError, match="broken"):
            async for item in with_pauses(Source([None, 0, None], ValueError("broken")).items(), 5.0):
                seen.append(item)
        assert seen == [0, 1, 2]

    run(scenario())


@pytest.mark.parametrize("pauses_s", [[None, 60.0], [None, None, None], [60.0]])
def test_a_reader_that_leaves_closes_the_source(pauses_s: list[float | None]) -> None:
    async def scenario() -> None:
        source = Source(pauses_s)
        async with aclosing(with_pauses(source.items(), 0.05)) as paced:
            async for _ in paced:
                break
        assert source.closed

    run(scenario())


def test_a_reader_that_is_cancelled_closes_the_source() -> None:
    async def scenario() -> None:
        source = Source([None, 60.0])

        async def consume() -> None:
            async with aclosing(with_pauses(source.items(), 30.0)) as paced:
                async for _ in paced:
                    pass

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert source.closed

    run(scenario())


@pytest.mark.parametrize("event_chars", [100, 300_000])
def test_a_client_that_does_not_read_counts_as_gone(monkeypatch: pytest.MonkeyPatch, event_chars: int) -> None:
    monkeypatch.setattr(sse, "_WRITE_TIMEOUT_S", 0.3)
    ended = asyncio.Event()

    async def talk(request: web.Request) -> web.StreamResponse:
        stream = EventStream(request)
        with pytest.raises(ConnectionResetError, match="read nothing"):
            for _ in range(1_000_000):
                await stream.send("x" * event_chars)
        ended.set()
        raise ConnectionResetError

    async def scenario() -> None:
        application = web.Application()
        application.router.add_get("/", talk)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        with socket.create_connection(runner.addresses[0]) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await ended.wait()
        await runner.cleanup()

    asyncio.run(asyncio.wait_for(scenario(), 30))
