"""The model as the gateway knows it: vocabulary, template, names and defaults, read from the file's metadata.

Immutable once loaded and safe to use from worker threads; loading a large vocabulary takes a second or two.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from engine.gguf import Metadata, read_metadata
from engine.protocol import Sampling
from gateway.chat import history
from gateway.chat.request import ChatRequest, sampling_defaults
from gateway.chat.template import ChatTemplate, RenderedPrompt, TemplateError
from gateway.chat.tools import refuse_without_format
from gateway.errors import InvalidRequest
from gateway.parsing.reasoning import ThinkingTags
from gateway.parsing.tools.blocks import ToolCallParser
from gateway.parsing.tools.formats import tool_format, tool_parser
from gateway.text.pretokenize import PATTERNS
from gateway.text.tokenizer import Tokenizer
from gateway.text.vocabulary import METADATA_ARRAYS, Vocabulary, VocabularyError
from packs.manifest import ModelSource


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt ready for the engine. `thinking_opened`: the reply begins inside the thinking channel."""

    tokens: tuple[int, ...]
    thinking_opened: bool


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model."""

    name: str
    created_s: int
    tokenizer: Tokenizer
    template: ChatTemplate
    tags: ThinkingTags | None
    sampling: Sampling

    @property
    def vocabulary(self) -> Vocabulary:
        return self.tokenizer.vocabulary

    def tool_parser(self, request: ChatRequest) -> ToolCallParser | None:
        """What finds the calls in a reply; None if there are none to find."""
        read = tool_format(self.template.source)
        return tool_parser(read, request.tool_use.tools) if read is not None and request.tool_use.tools else None

    def prompt(self, request: ChatRequest, *, begun: str = "") -> Prompt:
        """Render and tokenize; slow for long histories, so call it on a worker thread. `begun`: how the reply begins."""
        rendered = self.render(request)
        tokens = self.tokenizer.encode(rendered.text, add_special=True, parse_special=True, break_mark=rendered.break_mark)
        opened = self.tags is not None and rendered.text.rstrip().endswith(self.tags.opening)
        if begun and opened:
            raise InvalidRequest("a reply that is begun cannot go on where the model has to think first", param="messages")
        return Prompt((*tokens, *self.tokenizer.encode(begun)), opened)

    def render(self, request: ChatRequest) -> RenderedPrompt:
        """The prompt as text, in the first form of the history that the template takes."""
        turns = history.as_sent(request.messages)
        if tool_format(self.template.source) is None:
            refuse_without_format(request.tool_use, turns)
        forms = [turns, history.alternating(turns), history.without_system(turns)]
        if history.has_late_system(turns) and not self.template.shows_late_system:
            del forms[0]
        refusal = ""
        for form in forms:
            try:
                return self.template.render(form, variables=request.template_variables, tools=request.tool_use.tools)
            except TemplateError as error:
                refusal = refusal or str(error)
        raise InvalidRequest(refusal, param="messages")


def check_vocabulary(source: ModelSource) -> None:
    """Refuse a file whose text we could not handle, in milliseconds; raises VocabularyError or a GGUF error."""
    metadata = read_metadata(source.model)
    model = metadata.get("tokenizer.ggml.model")
    if model is None or model in ("no_vocab", "none"):
        raise VocabularyError(
            f"{source.model} has no tokenizer ({model or 'no tokenizer.ggml.model'}): the engine can run it, the gateway cannot"
        )
    pre = metadata.get("tokenizer.ggml.pre")
    if model == "gpt2" and pre is not None and pre not in PATTERNS:
        known = ", ".join(sorted(PATTERNS))
        raise VocabularyError(f"{source.model}: tokenizer.ggml.pre {pre!r} is not known (known: {known})")


def load_model(source: ModelSource, name: str | None) -> ServedModel:
    """Read everything that the gateway needs of a model."""
    metadata = read_metadata(source.model, arrays=METADATA_ARRAYS)
    tokenizer = Tokenizer.from_metadata(metadata)
    template = ChatTemplate.from_metadata(metadata, tokenizer.vocabulary)
    return ServedModel(
        name=name or source.name,
        created_s=int(time.time()),
        tokenizer=tokenizer,
        template=template,
        tags=_thinking_tags(template, tokenizer.vocabulary),
        sampling=sampling_defaults(_scalars(metadata), source.sampling),
    )


def _thinking_tags(template: ChatTemplate, vocabulary: Vocabulary) -> ThinkingTags | None:
    """The tags, if this model family uses them: its template writes them or its vocabulary has them."""
    tags = ThinkingTags()
    known = all(tag in vocabulary.ids or tag in template.source for tag in tags)
    return tags if known else None


def _scalars(metadata: Metadata) -> dict[str, object]:
    return {key: value for key, value in metadata.items() if key.startswith("general.")}
