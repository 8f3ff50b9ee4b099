"""Random gemma models run by Hugging Face's own classes: the reference for their arithmetic.

llama.cpp takes GELU from a table in half precision on the CPU, so it is off by about 1e-3 of every activation; these classes
compute it. Needs an environment with `pip install torch==2.13.0 transformers==5.18.0 gguf numpy`; CPU is enough.
"""

import numpy as np
import torch
from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3ForCausalLM

from tools.random_model import RandomModel

_SLIDING, _FULL = "sliding_attention", "full_attention"
_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
}


def run(model: RandomModel, tokens: np.ndarray, *, steps: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Logits f32 [tokens, vocabulary], `steps` greedy ids i32, and the least margin between the best two logits of one."""
    network = {"gemma3": _gemma3}[model.architecture](model)
    ids = torch.tensor(tokens.astype(np.int64))[None]
    with torch.no_grad():
        out = network(ids, use_cache=True)
        logits, greedy, margin = out.logits[0].numpy(), [], np.inf
        row = logits[-1]
        while len(greedy) < steps:
            second, best = np.sort(row)[-2:]
            margin = min(margin, float(best - second))
            greedy.append(int(row.argmax()))
            out = network(torch.tensor([greedy[-1:]]), past_key_values=out.past_key_values, use_cache=True)
            row = out.logits[0, -1].numpy()
    return logits.astype(np.float32), np.array(greedy, np.int32), margin


def _gemma3(model: RandomModel) -> torch.nn.Module:
    s, meta = model.sizes, {key.removeprefix("gemma3."): value for key, value in model.metadata.items()}
    config = Gemma3TextConfig(
        vocab_size=s.vocab,
        hidden_size=s.width,
        intermediate_size=s.ff,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads,
        head_dim=s.head_dim,
        query_pre_attn_scalar=s.head_dim,
        sliding_window=s.window,
        max_position_embeddings=meta["context_length"],
        rms_norm_eps=meta["attention.layer_norm_rms_epsilon"],
        rope_parameters={
            _SLIDING: {"rope_type": "default", "rope_theta": 1e4},
            _FULL: {"rope_type": "linear", "factor": meta["rope.scaling.factor"], "rope_theta": s.rope_base},
        },
        pad_token_id=None,
    )
    state = {name: x - 1 if "norm" in name else x for name, x in _checkpoint(model.tensors).items()}  # zero-centred there
    return _loaded(Gemma3ForCausalLM(config), state)


def _checkpoint(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """GGUF tensors under the names of a checkpoint, values as they are."""
    out = {"model.embed_tokens.weight": tensors["token_embd.weight"], "model.norm.weight": tensors["output_norm.weight"],
           "lm_head.weight": tensors.get("output.weight", tensors["token_embd.weight"])}  # fmt: skip
    for name, x in tensors.items():
        if name.startswith("blk."):
            _, layer, rest = name.split(".", 2)
            out[f"model.layers.{layer}.{_NAMES[rest]}"] = x
    return out


def _loaded(network: torch.nn.Module, state: dict[str, np.ndarray]) -> torch.nn.Module:
    network = network.eval().float()
    network.set_attn_implementation("eager")
    network.load_state_dict({name: torch.tensor(x) for name, x in state.items()}, strict=True)
    return network
