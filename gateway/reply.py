"""From the engine's tokens to a reply: bytes to text, thinking, answer and tool calls apart, stop strings found.

`ReplyAssembler` is pure and does the work; `stream_reply` drives it with a run of the engine. Stop strings are looked
for in the answer's text only: one like "\\n\\n" must end neither the model's thinking nor a call.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterator

from engine.protocol import Done, Gen, Progress, TokenLine
from gateway.engine_client import EngineClient
from gateway.events import (
    Finished,
    FinishReason,
    PromptProgress,
    ReplyEvent,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallEvent,
    ToolCallStart,
)
from gateway.parsing.reasoning import Channel, Piece, ReasoningParser, ThinkingTags
from gateway.parsing.tools.blocks import CLOSING, OPENING, Call, ToolCallParser
from gateway.text.detokenizer import Detokenizer
from gateway.text.stops import StopFilter
from gateway.text.vocabulary import Vocabulary


class ReplyAssembler:
    """One reply. Feed token lines; read `ended` to know that nothing more is wanted.

    `tools` None: calls are text. `one_call`: the reply ends with its first call.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        stops: tuple[str, ...],
        stop_ids: frozenset[int],
        tags: ThinkingTags | None,
        thinking_opened: bool,
        tools: ToolCallParser | None = None,
        one_call: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._stop_ids = stop_ids
        shown = (*(tags or ()), *((OPENING, CLOSING) if tools is not None else ()))
        visible = [vocabulary.ids[tag] for tag in shown if tag in vocabulary.ids]
        self._detokenizer = Detokenizer(vocabulary, visible=visible)
        self._parser = ReasoningParser(tags, opened=thinking_opened)
        self._tools = tools
        self._one_call = one_call
        self._calls = 0
        self._stop_texts = stops
        self._stops = StopFilter(stops)
        self._logprobs: list[TokenLogprob] = []
        self.tokens = 0  # seen so far, end-of-turn token included

    @property
    def stop_hit(self) -> str | None:
        """The stop string that was found."""
        return self._stops.hit

    @property
    def ended(self) -> bool:
        """Whether the reply is over, whatever else the model would say."""
        return self.stop_hit is not None or (self._one_call and self._calls > 0)

    def feed(self, line: TokenLine) -> list[TextDelta | ToolCallEvent]:
        """What is certain with this token."""
        if self.ended:
            return []
        self.tokens += 1
        if line.token in self._stop_ids:
            return []
        if line.logprob is not None and self._parser.in_content:
            self._logprobs.append(self._logprob(line))
        pieces = self._parser.feed(self._detokenizer.feed(line.token))
        if not self._parser.in_content:
            self._logprobs.clear()  # what looked like the answer's beginning was the opening tag
        return self._deltas(pieces)

    def finish(self) -> list[TextDelta | ToolCallEvent]:
        """The reply has ended: everything that was held back."""
        pieces = [*self._parser.feed(self._detokenizer.finish()), *self._parser.finish()]
        deltas = self._deltas(pieces)
        if self._tools is not None:
            deltas.extend(self._answer(self._tools.finish()))
        tail = self._stops.finish()
        if tail or self._logprobs:
            deltas.append(self._delta(Channel.CONTENT, tail))
        return deltas

    def _deltas(self, pieces: list[Piece]) -> list[TextDelta | ToolCallEvent]:
        deltas: list[TextDelta | ToolCallEvent] = []
        for channel, text in pieces:
            if channel is Channel.CONTENT:
                deltas.extend(self._answer([text] if self._tools is None else self._tools.feed(text)))
            else:
                deltas.append(self._delta(channel, text))
        return deltas

    def _answer(self, found: list[str | Call]) -> Iterator[TextDelta | ToolCallEvent]:
        for item in found:
            if self.ended:
                return
            if isinstance(item, Call):
                yield from self._call(item)
            elif certain := self._stops.feed(item):
                yield self._delta(Channel.CONTENT, certain)

    def _call(self, call: Call) -> Iterator[TextDelta | ToolCallEvent]:
        if tail := self._stops.finish():  # no stop string reaches over a call
            yield self._delta(Channel.CONTENT, tail)
        self._stops = StopFilter(self._stop_texts)
        self._logprobs.clear()  # those of the call's own tokens
        index, self._calls = self._calls, self._calls + 1
        yield ToolCallStart(index, f"call_{uuid.uuid4().hex}", call.name)
        yield ToolCallArguments(index, call.arguments)
        yield ToolCallEnd(index)

    def _delta(self, channel: Channel, text: str) -> TextDelta:
        if channel is not Channel.CONTENT:
            return TextDelta(channel, text)
        logprobs, self._logprobs = tuple(self._logprobs), []
        return TextDelta(channel, text, logprobs)

    def _logprob(self, line: TokenLine) -> TokenLogprob:
        alternatives = tuple(self._named(token, logprob) for token, logprob in line.top)
        named = self._named(line.token, line.logprob or 0.0)
        return TokenLogprob(named.text, named.data, named.logprob, alternatives)

    def _named(self, token: int, logprob: float) -> TokenLogprob:
        data = self._vocabulary.token_bytes(token)
        if not data and 0 <= token < len(self._vocabulary.tokens):
            data = self._vocabulary.tokens[token].encode()  # a control token has a name, if no text
        return TokenLogprob(data.decode("utf-8", "replace"), data, logprob)


async def stream_reply(client: EngineClient, gen: Gen, assembler: ReplyAssembler) -> AsyncGenerator[ReplyEvent, None]:
    """Run a request. Ends with Finished; raises ApiError. Closing the iterator early stops the engine's work."""
    async with client.run(gen) as run:
        async for event in run:
            match event:
                case Progress():
                    yield PromptProgress(event.done, event.total)
                case TokenLine():
                    for delta in assembler.feed(event):
                        yield delta
                    if assembler.ended:
                        await run.stop(keep=assembler.tokens)
                case Done():
                    for delta in assembler.finish():
                        yield delta
                    yield _finished(event, assembler)


def _finished(done: Done, assembler: ReplyAssembler) -> Finished:
    # A cancel that we asked for because of a stop string or a call is a stop; nobody else cancels and still reads.
    reason: FinishReason = "length" if done.finish == "length" and not assembler.ended else "stop"
    return Finished(
        reason=reason,
        stop=assembler.stop_hit,
        prompt_tokens=done.prompt,
        cached_tokens=done.reused,
        completion_tokens=assembler.tokens,
        timings=Timings.of(done),
    )
