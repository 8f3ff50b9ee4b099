"""POST /v1/messages, streamed or whole, and POST /v1/messages/count_tokens.

A request is checked, rendered and measured against the context before the first byte of a stream goes out, and refusals
that come at once still get their status. After that the stream begins without waiting for the model, and pings tell that
it lives. A client that goes away cancels its handler, and with it the engine's work.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from aiohttp import web

from engine.protocol import MAX_INT, Gen
from gateway.apis.anthropic.request import MessagesRequest, parse_messages
from gateway.apis.anthropic.shapes import EventWriter, error_body, folded, in_own_words
from gateway.errors import ApiError, ContextLengthExceeded, InternalError
from gateway.events import Finished, PromptProgress, ReplyEvent, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from gateway.model import Prompt, ServedModel
from gateway.reply import ReplyAssembler, stream_reply
from gateway.service import Service
from gateway.sse import KEEP_ALIVE_S, EventStream, json_response, with_pauses

log = logging.getLogger("gateway.anthropic")

_FIRST_PAUSE_S = 0.2  # how long a refusal may take to still get its own status

Json = dict[str, Any]


class AnthropicHandlers:
    """The routes of this API on one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        """What to add to the application."""
        return [
            web.post("/v1/messages", self.messages),
            web.post("/v1/messages/count_tokens", self.count_tokens),
        ]

    async def count_tokens(self, request: web.Request) -> web.Response:
        """The exact length of the prompt that the engine would get."""
        body = await request.read()
        with _own_words():
            model = self._service.model()
            wanted = parse_messages(body, model.sampling, counting=True)
            prompt = await asyncio.to_thread(model.prompt, wanted.chat, begun=wanted.begun)
        return json_response({"input_tokens": len(prompt.tokens)})

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """One message."""
        body = await request.read()
        with _own_words():
            model = self._service.model()
            wanted = parse_messages(body, model.sampling)
            process = await self._service.supervisor.engine()
            prompt = await asyncio.to_thread(model.prompt, wanted.chat, begun=wanted.begun)
            if len(prompt.tokens) >= process.max_context:
                raise ContextLengthExceeded(len(prompt.tokens), process.max_context)
            writer = EventWriter(
                message_id=f"msg_{uuid.uuid4().hex}",
                model=wanted.chat.model or model.name,
                prompt_tokens=len(prompt.tokens),
                shows_thinking=wanted.shows_thinking,
                tool_use=wanted.chat.tool_use,
            )
            events = self._events(wanted, model, prompt, process.stop_ids)
            if wanted.chat.stream:
                return await _stream(request, writer, events)
            return json_response(folded([event async for event in _whole(writer, events)]))

    def _events(
        self, wanted: MessagesRequest, model: ServedModel, prompt: Prompt, stop_ids: frozenset[int]
    ) -> AsyncGenerator[ReplyEvent, None]:
        chat = wanted.chat
        assembler = ReplyAssembler(
            model.vocabulary,
            stops=chat.stops,
            stop_ids=stop_ids,
            tags=model.tags,
            thinking_opened=prompt.thinking_opened,
            tools=model.tool_parser(chat),
            one_call=not chat.tool_use.parallel,
        )
        max_new = MAX_INT if chat.max_tokens is None else min(chat.max_tokens, MAX_INT)
        gen = Gen(max_new=max_new, tokens=prompt.tokens, sampling=chat.sampling)
        return stream_reply(self._service.client, gen, assembler)


@contextmanager
def _own_words() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise in_own_words(error) from None


def _written(writer: EventWriter, event: ReplyEvent) -> list[Json]:
    """What an event of the reply means in this API."""
    match event:
        case TextDelta():
            return writer.text(event)
        case ToolCallStart():
            return writer.call(event.id, event.name)
        case ToolCallArguments():
            return writer.arguments(event.text)
        case Finished():
            writer.tool_use.check(writer.called)
            return writer.finish(event)
        case PromptProgress() | ToolCallEnd():
            return []
    return []


async def _whole(writer: EventWriter, events: AsyncGenerator[ReplyEvent, None]) -> AsyncGenerator[Json, None]:
    for written in writer.start():
        yield written
    async with aclosing(events):
        async for event in events:
            for written in _written(writer, event):
                yield written


async def _stream(
    request: web.Request, writer: EventWriter, events: AsyncGenerator[ReplyEvent, None]
) -> web.StreamResponse:
    stream = EventStream(request)

    async def send(written: list[Json]) -> None:
        for event in written:
            await stream.send(event, event=event["type"])

    try:
        async with aclosing(with_pauses(events, KEEP_ALIVE_S, first_pause_s=_FIRST_PAUSE_S)) as paced:
            async for event in paced:
                if not stream.started:
                    await send(writer.start())
                if event is None or isinstance(event, PromptProgress):
                    await send([{"type": "ping"}])
                else:
                    await send(_written(writer, event))
    except ApiError as error:
        if not stream.started:
            raise
        await send([error_body(in_own_words(error))])
    except ConnectionError:
        raise
    except Exception:  # the status is sent: the stream itself has to say that something broke
        if not stream.started:
            raise
        log.exception("a stream broke off")
        await send([error_body(InternalError("an internal error; the server's log has the details"))])
    return await stream.finish(mark=False)
