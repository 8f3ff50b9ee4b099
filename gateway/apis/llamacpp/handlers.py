"""The routes of llama.cpp's native API on one service: completions, infill, tokens, templates, properties, slots.

A request is checked, tokenized and measured against the context before the first byte of a stream goes out. Several
prompts in one body are completed one after the other, in their order. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

from aiohttp import web

from engine.protocol import Gen
from gateway.apis.llamacpp.completion import (
    Completed,
    CompletionAssembler,
    CompletionEvent,
    Piece,
    Progressed,
    stream_completion,
)
from gateway.apis.llamacpp.infill import infill_prompt, infill_tokens, parse_infill
from gateway.apis.llamacpp.request import Completion, encode_parts, parse_completion
from gateway.apis.llamacpp.shapes import CompletionWriter, default_settings, error_body, slot
from gateway.apis.llamacpp.tokens import detokenized, parse_detokenize, parse_tokenize, tokenized
from gateway.chat.request import parse_chat_request
from gateway.errors import ApiError, ContextLengthExceeded, InternalError, InvalidRequest, NotSupported, Overloaded
from gateway.model import ServedModel
from gateway.service import Service
from gateway.sse import EventStream, json_response, with_pauses
from gateway.text.tokenizer import Tokenizer

log = logging.getLogger("gateway.llamacpp")


class _Prompt(NamedTuple):
    """A prompt as ids, and as the text that they stand for."""

    ids: list[int]
    text: str


_Job = tuple[CompletionWriter, AsyncGenerator[CompletionEvent, None]]


class LlamaCppHandlers:
    """The routes of this API on one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        """What to add to the application."""
        return [
            web.post("/completion", self.completion),
            web.post("/completions", self.completion),
            web.post("/infill", self.infill),
            web.post("/tokenize", self.tokenize),
            web.post("/detokenize", self.detokenize),
            web.post("/apply-template", self.apply_template),
            web.get("/props", self.props),
            web.get("/v1/props", self.props),
            web.post("/props", self.change_props),
            web.get("/slots", self.slots),
            web.post("/slots/{slot}", self.slot_action),
        ]

    async def completion(self, request: web.Request) -> web.StreamResponse:
        """POST /completion: text from text, no template."""
        body = await request.read()
        model = self._service.model()
        completion = parse_completion(body, model.sampling)
        return await self._complete(request, completion, await asyncio.to_thread(_encode, completion, model.tokenizer))

    async def infill(self, request: web.Request) -> web.StreamResponse:
        """POST /infill: the middle between two texts."""
        body = await request.read()
        model = self._service.model()
        infill_tokens(model.vocabulary)  # a model that cannot says so, whatever the body
        infill = parse_infill(body, model.sampling)
        process = await self._service.supervisor.engine()
        ids = await asyncio.to_thread(infill_prompt, infill, model.tokenizer, context=process.max_context)
        return await self._complete(request, infill.completion, [_Prompt(ids, model.tokenizer.decode(ids))])

    async def tokenize(self, request: web.Request) -> web.Response:
        """POST /tokenize: ids of a text, with their pieces if wanted."""
        wanted = parse_tokenize(await request.read())
        return json_response(await asyncio.to_thread(tokenized, wanted, self._service.model().tokenizer))

    async def detokenize(self, request: web.Request) -> web.Response:
        """POST /detokenize: the text of ids."""
        ids = parse_detokenize(await request.read())
        return json_response(await asyncio.to_thread(detokenized, ids, self._service.model().tokenizer))

    async def apply_template(self, request: web.Request) -> web.Response:
        """POST /apply-template: the prompt of a chat as text."""
        body = await request.read()
        model = self._service.model()
        chat = parse_chat_request(body, model.sampling)
        rendered = await asyncio.to_thread(model.render, chat)
        return json_response({"prompt": rendered.text.replace(rendered.break_mark, "")})

    async def props(self, _: web.Request) -> web.Response:
        """GET /props: the model and what a request gets that says nothing."""
        model = self._service.model()
        process = self._service.supervisor.ready_engine()
        vocabulary = model.vocabulary
        return json_response(
            {
                "default_generation_settings": {
                    "n_ctx": process.max_context,
                    "params": default_settings(model.sampling),
                },
                "total_slots": 1,
                "model_alias": model.name,
                "model_path": str(self._service.source.model),
                "modalities": {"vision": False, "video": False, "audio": False},
                "endpoint_slots": True,
                "endpoint_props": False,
                "endpoint_metrics": True,
                "chat_template": model.template.source,
                "bos_token": vocabulary.text(vocabulary.bos_id),
                "eos_token": vocabulary.text(vocabulary.eos_id),
                "build_info": f"terrace-{process.info.get('engine', '')}",
                "is_sleeping": False,
            }
        )

    async def change_props(self, _: web.Request) -> web.Response:
        """POST /props: properties do not change while the server runs."""
        raise NotSupported("this server's properties cannot be changed while it runs")

    async def slots(self, request: web.Request) -> web.Response:
        """GET /slots: the one slot, and what it is doing."""
        process = self._service.supervisor.ready_engine()
        running = self._service.ledger.running()
        if running is not None and request.query.get("fail_on_no_slot") == "1":
            raise Overloaded("no slot is available")
        return json_response([slot(process.max_context, running)])

    async def slot_action(self, _: web.Request) -> web.Response:
        """POST /slots/N?action=…: the engine keeps its prompt cache itself."""
        raise NotSupported("slots cannot be saved, restored or erased: the engine looks after its prompt cache itself")

    async def _complete(self, request: web.Request, completion: Completion, prompts: list[_Prompt]) -> web.StreamResponse:
        model = self._service.model()
        process = await self._service.supervisor.engine()
        for index, prompt in enumerate(prompts):
            if not prompt.ids:
                path = "prompt" if len(prompts) == 1 else f"prompt[{index}]"
                raise InvalidRequest(f"{path} has no tokens", param=path)
            if len(prompt.ids) >= process.max_context:
                raise ContextLengthExceeded(len(prompt.ids), process.max_context)
        jobs = [self._job(completion, model, prompt, index, process.stop_ids) for index, prompt in enumerate(prompts)]
        if completion.stream:
            return await self._stream(request, completion, jobs)
        ends = [await _whole(*job) for job in jobs]
        return json_response(ends if len(ends) > 1 else ends[0])

    def _job(
        self, completion: Completion, model: ServedModel, prompt: _Prompt, index: int, stop_ids: frozenset[int]
    ) -> _Job:
        writer = CompletionWriter(
            completion,
            model.vocabulary,
            index=index,
            model=model.name,
            prompt=prompt.text,
            prompt_tokens=len(prompt.ids),
        )
        assembler = CompletionAssembler(
            model.vocabulary,
            stops=completion.stops,
            stop_ids=frozenset() if completion.ignore_eos else stop_ids,
            indent=completion.indent,
        )
        gen = Gen(
            max_new=completion.max_new,
            tokens=tuple(prompt.ids),
            sampling=completion.sampling,
            logprobs=completion.logprobs,
            cache=completion.cache,
            ignore_eos=completion.ignore_eos,
        )
        events = stream_completion(self._service.client, gen, assembler, time_limit_ms=completion.time_limit_ms)
        return writer, events

    async def _stream(self, request: web.Request, completion: Completion, jobs: list[_Job]) -> web.StreamResponse:
        stream = EventStream(request)
        try:
            for writer, events in jobs:
                await _stream_one(stream, completion, writer, events)
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
        return await stream.finish(mark=False)


