"""JSON on its way out: whole responses, and server-sent events with keep-alives while there is nothing to say.

A stream's response starts late, with the first thing to say or the first keep-alive, so that an early failure still
gets its own HTTP status. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web

KEEP_ALIVE_S = 5.0
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
    """The items of `source`, and None whenever it has said nothing for `pause_s`; the first None may come at another time."""
    pending: asyncio.Task[Item] | None = None
    wait_s = pause_s if first_pause_s is None else first_pause_s
    try:
        while True:
            if pending is None:
                pending = asyncio.ensure_future(anext(source))
            done, _ = await asyncio.wait({pending}, timeout=wait_s)
            wait_s = pause_s
            if not done:
                yield None
                continue
            task, pending = pending, None
            try:
                item = task.result()
            except StopAsyncIteration:
                return
            yield item
    finally:
        if pending is not None:
            pending.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
                await pending
        await source.aclose()
