"""The HTTP application and its life: routes, errors as JSON, start, and a drain that is over in seconds.

`serve` is the production entry point. It turns aiohttp's handler cancellation on, which is off by default: without it a
client that goes away would leave its request running.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.aftermath import port_answers
from gateway.apis.anthropic.handlers import AnthropicHandlers
from gateway.apis.anthropic.shapes import error_body as anthropic_error
from gateway.apis.control.handlers import ControlHandlers
from gateway.apis.control.handlers import error_body as control_error
from gateway.apis.llamacpp.handlers import LlamaCppHandlers
from gateway.apis.llamacpp.shapes import error_body as llamacpp_error
from gateway.apis.openai.handlers import OpenAIHandlers
from gateway.apis.openai.shapes import error_body as openai_error
from gateway.config import GatewayConfig
from gateway.errors import ApiError, BodyTooLarge, InternalError, InvalidRequest, NotFound, Overloaded, Unavailable
from gateway.intake import take_body
from gateway.monitor.ledger import ROUTE
from gateway.security import Gatekeeper
from gateway.service import Service
from gateway.sse import json_response
from packs.manifest import ModelSource

log = logging.getLogger("gateway")

ErrorShape = Callable[[ApiError], dict[str, Any]]

MAX_BODY_BYTES = 32 << 20
_MAX_ORDER_BYTES = 64 << 10
_SPARE_REQUESTS = 64  # that may be here beside those in the queue: being read, rendered, or asking how things are
_TRY_LATER = frozenset({503, 529})  # statuses of a server that cannot serve a request now
_UI = Path(__file__).parent / "ui"

# The drain: together well under five seconds.
_FINISH_S = 1.5  # for requests in progress
_REFUSE_S = 0.5  # for telling the rest
_CANCEL_S = 0.3  # for those that cannot be told
_QUIT_S = 1.0
_TERMINATE_S = 0.7

_UI_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_HEADERS = {"Server": "terrace", "X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}


class Gateway:
    """The application around one service."""

    def __init__(self, config: GatewayConfig, source: ModelSource) -> None:
        self._config = config
        self._gatekeeper = Gatekeeper(config)
        self._active: set[asyncio.Task[object]] = set()
        self._draining = False
        self._shapes: dict[str, ErrorShape] = {}  # by route
        self._limits_bytes: dict[str, int] = {}  # of a body, by route
        self.service = Service(config, source)
        self.application = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._middleware()])
        self.application.on_response_prepare.append(self._add_headers)
        self.application.add_routes(
            [
                web.get("/", _page),
                web.get("/ui/{name}", _asset),
                web.get("/health", self._health),
                web.get("/v1/health", self._health),
            ]
        )
        # An API is its routes, its largest body, and the shape of its errors, the server's own on its paths included.
        for routes, limit_bytes, shape in (
            (OpenAIHandlers(self.service).routes(), MAX_BODY_BYTES, openai_error),
            (AnthropicHandlers(self.service).routes(), MAX_BODY_BYTES, anthropic_error),
            (LlamaCppHandlers(self.service).routes(), MAX_BODY_BYTES, llamacpp_error),
            (ControlHandlers(self.service, self._gatekeeper).routes(), _MAX_ORDER_BYTES, control_error),
        ):
            self.application.add_routes(routes)
            self._shapes.update((route.path, shape) for route in routes)
            self._limits_bytes.update((route.path, limit_bytes) for route in routes)

    @property
    def is_open_to_others(self) -> bool:
        """Whether anybody in the network may use this server."""
        return self._gatekeeper.is_open_to_others

    async def drain(self) -> None:
        """Let requests finish for a moment, end the rest with an error of their API's, then end the engine."""
        self._draining = True
        await self.service.sampler.stop()  # the feeds are endless otherwise
        if late := await self._unfinished(_FINISH_S):
            await self.service.refuse_all("the server is stopping")
            late = await self._unfinished(_REFUSE_S)
            for task in late:
                task.cancel()
            await self._unfinished(_CANCEL_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.service.client.settle(), _CANCEL_S)
        await self.service.stop(quit_s=_QUIT_S, terminate_s=_TERMINATE_S)

    async def _unfinished(self, timeout_s: float) -> set[asyncio.Task[object]]:
        """The requests that are still here after a while."""
        return (await asyncio.wait(set(self._active), timeout=timeout_s))[1] if self._active else set()

    async def _health(self, _: web.Request) -> web.Response:
        try:
            return json_response(self.service.health())
        except Unavailable as error:  # in llama.cpp's shape, with a numeric code
            body = {"code": error.status, "message": error.message, "type": error.type, **error.details}
            return json_response({"error": body}, status=error.status)

    def _middleware(self) -> Middleware:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                self._gatekeeper.check(request.method, request.path, request.headers)
                if self._draining:
                    raise Unavailable("The server is stopping", state="stopped")
                preflight = request.method == "OPTIONS"
                response = web.Response(status=204) if preflight else await self._tracked(request, handler)
            except (ApiError, web.HTTPException) as error:
                response = self._error_response(request, error)
            except (asyncio.CancelledError, ConnectionError, TimeoutError):
                raise
            except Exception:  # the last line of defence: whatever it was, the client gets JSON and the log the trace
                log.exception("%s %s failed", request.method, request.path)
                response = self._error_response(
                    request, InternalError("an internal error; the server's log has the details")
                )
            return response

        return guard

    def _error_response(self, request: web.Request, refusal: ApiError | web.HTTPException) -> web.Response:
        """The error as JSON in the shape of the API whose path it is."""
        error = refusal if isinstance(refusal, ApiError) else _as_api_error(request, refusal)
        status = error.status if isinstance(refusal, ApiError) else refusal.status
        headers = {"Retry-After": "2"} if error.status in _TRY_LATER else None
        return json_response(self._shapes.get(_route(request), openai_error)(error), status=status, headers=headers)

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(_HEADERS)
        response.headers.update(self._gatekeeper.cors_headers(request.headers.get("Origin")))

    async def _tracked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Read the body and run the handler, so that the drain knows of it."""
        task = asyncio.current_task()
        if task is None:
            return await handler(request)
        if request.body_exists and len(self._active) >= self._config.max_queue + _SPARE_REQUESTS:
            raise Overloaded(f"{len(self._active)} requests are here already")
        route = _route(request)
        ROUTE.set(route)
        self._active.add(task)
        try:
            await take_body(
                request,
                limit_bytes=self._limits_bytes.get(route, _MAX_ORDER_BYTES),
                timeout_s=self._config.client_timeout,
            )
            return await handler(request)
        finally:
            self._active.discard(task)


async def serve(config: GatewayConfig, source: ModelSource) -> None:
    """Listen, load, serve until SIGINT or SIGTERM, drain. Raises OSError if the address cannot be used."""
    gateway = Gateway(config, source)
    runner = web.AppRunner(
        gateway.application,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=0.2,
        keepalive_timeout=config.client_timeout,  # the head of a first or next request has to be here by then
    )
    await runner.setup()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    try:
        site = web.TCPSite(runner, config.host, config.port)
        await site.start()
        port = runner.addresses[0][1]
        gateway.service.start()
        if gateway.is_open_to_others:
            log.warning("anybody who reaches %s may use this server: --api-key closes it", config.host)
        with contextlib.suppress(OSError):  # a full disk behind stdout
            print(f"terrace serves {gateway.service.name} on {_address(config.host, port)}", flush=True)
        await stopping.wait()
        log.info("stopping")
        await site.stop()
        await gateway.drain()
        log.info("port %d closed: %s", port, "no" if port_answers(port) else "yes")
    finally:
        await runner.cleanup()


def _address(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _route(request: web.Request) -> str:
    """The route's pattern; a path that is no route's stands for itself."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else request.path


def _as_api_error(request: web.Request, refusal: web.HTTPException) -> ApiError:
    """aiohttp's refusals in our words."""
    match refusal:
        case web.HTTPRequestEntityTooLarge():
            return BodyTooLarge(f"the body is larger than {MAX_BODY_BYTES >> 20} MiB")
        case web.HTTPNotFound():
            return NotFound(f"there is no {request.method} {request.path}")
        case web.HTTPMethodNotAllowed():
            return InvalidRequest(f"{request.path} takes {', '.join(sorted(refusal.allowed_methods))}")
    return InvalidRequest(refusal.reason)


async def _page(_: web.Request) -> web.FileResponse:
    return web.FileResponse(_UI / "index.html", headers=_UI_HEADERS)


async def _asset(request: web.Request) -> web.FileResponse:
    file = _UI / request.match_info["name"]
    if file.parent != _UI or file.suffix not in (".js", ".css", ".svg") or not file.is_file():
        raise web.HTTPNotFound
    return web.FileResponse(file, headers=_UI_HEADERS)
