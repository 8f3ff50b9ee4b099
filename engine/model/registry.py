"""Which architectures there are: the value of `general.architecture`, and the file that describes it."""

from types import MappingProxyType

from engine.errors import BadModel
from engine.model import (
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
from engine.model.base import Architecture

ARCHITECTURES = MappingProxyType({
    "llama": Architecture(llama.describe),
    "deepseek2": Architecture(deepseek2.describe),
    "gemma3": Architecture(gemma3.describe),
    "gemma4": Architecture(gemma4.describe),
    "gpt-oss": Architecture(gpt_oss.describe),
    "granitemoe": Architecture(granitemoe.describe),
    "lfm2moe": Architecture(lfm2moe.describe),
    "nemotron_h_moe": Architecture(nemotron_h_moe.describe),
    "olmoe": Architecture(olmoe.describe),
    "qwen2moe": Architecture(qwen2moe.describe),
    "qwen3": Architecture(qwen3.describe_dense),
    "qwen3moe": Architecture(qwen3.describe_moe),
    "qwen3next": Architecture(qwen3next.describe),
    "qwen35moe": Architecture(qwen35moe.describe),
    "qwen4exp": Architecture(qwen4exp.describe),
})

# Files that hold no model: heads that propose tokens to another one, and read its caches. What they belong to.
DRAFT_HEADS = MappingProxyType({"gemma4-assistant": "gemma4"})


def architecture(name: str) -> Architecture:
    """The entry for a name; an unknown one is a BadModel that lists what there is, a draft head one that says what it is."""
    if name in DRAFT_HEADS:
        raise BadModel(f"the architecture {name!r} is a draft head of {DRAFT_HEADS[name]} models: it cannot run alone")
    if name not in ARCHITECTURES:
        raise BadModel(f"the architecture {name!r} is not supported; supported are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
