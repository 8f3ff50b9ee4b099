"""GET /v1/status, its live feed, /v1/about and /metrics; POST /v1/engine/load, unload and restart.

The orders are for the owner: with a key whoever has it, without one only programs and pages of this machine. Everybody
else may look. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from gateway.errors import ApiError
from gateway.metrics import CONTENT_TYPE
from gateway.monitor.status import about, recent, status
from gateway.security import Gatekeeper
from gateway.service import Service
from gateway.sse import EventStream, json_response

Json = dict[str, Any]


def error_body(error: ApiError) -> Json:
    """An error in this API's shape."""
    return {"error": {"message": error.message, "type": error.type, "code": error.code, **error.details}}


class ControlHandlers:
    """The routes of this API on one service."""

    def __init__(self, service: Service, gatekeeper: Gatekeeper) -> None:
        self._service = service
        self._gatekeeper = gatekeeper

    def routes(self) -> list[web.RouteDef]:
        """What to add to the application."""
        return [
            web.get("/v1/status", self.status),
            web.get("/v1/status/feed", self.feed),
            web.get("/v1/about", self.about),
            web.get("/metrics", self.metrics),
            web.post("/v1/engine/load", self.load),
            web.post("/v1/engine/unload", self.unload),
            web.post("/v1/engine/restart", self.restart),
        ]

    async def status(self, _: web.Request) -> web.Response:
        """One snapshot, with the last requests and log lines."""
        return json_response(status(self._service) | recent(self._service))

    async def about(self, _: web.Request) -> web.Response:
        """What does not change."""
        return json_response(await asyncio.to_thread(about, self._service))

    async def metrics(self, _: web.Request) -> web.Response:
        """For Prometheus."""
        return web.Response(body=self._service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def feed(self, request: web.Request) -> web.StreamResponse:
        """Snapshots as they come: the first with the past, each later one with what is new."""
        stream = EventStream(request)
        sampler = self._service.sampler
        news = recent(self._service)
        extra: Json = {"samples": [*sampler.samples()]}
        last_request = last_line = 0
        while True:
            last_request = news["requests"][-1]["number"] if news["requests"] else last_request
            last_line = news["log"][-1]["number"] if news["log"] else last_line
            await stream.send(status(self._service) | news | extra)
            if not await sampler.next_tick():
                return await stream.finish()
            news = recent(self._service, after_request=last_request, after_line=last_line)
            extra = {"samples": sampler.samples()[-1:]}

    async def load(self, request: web.Request) -> web.Response:
        """Load the model if it is not loaded; says at once that it has begun."""
        return await self._order(request, self._service.supervisor.load)

    async def unload(self, request: web.Request) -> web.Response:
        """End the engine; the answer comes when it is gone."""
        return await self._order(request, self._service.unload)

    async def restart(self, request: web.Request) -> web.Response:
        """End the engine and start another; the answer comes when the old one is gone."""
        return await self._order(request, self._service.restart)

    async def _order(self, request: web.Request, order: Callable[[], Awaitable[None]]) -> web.Response:
        self._gatekeeper.check_order(request.remote)
        # Shielded: an order that has begun is carried out, whether or not the client waits for it.
        await asyncio.shield(asyncio.ensure_future(order()))
        return json_response({"engine": status(self._service)["engine"]}, status=202)
