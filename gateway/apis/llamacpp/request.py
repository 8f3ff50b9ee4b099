"""The body of POST /completion as llama.cpp's clients send it: typed, checked, reduced to what we do.

Unknown fields are ignored, so that a request saved for another engine can be replayed. Fields of that API that would
change the reply and are not supported here are refused by name, unless their value switches them off. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from engine.protocol import MAX_INT, MAX_PENALTY, MAX_SEED, MAX_TEMPERATURE, MAX_TOP_K, MAX_TOP_LOGPROBS, Sampling
from gateway.apis.llamacpp.samplers import kept_samplers
from gateway.bodies import decode_body
from gateway.errors import InvalidRequest, Unsupported
from gateway.sse import KEEP_ALIVE_S
from gateway.text.stops import MAX_STOPS
from gateway.text.tokenizer import Tokenizer

# Stands for "as far as the context goes": the engine ends a reply where its context ends.
NO_LIMIT = MAX_INT

# A prompt as it was sent: texts and token ids in any order.
PromptParts: TypeAlias = tuple[str | int, ...]


class Adapter(msgspec.Struct):
    """A LoRA adapter and its weight."""

    id: int
    scale: float = 0.0


class CompletionBody(msgspec.Struct):
    """The JSON body: first what we do, then what we refuse unless it is switched off."""

    prompt: str | list[Any] | dict[str, Any] | None = None
    n_predict: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_last_n: int | None = None
    repeat_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    samplers: list[str] | str | None = None
    n_probs: int | None = None
    logprobs: int | None = None
    cache_prompt: bool | None = None
    ignore_eos: bool | None = None
    return_tokens: bool | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None
    sse_ping_interval: int | None = None
    response_fields: list[str] | None = None
    n_indent: int | None = None
    t_max_predict_ms: int | None = None

    grammar: str | None = None
    json_schema: Any = None
    logit_bias: list[Any] | dict[str, Any] | None = None
    lora: list[Adapter] | None = None
    image_data: list[Any] | None = None
    mirostat: int | None = None
    dynatemp_range: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    dry_multiplier: float | None = None
    adaptive_target: float | None = None
    n_cmpl: int | None = None
    n: int | None = None
    post_sampling_probs: bool | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A completion request that has passed every check."""

    prompts: tuple[PromptParts, ...]
    sampling: Sampling
    max_new: int = NO_LIMIT  # NO_LIMIT: as far as the context goes
    stream: bool = False
    stops: tuple[str, ...] = ()
    logprobs: int | None = None
    cache: bool = True
    ignore_eos: bool = False
    return_tokens: bool = False
    return_progress: bool = False
    timings_per_token: bool = False
    ping_s: float = KEEP_ALIVE_S  # between signs of life in a silent stream
    response_fields: tuple[str, ...] = ()
    indent: int = 0  # blanks that every line but the first has to begin with
    time_limit_ms: float = math.inf  # after which a line end is the end

    @property
    def n_predict(self) -> int:
        """The cap in this API's words."""
        return -1 if self.max_new == NO_LIMIT else self.max_new


# Whether a value of a field that we do not support means that the field is off.
_OFF: dict[str, Callable[[Any], bool]] = {
    "grammar": lambda value: not value,
    "json_schema": lambda _: False,
    "logit_bias": lambda value: not value,
    "lora": lambda value: all(adapter.scale == 0 for adapter in value),
    "image_data": lambda value: not value,
    "mirostat": lambda value: value == 0,
    "dynatemp_range": lambda value: value <= 0,
    "typical_p": lambda value: value >= 1,
    "top_n_sigma": lambda value: value <= 0,
    "xtc_probability": lambda value: value <= 0,
    "dry_multiplier": lambda value: value == 0,
    "adaptive_target": lambda value: value < 0,
    "n_cmpl": lambda value: value == 1,
    "n": lambda value: value == 1,
    "post_sampling_probs": lambda value: not value,
}


def parse_completion(body: bytes, defaults: Sampling) -> Completion:
    """Decode and check a body; raises InvalidRequest whose text names the field."""
    return completion_of(decode_body(_decoder, body), defaults)


def completion_of(given: CompletionBody, defaults: Sampling) -> Completion:
    """Check a decoded body."""
    for name, is_off in _OFF.items():
        value = getattr(given, name)
        if value is not None and not is_off(value):
            raise Unsupported(f"{name} is not supported by this server", param=name)
    return Completion(
        prompts=parse_prompts(given.prompt),
        max_new=_max_new(given),
        stream=bool(given.stream),
        stops=_stops(given.stop),
        sampling=_sampling(given, defaults),
        logprobs=_logprobs(given),
        cache=given.cache_prompt is not False,
        ignore_eos=bool(given.ignore_eos),
        return_tokens=bool(given.return_tokens),
        return_progress=bool(given.return_progress),
        timings_per_token=bool(given.timings_per_token),
        ping_s=_ping_s(given.sse_ping_interval),
        response_fields=tuple(given.response_fields or ()),
        indent=given.n_indent or 0,
        time_limit_ms=_time_limit_ms(given.t_max_predict_ms),
    )


