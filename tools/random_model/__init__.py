"""Random models of the supported architectures: metadata and float32 weights by seed, nothing of files.

Settings are realistic (grouped heads, odd sizes, spread norms, scores that are not flat), as a test of an engine needs
them. A module here holds the recipe of an architecture; one more is its line in `RECIPES`.
"""

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tools.random_model import (
    deepseek2,
    gemma3,
    gemma4,
    gpt_oss,
    granitemoe,
    lfm2moe,
    llama,
    nemotron_h_moe,
    olmoe,
    qwen2moe,
    qwen3,
    qwen3next,
    qwen4exp,
    qwen35moe,
)
from tools.random_model.base import RandomModel, Sizes, Weights
from tools.random_model.qwen4exp import ngram_multipliers, primes_from
from tools.small_vocabulary import vocabulary_metadata

RECIPES = MappingProxyType({
    "llama": llama.DENSE,
    "llama-moe": llama.MOE,
    "deepseek2": deepseek2.RECIPE,
    "deepseek2-lite": deepseek2.LITE,
    "gemma3": gemma3.RECIPE,
    "gemma4": gemma4.EXPERTS,
    "gemma4-dense": gemma4.DENSE,
    "gpt-oss": gpt_oss.RECIPE,
    "granitemoe": granitemoe.RECIPE,
    "lfm2moe": lfm2moe.RECIPE,
    "nemotron_h_moe": nemotron_h_moe.PLAIN,
    "nemotron_h_moe-latent": nemotron_h_moe.LATENT,
    "olmoe": olmoe.RECIPE,
    "qwen2moe": qwen2moe.RECIPE,
    "qwen3": qwen3.DENSE,
    "qwen3moe": qwen3.MOE,
    "qwen3next": qwen3next.RECIPE,
    "qwen35moe": qwen35moe.RECIPE,
    "qwen4exp": qwen4exp.RECIPE,
})
ARCHITECTURES = tuple(RECIPES)
PRESETS = ("tiny", "blocks")

__all__ = ["ARCHITECTURES", "PRESETS", "RandomModel", "Sizes", "ngram_multipliers", "primes_from", "random_model"]


def random_model(
    architecture: str, *, seed: int = 0, preset: str = "tiny", tokenizer: str = "none", **changes: Any
) -> RandomModel:
    """Make a model. `tokenizer` is "none" (no_vocab) or "bpe"; `changes` replace fields of the preset's Sizes."""
    if architecture not in RECIPES or preset not in PRESETS or tokenizer not in ("none", "bpe"):
        raise ValueError(f"no {preset} preset of {architecture} with tokenizer {tokenizer}")
    recipe = RECIPES[architecture]
    sizes = replace(recipe.tiny if preset == "tiny" else recipe.blocks, **changes)
    vocabulary = vocabulary_metadata() if tokenizer == "bpe" else {"tokenizer.ggml.model": "no_vocab"}
    if tokenizer == "bpe":
        sizes = replace(sizes, vocab=len(vocabulary["tokenizer.ggml.tokens"]))
    own = {f"{recipe.architecture}.{key}": value for key, value in recipe.metadata(sizes, vocabulary).items()}
    weights = Weights(seed)
    recipe.tensors(weights, sizes)
    return RandomModel(
        architecture=recipe.architecture, sizes=sizes, tensors=weights.tensors,
        metadata={"general.name": f"random {architecture} {preset} {seed}", **own, **vocabulary},
    )  # fmt: skip
