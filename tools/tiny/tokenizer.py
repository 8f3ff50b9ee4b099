"""The pack's tokenizer: byte-level BPE with the family's pre-tokenizer and special tokens.

Trains it, and reads it back. Special tokens come first, [PADn] fill the vocabulary up at the end.
"""
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VISIBLE = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
PADS = 7
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")


def train(texts: Iterable[str], vocab: int) -> Tokenizer:
    """A tokenizer of exactly `vocab` tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab - PADS, special_tokens=list(CONTROL + VISIBLE), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    missing = vocab - PADS - tokenizer.get_vocab_size()
    if missing:
        raise ValueError(f"the texts gave {missing} tokens too few")
    tokenizer.add_special_tokens([AddedToken(f"[PAD{i}]", special=True) for i in range(PADS)])
    return tokenizer


def load(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
