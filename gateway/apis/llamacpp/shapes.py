"""The JSON of llama.cpp's native API: parts and ends of completions, settings, slots, errors. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.protocol import Sampling, TokenLine
from gateway.apis.llamacpp.completion import Completed, Piece, Progressed
from gateway.apis.llamacpp.request import Completion
from gateway.apis.llamacpp.samplers import CHAIN
from gateway.errors import ApiError, ContextLengthExceeded
from gateway.monitor.ledger import RequestRecord
from gateway.text.vocabulary import Vocabulary

Json = dict[str, Any]

RANDOM_SEED = 2**32 - 1  # what that API calls "from the clock"
_SLOT = 0  # there is one

# That API's words where they differ from ours.
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 501: "not_supported_error"}

# Settings of that API whose samplers this engine does not have, at the values that switch them off.
_ABSENT_SETTINGS: Json = {
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "typical_p": 1.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 0,
    "dry_sequence_breakers": [],
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
    "n_keep": 0,
    "n_discard": 0,
    "min_keep": 0,
    "grammar": "",
    "grammar_lazy": False,
    "grammar_triggers": [],
    "preserved_tokens": [],
    "chat_format": "Content-only",
    "reasoning_format": "none",
    "reasoning_in_content": False,
    "generation_prompt": "",
    "post_sampling_probs": False,
    "lora": [],
}


def error_body(error: ApiError) -> Json:
    """An error, alone or as an event of a stream."""
    kind = "exceed_context_size_error" if isinstance(error, ContextLengthExceeded) else _TYPES.get(error.status, error.type)
    return {"error": {"code": error.status, "message": error.message, "type": kind, **error.details}}


def settings_of(sampling: Sampling) -> Json:
    """How tokens are picked, in that API's names."""
    return {
        "seed": RANDOM_SEED if sampling.seed is None else sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_last_n": sampling.penalty_last_n,
        "repeat_penalty": sampling.penalty_repeat,
        "presence_penalty": sampling.penalty_present,
        "frequency_penalty": sampling.penalty_freq,
        "samplers": list(CHAIN),
        **_ABSENT_SETTINGS,
    }


def default_settings(sampling: Sampling) -> Json:
    """What a request gets that says nothing."""
    return _settings(settings_of(sampling), Completion(prompts=(), sampling=sampling))


class CompletionWriter:
    """The JSON of one completion, in pieces or as a whole."""

    def __init__(
        self, completion: Completion, vocabulary: Vocabulary, *, index: int, model: str, prompt: str, prompt_tokens: int
    ) -> None:
        self._completion = completion
        self._vocabulary = vocabulary
        self._head: Json = {"index": index, "id_slot": _SLOT}
        self._model = model
        self._prompt = prompt
        self._prompt_tokens = prompt_tokens
        self._texts: list[str] = []
        self._lines: list[TokenLine] = []

    def progress(self, event: Progressed) -> Json:
        """Part of the prompt has been read."""
        progress = {
            "total": event.progress.total,
            "cache": event.cached,
            "processed": event.progress.done,
            "time_ms": event.ms,
        }
        return {**self._part("", (), 0), "prompt_progress": progress}

    def piece(self, piece: Piece) -> Json:
        """More text, as an event."""
        self._texts.append(piece.text)
        part = self._part(piece.text, piece.lines, piece.tokens_seen)
        if self._completion.timings_per_token:
            part["timings"] = piece.timings.as_dict()
        if self._completion.logprobs is not None and piece.lines:
            part["completion_probabilities"] = self._probabilities(piece.lines)
        return part

    def add(self, piece: Piece) -> None:
        """More text of a completion that is sent as a whole."""
        self._texts.append(piece.text)
        self._lines.extend(piece.lines)

    def end(self, completed: Completed) -> Json:
        """The whole completion, or the last event of a stream, which repeats none of its text."""
        completion = self._completion
        text = "".join(self._texts)
        settings = settings_of(completion.sampling)
        if completed.seed is not None:
            settings["seed"] = completed.seed
        whole = not completion.stream
        body: Json = {
            **self._head,
            "content": text if whole else "",
            "tokens": [line.token for line in self._lines] if whole and completion.return_tokens else [],
            "stop": True,
            "model": self._model,
            "tokens_predicted": completed.tokens_seen,
            "tokens_evaluated": completed.prompt_tokens,
            "generation_settings": _settings(settings, completion),
            "prompt": self._prompt,
            "has_new_line": "\n" in text,
            "truncated": completed.truncated,
            "stop_type": completed.stop_type,
            "stopping_word": completed.stopping_word,
            "tokens_cached": completed.prompt_tokens + completed.tokens_seen,
            "timings": completed.timings.as_dict(),
        }
        if whole and completion.logprobs is not None:
            body["completion_probabilities"] = self._probabilities(self._lines)
        return _picked(body, completion.response_fields) if completion.response_fields else body

    def _part(self, text: str, lines: Sequence[TokenLine], tokens_seen: int) -> Json:
        return {
            **self._head,
            "content": text,
            "tokens": [line.token for line in lines],
            "stop": False,
            "tokens_predicted": tokens_seen,
            "tokens_evaluated": self._prompt_tokens,
        }

    def _probabilities(self, lines: Sequence[TokenLine]) -> list[Json]:
        return [
            self._candidate(line.token, line.logprob or 0.0)
            | {"top_logprobs": [self._candidate(token, logprob) for token, logprob in line.top]}
            for line in lines
        ]

    def _candidate(self, token: int, logprob: float) -> Json:
        data = self._vocabulary.piece_bytes(token)
        return {"id": token, "token": data.decode("utf-8", "ignore"), "bytes": list(data), "logprob": logprob}


def slot(context: int, running: RequestRecord | None) -> Json:
    """The one slot: the engine's sequence."""
    state: Json = {"id": _SLOT, "n_ctx": context, "speculative": False, "is_processing": running is not None}
    if running is None:
        return state
    return state | {
        "id_task": running.number,
        "n_prompt_tokens": running.prompt_tokens,
        "n_prompt_tokens_processed": max((running.prompt_done or 0) - (running.reused or 0), 0),
        "n_prompt_tokens_cache": running.reused or 0,
        "next_token": [{"has_next_token": True, "n_decoded": running.generated}],
    }


def _settings(settings: Json, completion: Completion) -> Json:
    return settings | {
        "n_predict": completion.n_predict,
        "max_tokens": completion.n_predict,
        "stop": list(completion.stops),
        "ignore_eos": completion.ignore_eos,
        "stream": completion.stream,
        "n_probs": completion.logprobs or 0,
        "logit_bias": [],
        "timings_per_token": completion.timings_per_token,
    }


def _picked(body: Json, paths: Sequence[str]) -> Json:
    """Only the named fields; a path with slashes comes out under its whole name, one that leads nowhere not at all."""
    found: Json = {}
    for path in paths:
        value: Any = body
        for key in path.split("/"):
            value = value.get(key, _NOWHERE) if isinstance(value, dict) else _NOWHERE
        if value is not _NOWHERE:
            found[path] = value
    return found


_NOWHERE = object()
