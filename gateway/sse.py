"""JSON on its way out: whole responses, and server-sent events with keep-alives while there is nothing to say.

A stream's response starts late, with the first thing to say or the first keep-alive, so that an early failure still
gets its own HTTP status. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web

KEEP_ALIVE_S = 5.0
_SMALL_BYTES = 16 << 10  # always fits an empty buffer
_WRITE_TIMEOUT_S = 60.0  # a client that does not read for this long is gone

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
# Line ends to some clients' line splitters, though not to the SSE standard.
_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))

Item = TypeVar("Item")


def json_response(data: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A whole JSON response."""
    return web.Response(
        body=msgspec.json.encode(data), status=status, headers=headers, content_type="application/json", charset="utf-8"
    )


class EventStream:
    """One streaming response."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=_HEADERS)
        self.started = False

    async def send(self, data: Any, *, event: str | None = None) -> None:
        """One event with a JSON value, under a name if the API names its events."""
        encoded = msgspec.json.encode(data)
        for raw, escaped in _LINE_ENDS:
            encoded = encoded.replace(raw, escaped)
        name = b"" if event is None else b"event: " + event.encode() + b"\n"
        await self._write(name + b"data: " + encoded + b"\n\n")

    async def keep_alive(self) -> None:
        """A comment: resets timeouts on the way, and no client reads it."""
        await self._write(b": keep-alive\n\n")

    async def finish(self, *, mark: bool = True) -> web.StreamResponse:
        """The end of the response, with OpenAI's mark for it unless the API has none."""
        await self._write(b"data: [DONE]\n\n" if mark else b"")
        await self._response.write_eof()
        return self._response

    async def _write(self, data: bytes) -> None:
        transport = self._request.transport
        if self.started and len(data) < _SMALL_BYTES and transport is not None and transport.get_write_buffer_size() == 0:
            await self._response.write(data)  # nothing waits to be sent, so this does not wait either
            return
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT_S):
                if not self.started:
                    self.started = True
                    await self._response.prepare(self._request)
                await self._response.write(data)
        except TimeoutError:
            raise ConnectionResetError(f"the client read nothing for {_WRITE_TIMEOUT_S:g} s") from None


async def with_pauses(
    source: AsyncGenerator[Item, None], pause_s: float, *, first_pause_s: float | None = None
) -> AsyncGenerator[Item | None, None]:
    """The items of `source`, and None whenever it has said nothing for `pause_s`; the first None may come at another time.

    The source runs in one task of its own, ahead of a slow reader: a task for every item costs more than all our other
    work on a token.
    """
    items: deque[Item] = deque()
    news = asyncio.Event()

    async def read() -> None:
        try:
            async for item in source:
                items.append(item)
                news.set()
        finally:
            news.set()

    reader = asyncio.create_task(read())
    wait_s = pause_s if first_pause_s is None else first_pause_s
    try:
        while True:
            while items:
                wait_s = pause_s
                yield items.popleft()
            if reader.done():
                await reader  # raises what the source has raised
                return
            news.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await news.wait()
            except TimeoutError:
                wait_s = pause_s
                yield None
    finally:
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await reader
        await source.aclose()
