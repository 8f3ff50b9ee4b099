"""The body of a request on its way in: whole, in time, and no larger than its API allows. Runs on the event loop.

Handlers find it in memory afterwards, so none of them has to think of clients that send slowly or without end.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from gateway.errors import BodyTooLarge, RequestTimeout


async def take_body(request: web.Request, *, limit_bytes: int, timeout_s: float) -> None:
    """Read the body; raises BodyTooLarge, before anything is read if its length is announced, or RequestTimeout."""
    announced = request.content_length
    if announced is None or announced <= limit_bytes:
        try:
            async with asyncio.timeout(timeout_s):
                announced = len(await request.read())
        except TimeoutError:
            raise RequestTimeout(f"the body did not arrive within {timeout_s:g} s (--client-timeout)") from None
    if announced > limit_bytes:
        raise BodyTooLarge(f"the body is larger than {_size(limit_bytes)}, the most for this address")


def _size(limit_bytes: int) -> str:
    return f"{limit_bytes >> 20} MiB" if limit_bytes >= 1 << 20 else f"{limit_bytes >> 10} KiB"
