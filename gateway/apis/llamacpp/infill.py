"""POST /infill: a prompt for the middle of a text, from the vocabulary's fill-in-the-middle tokens.

The order is the one that code models are trained with: other files, what comes before, what comes after, the middle. A
context that is too long loses the beginning of what comes before and the end of what comes after. Pure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from engine.protocol import Sampling
from gateway.apis.llamacpp.request import (
    NO_LIMIT,
    Completion,
    CompletionBody,
    completion_of,
    encode_parts,
    prompt_parts,
)
from gateway.bodies import decode_body
from gateway.errors import InvalidRequest, NotSupported
from gateway.text.tokenizer import Tokenizer
from gateway.text.vocabulary import Vocabulary

_PREFIX_SHARE = 0.75  # of what is left for the two sides, when both are too long
_REPOSITORY = "repository\n"
_THIS_FILE = "this_file\n"
_BETWEEN_FILES = "\n\n"

# Where a file names its tokens.
_KEYS = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "repository": ("fim_rep_token_id",),
    "file": ("fim_sep_token_id",),
}
# What families call them when it does not, one family a row.
_FAMILIES = (
    {
        "prefix": "<|fim_prefix|>",
        "suffix": "<|fim_suffix|>",
        "middle": "<|fim_middle|>",
        "repository": "<|repo_name|>",
        "file": "<|file_sep|>",
    },
    {"prefix": "<fim_prefix>", "suffix": "<fim_suffix>", "middle": "<fim_middle>", "repository": "<reponame>"},
    {"prefix": "<fim-prefix>", "suffix": "<fim-suffix>", "middle": "<fim-middle>", "repository": "<fim-repo>"},
    {"prefix": "<｜fim▁begin｜>", "suffix": "<｜fim▁hole｜>", "middle": "<｜fim▁end｜>"},
    {"prefix": "<|code_prefix|>", "suffix": "<|code_suffix|>", "middle": "<|code_middle|>"},
    {"prefix": "<|prefix|>", "suffix": "<|suffix|>", "middle": "<|middle|>"},
    {"prefix": "▁<PRE>", "suffix": "▁<SUF>", "middle": "▁<MID>"},
    {"prefix": "<PRE>", "suffix": "<SUF>", "middle": "<MID>"},
)


class InfillTokens(NamedTuple):
    """The ids; without the last two, other files are put in front as plain text."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None
    file: int | None


class OtherFile(msgspec.Struct):
    """A file that the text may refer to."""

    text: str
    filename: str = "other_file"


class InfillBody(CompletionBody):
    """The JSON body: that of a completion, and the two sides."""

    input_prefix: str | list[Any] | None = None
    input_suffix: str | list[Any] | None = None
    input_extra: list[OtherFile] | None = None


class Infill(NamedTuple):
    """An infill request that has passed every check."""

    completion: Completion
    prefix: tuple[str | int, ...]
    suffix: tuple[str | int, ...]
    beginning: str  # of the middle, which the model sees as the end of the prefix
    others: tuple[OtherFile, ...]


def parse_infill(body: bytes, defaults: Sampling) -> Infill:
    """Decode and check a body; raises InvalidRequest whose text names the field."""
    given = decode_body(_decoder, body)
    beginning = given.prompt or ""
    if not isinstance(beginning, str):
        raise InvalidRequest("prompt must be a text: the beginning of the middle", param="prompt")
    sides = []
    for name in ("input_prefix", "input_suffix"):
        side = getattr(given, name)
        if side is None:
            raise InvalidRequest(f"{name} is missing", param=name)
        sides.append(prompt_parts(side, name))
    given.prompt = beginning
    return Infill(completion_of(given, defaults), sides[0], sides[1], beginning, tuple(given.input_extra or ()))


def infill_tokens(vocabulary: Vocabulary) -> InfillTokens:
    """The vocabulary's tokens; raises NotSupported that says which are missing."""
    found = {name: _find(vocabulary, name) for name in InfillTokens._fields}
    if missing := [name for name in ("prefix", "suffix", "middle") if found[name] is None]:
        raise NotSupported(f"this model cannot fill in: its vocabulary has no {', '.join(missing)} token")
    return InfillTokens(**found)  # type: ignore[arg-type]  # the three are there


def infill_prompt(infill: Infill, tokenizer: Tokenizer, *, context: int) -> list[int]:
    """Ids of the whole prompt, cut so that half the context, or what the cap asks for, is left for the middle."""
    tokens = infill_tokens(tokenizer.vocabulary)
    prefix = encode_parts(infill.prefix, tokenizer, path="input_prefix", add_special=False, parse_special=False)
    suffix = encode_parts(infill.suffix, tokenizer, path="input_suffix", add_special=False, parse_special=False)
    beginning = tokenizer.encode(infill.beginning)
    reserve = min(infill.completion.max_new, context // 2) if infill.completion.max_new != NO_LIMIT else context // 2
    room = max(context - reserve - len(beginning) - 5, 0)
    if len(prefix) + len(suffix) > room:
        prefix_room = max(int(room * _PREFIX_SHARE), room - len(suffix))
        prefix = prefix[max(len(prefix) - prefix_room, 0) :]
        suffix = suffix[: room - len(prefix)]
    others = _others(infill.others, tokens, tokenizer)
    left = max(room - len(prefix) - len(suffix), 0)
    others = others[max(len(others) - left, 0) :]
    bos = tokenizer.vocabulary.bos_id if tokenizer.vocabulary.adds_bos else None
    head = [] if bos is None else [bos]
    return [*head, *others, tokens.prefix, *prefix, *beginning, tokens.suffix, *suffix, tokens.middle]


def _others(files: tuple[OtherFile, ...], tokens: InfillTokens, tokenizer: Tokenizer) -> list[int]:
    """The other files, each behind its name where the vocabulary has a token for that."""
    ids: list[int] = []
    if files and tokens.repository is not None:
        ids += [tokens.repository, *tokenizer.encode(_REPOSITORY)]
    for file in files:
        if tokens.file is None:
            ids += tokenizer.encode(file.text + _BETWEEN_FILES)
        else:
            ids += [tokens.file, *tokenizer.encode(f"{file.filename}\n{file.text}")]
    if files and tokens.file is not None:
        ids += [tokens.file, *tokenizer.encode(_THIS_FILE)]
    return ids


def _find(vocabulary: Vocabulary, name: str) -> int | None:
    named = (vocabulary.named_id(key) for key in _KEYS[name])
    spelled = (vocabulary.ids.get(family[name]) for family in _FAMILIES if name in family)
    return next((token for token in (*named, *spelled) if token is not None), None)


_decoder = msgspec.json.Decoder(InfillBody)
