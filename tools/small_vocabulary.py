"""A small real vocabulary for random models: byte-level BPE of the gpt2 kind with ChatML's special tokens.

256 byte tokens, some 60 merges learnt from a few sentences below, three control tokens and a chat template, so that a
random model can be chatted with. Deterministic; the texts are our own.
"""

from collections import Counter
from itertools import pairwise
from typing import Any

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

_TEXT = """the water in the river runs over the stones and under the bridge where the children stand and watch it
when the rain is over they go down to the bank and throw in sticks to see which one is the first to come out on the
other side then they run home in the evening light and tell their mother that the red one was faster than the others"""
_N_MERGES = 61  # an odd vocabulary size


def vocabulary() -> tuple[list[str], list[str]]:
    """Token texts (bytes, merges, special tokens, in this order of ids) and merges ("left right")."""
    letters = _byte_letters()
    space = letters[ord(" ")]
    words = Counter(tuple((space if i else "") + word) for i, word in enumerate(_TEXT.split()))
    merges: list[tuple[str, str]] = []
    for _ in range(_N_MERGES):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, n in words.items():
            for pair in pairwise(word):
                pairs[pair] += n
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        merged: Counter[tuple[str, ...]] = Counter()
        for word, n in words.items():
            merged[_merge(word, best)] += n
        words = merged
    tokens = letters + [left + right for left, right in merges] + list(SPECIAL)
    return tokens, [f"{left} {right}" for left, right in merges]


def vocabulary_metadata() -> dict[str, Any]:
    """The tokenizer.* keys of a GGUF file."""
    tokens, merges = vocabulary()
    first = len(tokens) - len(SPECIAL)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * first + [3] * len(SPECIAL),  # normal, control
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": first,
        "tokenizer.ggml.padding_token_id": first,
        "tokenizer.ggml.eos_token_id": first + SPECIAL.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary: itself if printable, else one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(0x100 + hidden.index(byte)) for byte in range(256)]


def _merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for letter in word:
        if out and (out[-1], letter) == pair:
            out[-1] += letter
        else:
            out.append(letter)
    return tuple(out)
