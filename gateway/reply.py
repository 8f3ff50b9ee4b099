"""From the engine's tokens to a reply: bytes to text, thinking and answer apart, stop strings found.

`ReplyAssembler` is pure and does the work; `stream_reply` drives it with a run of the engine. Stop strings are looked
for in the answer only: one like "\\n\\n" must not end the model's thinking.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from engine.protocol import Done, Gen, Progress, TokenLine
from gateway.engine_client import EngineClient
from gateway.events import Finished, FinishReason, PromptProgress, ReplyEvent, TextDelta, Timings, TokenLogprob
from gateway.parsing.reasoning import Channel, Piece, ReasoningParser, ThinkingTags
from gateway.text.detokenizer import Detokenizer
from gateway.text.stops import StopFilter
from gateway.text.vocabulary import Vocabulary


class ReplyAssembler:
    """One reply. Feed token lines; read `stop_hit` to know that nothing more is wanted."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        stops: tuple[str, ...],
        stop_ids: frozenset[int],
        tags: ThinkingTags | None,
        thinking_opened: bool,
    ) -> None:
        self._vocabulary = vocabulary
        self._stop_ids = stop_ids
        visible = [vocabulary.ids[tag] for tag in tags or () if tag in vocabulary.ids]
        self._detokenizer = Detokenizer(vocabulary, visible=visible)
        self._parser = ReasoningParser(tags, opened=thinking_opened)
        self._stops = StopFilter(stops)
        self._logprobs: list[TokenLogprob] = []
        self.tokens = 0  # seen so far, end-of-turn token included

    @property
    def stop_hit(self) -> str | None:
        """The stop string that was found."""
        return self._stops.hit

    def feed(self, line: TokenLine) -> list[TextDelta]:
        """The text that is certain with this token."""
        if self.stop_hit is not None:
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

    def finish(self) -> list[TextDelta]:
        """The reply has ended: everything that was held back."""
        pieces = [*self._parser.feed(self._detokenizer.finish()), *self._parser.finish()]
        deltas = self._deltas(pieces)
        tail = self._stops.finish()
        if tail or self._logprobs:
            deltas.append(self._delta(Channel.CONTENT, tail))
        return deltas

    def _deltas(self, pieces: list[Piece]) -> list[TextDelta]:
        deltas = []
        for channel, text in pieces:
            certain = self._stops.feed(text) if channel is Channel.CONTENT else text
            if certain:
                deltas.append(self._delta(channel, certain))
        return deltas

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
                    if assembler.stop_hit is not None:
                        await run.stop(keep=assembler.tokens)
                case Done():
                    for delta in assembler.finish():
                        yield delta
                    yield _finished(event, assembler)


def _finished(done: Done, assembler: ReplyAssembler) -> Finished:
    # A cancel that we asked for because of a stop string is a stop; nobody else cancels and still reads.
    reason: FinishReason = "length" if done.finish == "length" and assembler.stop_hit is None else "stop"
    return Finished(
        reason=reason,
        stop=assembler.stop_hit,
        prompt_tokens=done.prompt,
        cached_tokens=done.reused,
        completion_tokens=assembler.tokens,
        timings=Timings.of(done),
    )