def parse_prompts(prompt: str | list[Any] | dict[str, Any] | None) -> tuple[PromptParts, ...]:
    """The prompts of a body: a list that holds a number is one prompt, any other list is one prompt an element."""
    if prompt is None:
        raise InvalidRequest("prompt is missing", param="prompt")
    if isinstance(prompt, list) and not any(_is_number(part) for part in prompt):
        if not prompt:
            raise InvalidRequest("prompt must not be empty", param="prompt")
        return tuple(prompt_parts(element, f"prompt[{index}]") for index, element in enumerate(prompt))
    return (prompt_parts(prompt, "prompt"),)


def prompt_parts(value: Any, path: str) -> PromptParts:
    """One prompt: a text, a list of texts and ids, or an object around a text."""
    match value:
        case str():
            return (value,)
        case list():
            for index, part in enumerate(value):
                if not isinstance(part, str) and not _is_number(part):
                    raise InvalidRequest(f"{path}[{index}] must be a text or a token id", param=f"{path}[{index}]")
            return tuple(value)
        case {"multimodal_data": data} if data:
            raise Unsupported(f"{path}.multimodal_data: this model reads text only", param=f"{path}.multimodal_data")
        case {"prompt_string": text}:
            if not isinstance(text, str):
                raise InvalidRequest(f"{path}.prompt_string must be a text", param=f"{path}.prompt_string")
            return (text,)
    raise InvalidRequest(f"{path} must be a text, a list of texts and token ids, or an object with prompt_string", param=path)


def encode_parts(parts: PromptParts, tokenizer: Tokenizer, *, path: str, add_special: bool, parse_special: bool) -> list[int]:
    """Ids of one prompt. The begin-of-text token goes in front only of a prompt that begins with a text."""
    ids: list[int] = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            ids.extend(tokenizer.encode(part, add_special=add_special and index == 0, parse_special=parse_special))
        else:
            check_id(part, len(tokenizer.vocabulary.tokens), path=f"{path}[{index}]")
            ids.append(part)
    return ids


def check_id(token: int, vocabulary_size: int, *, path: str) -> None:
    """Refuse an id outside the vocabulary."""
    if not 0 <= token < vocabulary_size:
        raise InvalidRequest(f"{path}: token {token} is outside the vocabulary of {vocabulary_size}", param=path)


_decoder = msgspec.json.Decoder(CompletionBody)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _max_new(given: CompletionBody) -> int:
    for name in ("n_predict", "max_completion_tokens", "max_tokens"):
        value: int | None = getattr(given, name)
        if value is not None:
            if value < -2:  # -1 is no limit, -2 was once "until the context is full"
                raise InvalidRequest(f"{name} must be -1 for no limit, or 0 and more, not {value}", param=name)
            return NO_LIMIT if value < 0 else min(value, NO_LIMIT)
    return NO_LIMIT


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = tuple(text for text in ([stop] if isinstance(stop, str) else stop or []) if text)
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop: at most {MAX_STOPS} strings, not {len(stops)}", param="stop")
    return stops


def _sampling(given: CompletionBody, defaults: Sampling) -> Sampling:
    """The sampling, with values outside their range moved to its border, as that API does."""

    def within(value: float | None, least: float, most: float) -> float | None:
        return None if value is None else min(max(value, least), most)

    last_n = given.repeat_last_n
    values: dict[str, Any] = {
        "temperature": within(given.temperature, 0.0, MAX_TEMPERATURE),
        "top_k": None if given.top_k is None else min(max(given.top_k, 0), MAX_TOP_K),
        "top_p": within(given.top_p, 0.0, 1.0),
        "min_p": within(given.min_p, 0.0, 1.0),
        "penalty_last_n": None if last_n is None else MAX_INT if last_n < 0 else min(last_n, MAX_INT),
        "penalty_repeat": within(given.repeat_penalty, 0.01, MAX_PENALTY),
        "penalty_freq": within(given.frequency_penalty, -MAX_PENALTY, MAX_PENALTY),
        "penalty_present": within(given.presence_penalty, -MAX_PENALTY, MAX_PENALTY),
        "seed": None if given.seed is None or given.seed in (-1, 2**32 - 1) else given.seed % (MAX_SEED + 1),
    }
    sampling = msgspec.structs.replace(defaults, **{name: value for name, value in values.items() if value is not None})
    return sampling if given.samplers is None else kept_samplers(given.samplers, sampling)


def _logprobs(given: CompletionBody) -> int | None:
    name = "logprobs" if given.n_probs is None else "n_probs"
    count: int = getattr(given, name) or 0
    if not 0 <= count <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"{name} must be between 0 and {MAX_TOP_LOGPROBS}, not {count}", param=name)
    return count or None


def _ping_s(interval: int | None) -> float:
    if interval is None:
        return KEEP_ALIVE_S
    if interval < -1 or interval == 0:
        raise InvalidRequest(f"sse_ping_interval must be -1 or a number of seconds, not {interval}", param="sse_ping_interval")
    return math.inf if interval == -1 else float(interval)


def _time_limit_ms(limit: int | None) -> float:
    return math.inf if limit is None or limit <= 0 else float(limit)
