"""The `samplers` list of llama.cpp's API on a chain whose order is fixed: penalties, top_k, top_p, min_p, temperature.

A sampler that the list leaves out is switched off. An order that would give other replies than ours is refused; one that
cannot (because what is moved does nothing) is not. Pure.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.protocol import Sampling
from gateway.errors import InvalidRequest, Unsupported

# Our chain in its order, each sampler with the values that make it do nothing.
CHAIN: dict[str, dict[str, Any]] = {
    "penalties": {"penalty_repeat": 1.0, "penalty_freq": 0.0, "penalty_present": 0.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "temperature": {"temperature": 1.0},
}
# Samplers of that API that we do not have; the fields that would switch them on are refused, so they do nothing.
_ABSENT = frozenset({"dry", "top_n_sigma", "typ_p", "xtc", "infill", "adaptive_p"})
_OTHER_NAMES = {"temp": "temperature", "nucleus": "top_p", "typical": "typ_p", "typical_p": "typ_p"}
_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
    "a": "adaptive_p",
}


def kept_samplers(samplers: list[str] | str, sampling: Sampling) -> Sampling:
    """The sampling with only the named samplers on; a list of names, or a text of one letter each."""
    names = [_name(name, index) for index, name in enumerate(samplers)]
    kept = msgspec.structs.replace(
        sampling, **{field: value for name, off in CHAIN.items() if name not in names for field, value in off.items()}
    )
    acting = [name for name in dict.fromkeys(names) if name in CHAIN and not _does_nothing(name, kept)]
    ours = [name for name in CHAIN if name in acting]
    if acting != ours and kept.temperature > 0:  # the likeliest token is the same in every order
        raise Unsupported(f"samplers: this server's order is {', '.join(ours)}, not {', '.join(acting)}", param="samplers")
    return kept


def _name(given: str, index: int) -> str:
    plain = given.lower().replace("-", "_")
    name = _LETTERS.get(plain) or _OTHER_NAMES.get(plain, plain)
    if name not in CHAIN and name not in _ABSENT:
        known = ", ".join([*CHAIN, *sorted(_ABSENT)])
        raise InvalidRequest(f"samplers[{index}]: {given!r} is not known ({known})", param=f"samplers[{index}]")
    return name


def _does_nothing(name: str, sampling: Sampling) -> bool:
    return all(getattr(sampling, field) == value for field, value in CHAIN[name].items())