async def _whole(writer: CompletionWriter, events: AsyncGenerator[CompletionEvent, None]) -> dict[str, Any]:
    async with aclosing(events):
        async for event in events:
            match event:
                case Piece():
                    writer.add(event)
                case Completed():
                    return writer.end(event)
    raise InternalError("the completion ended without its last event")


async def _stream_one(
    stream: EventStream, completion: Completion, writer: CompletionWriter, events: AsyncGenerator[CompletionEvent, None]
) -> None:
    async with aclosing(with_pauses(events, completion.ping_s)) as paced:
        async for event in paced:
            match event:
                case Piece():
                    await stream.send(writer.piece(event))
                case Completed():
                    await stream.send(writer.end(event))
                case Progressed() if completion.return_progress:
                    await stream.send(writer.progress(event))
                case _ if math.isfinite(completion.ping_s):
                    await stream.keep_alive()


def _encode(completion: Completion, tokenizer: Tokenizer) -> list[_Prompt]:
    many = len(completion.prompts) > 1
    prompts = []
    for index, parts in enumerate(completion.prompts):
        path = f"prompt[{index}]" if many else "prompt"
        ids = encode_parts(parts, tokenizer, path=path, add_special=True, parse_special=True)
        prompts.append(_Prompt(ids, tokenizer.decode(ids)))
    return prompts
