"""The model's chat template: Jinja text from the file, run in a sandbox.

Texts that came with a request must never turn into control tokens. So before rendering, wherever such a text spells a
special token (or could complete one together with its surroundings), a character that occurs nowhere in the request,
the break mark, is put after the token's first character. The template then works on ordinary strings (trim, split and
comparisons behave), its own markers stay whole, and the tokenizer drops the break mark once the markers are cut out.
Pure; rendering may be slow, so call it off the event loop.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from gateway.text.vocabulary import USER_DEFINED, Vocabulary

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


class TemplateError(ValueError):
    """The template refused the conversation, or failed; the text says what it said."""


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt as text. `break_mark` keeps the request's own texts from being read as special tokens."""

    text: str
    break_mark: str


class ChatTemplate:
    """One compiled template and the special tokens that it may write."""

    def __init__(self, source: str, vocabulary: Vocabulary) -> None:
        self.source = source
        self._globals = {
            "bos_token": vocabulary.text(vocabulary.bos_id),
            "eos_token": vocabulary.text(vocabulary.eos_id),
        }
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template cannot be compiled: {error}") from error
        kinds, tokens = vocabulary.kinds, vocabulary.tokens
        controls = [tokens[i] for i in vocabulary.specials if kinds[i] != USER_DEFINED]
        # A user-defined token that the template writes is structure too (<think>, <tool_call>); others are just text.
        structure = [
            tokens[i] for i in vocabulary.specials if kinds[i] == USER_DEFINED and tokens[i].strip() and tokens[i] in source
        ]
        self._break_controls = _breaker(controls)
        self._break_all = _breaker([*controls, *structure])

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> ChatTemplate:
        """The file's template; without one, ChatML if the vocabulary has its marks, else plain labelled turns."""
        source = metadata.get("tokenizer.chat_template")
        if not isinstance(source, str):
            source = CHATML if "<|im_start|>" in vocabulary.ids and "<|im_end|>" in vocabulary.ids else PLAIN
        return cls(source, vocabulary)

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> RenderedPrompt:
        """The prompt up to where the assistant's turn begins. Tools and calls are in OpenAI's shape, arguments as objects."""
        variables = dict(variables or {})
        try:
            mark = _unused_character(_strings([messages, variables, tools]))
            context = {
                **self._globals,
                "documents": None,
                **_map_strings(variables, lambda text: self._break_all(text, mark)),
                "tools": [self._guard_function(tool, "parameters", mark) for tool in tools] or None,
                "messages": [self._guard_message(message, mark) for message in messages],
                "add_generation_prompt": True,
            }
            text = self._template.render(context)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template refuses this conversation: {error}") from error
        except (TypeError, ValueError, KeyError, IndexError, ArithmeticError, RecursionError) as error:
            raise TemplateError(f"the chat template fails on this conversation: {error}") from error
        return RenderedPrompt(text, mark)

    @cached_property
    def shows_late_system(self) -> bool:
        """Whether a system message after the first turn reaches the prompt; some templates drop it without a word."""
        probe = "Vsystem7"
        turns = [("user", "a"), ("assistant", "b"), ("system", probe), ("user", "c")]
        try:
            return probe in self.render([{"role": role, "content": content} for role, content in turns]).text
        except TemplateError:
            return False

    def _guard_message(self, message: dict[str, Any], mark: str) -> dict[str, Any]:
        # The assistant's own turns may hold thinking tags, which templates look for; control tokens never.
        breaker = self._break_controls if message["role"] == "assistant" else self._break_all
        guarded = {
            key: value if key == "role" else _map_strings(value, lambda text: breaker(text, mark))
            for key, value in message.items()
            if key != "tool_calls"
        }
        if "tool_calls" in message:
            guarded["tool_calls"] = [self._guard_function(call, "arguments", mark) for call in message["tool_calls"]]
        return guarded

    def _guard_function(self, outer: dict[str, Any], free: str, mark: str) -> dict[str, Any]:
        """A tool or a call: under `free` the request may have keys of its own, which are guarded like its texts."""

        def breaker(text: str) -> str:
            return self._break_all(text, mark)

        function = {key: _map_strings(value, breaker, keys=key == free) for key, value in outer["function"].items()}
        return {
            **_map_strings({key: value for key, value in outer.items() if key != "function"}, breaker),
            "function": function,
        }


def _breaker(markers: list[str]) -> Callable[[str, str], str]:
    """A function that puts a mark inside every marker in a text, and inside what could be half a marker at its ends."""
    longest_first = sorted(set(markers), key=len, reverse=True)
    heads = {marker[:size] for marker in longest_first for size in range(1, len(marker))}
    tails = {marker[size:] for marker in longest_first for size in range(1, len(marker))}
    longest = max((len(marker) for marker in longest_first), default=0)

    def apply(text: str, mark: str) -> str:
        breaks = set()
        for marker in longest_first:
            at = text.find(marker)
            while at >= 0:
                breaks.add(at + 1)
                at = text.find(marker, at + 1)  # markers may overlap: each gets its mark
        # A text may end with a marker's beginning, or begin with a marker's end, and meet the rest in its surroundings.
        for size in range(1, min(longest, len(text) + 1)):
            if text[-size:] in heads:
                breaks.add(len(text) - size + 1)
            if text[:size] in tails:
                breaks.add(size - 1)
        if not breaks:
            return text
        pieces, last = [], 0
        for at in sorted(breaks):
            pieces.append(text[last:at])
            last = at
        pieces.append(text[last:])
        return mark.join(pieces)

    return apply


def _unused_character(texts: Iterable[str]) -> str:
    """A private-use character that none of the texts contains."""
    used: set[str] = set()
    for text in texts:
        used.update(text)
    for code in range(0x10FFFD, 0xF0000, -1):
        if chr(code) not in used:
            return chr(code)
    raise TemplateError("the conversation uses every private-use character of Unicode")


def _strings(value: Any) -> Iterator[str]:
    """Every string inside lists and mappings, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _map_strings(value: Any, change: Callable[[str], str], *, keys: bool = False) -> Any:
    """The same structure with every string changed; keys of mappings only if `keys`."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key) if keys else key: _map_strings(item, change, keys=keys) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change, keys=keys) for item in value]
    return value


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own interface)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
