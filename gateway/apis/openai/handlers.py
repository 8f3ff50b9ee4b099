"""POST /v1/chat/completions, streamed or whole, and GET /v1/models.

A request is checked, rendered and measured against the context before the first byte of a stream goes out. A client
that goes away cancels its handler, and with it the engine's work.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from aiohttp import web

from engine.protocol import Gen
from gateway.apis.openai.shapes import ChunkWriter, ReplyWriter, error_body
from gateway.chat.request import ChatRequest, parse_chat_request
from gateway.errors import ApiError, ContextLengthExceeded, InternalError
from gateway.events import Finished, PromptProgress, ReplyEvent, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from gateway.model import Prompt, ServedModel
from gateway.reply import ReplyAssembler, stream_reply
from gateway.service import Service
from gateway.sse import KEEP_ALIVE_S, EventStream, json_response, with_pauses

log = logging.getLogger("gateway.openai")

# Stands for "as far as the context goes": the engine ends a reply where its context ends.
_NO_LIMIT = 2**31 - 1


class OpenAIHandlers:
    """The routes of this API on one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        """What to add to the application."""
        return [
            web.post("/v1/chat/completions", self.chat_completions),
            web.post("/chat/completions", self.chat_completions),
            web.get("/v1/models", self.models),
            web.get("/models", self.models),
        ]

    async def models(self, _: web.Request) -> web.Response:
        """The one model that is served; 503 while it is not."""
        model = self._service.model()
        process = await self._service.supervisor.engine()
        entry = {
            "id": model.name,
            "object": "model",
            "created": model.created_s,
            "owned_by": "terrace",
            "meta": {"n_ctx": process.max_context, "n_vocab": len(model.vocabulary.tokens)},
        }
        return json_response({"object": "list", "data": [entry]})

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """One chat request."""
        body = await request.read()
        model = self._service.model()
        chat = parse_chat_request(body, model.sampling)
        process = await self._service.supervisor.engine()
        prompt = await asyncio.to_thread(model.prompt, chat)
        if len(prompt.tokens) >= process.max_context:
            raise ContextLengthExceeded(len(prompt.tokens), process.max_context)
        assembler = ReplyAssembler(
            model.vocabulary,
            stops=chat.stops,
            stop_ids=process.stop_ids,
            tags=model.tags,
            thinking_opened=prompt.thinking_opened,
            tools=model.tool_parser(chat),
            one_call=not chat.tool_use.parallel,
        )
        events = stream_reply(self._service.client, _gen(chat, prompt), assembler)
        if chat.stream:
            return await self._stream(request, chat, model, events)
        return await self._whole(chat, model, events)

    async def _whole(self, chat: ChatRequest, model: ServedModel, events: AsyncGenerator[ReplyEvent, None]) -> web.Response:
        writer = ReplyWriter(
            reply_id=_new_id(),
            created_s=int(time.time()),
            model=chat.model or model.name,
            with_logprobs=chat.top_logprobs is not None,
        )
        async with aclosing(events):
            async for event in events:
                match event:
                    case TextDelta():
                        writer.add(event)
                    case ToolCallStart() | ToolCallArguments():
                        writer.add_call(event)
                    case Finished():
                        chat.tool_use.check(writer.called)
                        return json_response(writer.whole(event))
        raise InternalError("the reply ended without its last event")

    async def _stream(
        self, request: web.Request, chat: ChatRequest, model: ServedModel, events: AsyncGenerator[ReplyEvent, None]
    ) -> web.StreamResponse:
        writer = ChunkWriter(
            reply_id=_new_id(),
            created_s=int(time.time()),
            model=chat.model or model.name,
            include_usage=chat.include_usage,
        )
        stream = EventStream(request)
        try:
            async with aclosing(with_pauses(events, KEEP_ALIVE_S)) as paced:
                async for event in paced:
                    match event:
                        case TextDelta():
                            await stream.send(writer.text(event))
                        case ToolCallStart() | ToolCallArguments():
                            await stream.send(writer.call(event))
                        case Finished():
                            chat.tool_use.check(writer.called)
                            await stream.send(writer.finish(event))
                            for chunk in writer.usage(event):
                                await stream.send(chunk)
                        case ToolCallEnd():
                            pass  # the next index, or the finish, says so
                        case PromptProgress() | None:
                            await stream.keep_alive()
        except ApiError as error:
            if not stream.started:
                raise
            await stream.send(error_body(error))
        except ConnectionError:
            raise
        except Exception:  # the status is sent: the stream itself has to say that something broke
            if not stream.started:
                raise
            log.exception("a stream broke off")
            await stream.send(error_body(InternalError("an internal error; the server's log has the details")))
        return await stream.finish()


def _gen(chat: ChatRequest, prompt: Prompt) -> Gen:
    return Gen(
        max_new=_NO_LIMIT if chat.max_tokens is None else min(chat.max_tokens, _NO_LIMIT),
        tokens=prompt.tokens,
        sampling=chat.sampling,
        logprobs=chat.top_logprobs,
    )


def _new_id() -> str:
    return f"chatcmpl-{uuid.uuid4().hex}"
