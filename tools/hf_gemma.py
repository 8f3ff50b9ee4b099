"""Random gemma models run by Hugging Face's own classes: the reference for their arithmetic.

llama.cpp takes GELU from a table in half precision on the CPU, so it is off by about 1e-3 of every activation; these classes
compute it. Needs an environment with `pip install torch==2.13.0 transformers==5.18.0 gguf numpy`; CPU is enough.
"""

import numpy as np
import torch
from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3ForCausalLM
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4ForCausalLM

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
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp.weight": "router.proj.weight",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
    "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight",
    "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
    "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight",
    "inp_gate.weight": "per_layer_input_gate.weight",
    "proj.weight": "per_layer_projection.weight",
    "post_norm.weight": "post_per_layer_input_norm.weight",
}
_GLOBAL_NAMES = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "per_layer_token_embd.weight": "embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "per_layer_projection_norm.weight",
}


def run(model: RandomModel, tokens: np.ndarray, *, steps: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Logits f32 [tokens, vocabulary], `steps` greedy ids i32, and the least margin between the best two logits of one."""
    network = {"gemma3": _gemma3, "gemma4": _gemma4}[model.architecture](model)
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


def _gemma4(model: RandomModel) -> torch.nn.Module:
    s, meta = model.sizes, {key.removeprefix("gemma4."): value for key, value in model.metadata.items()}
    experts = {"enable_moe_block": True, "num_experts": s.experts, "top_k_experts": s.experts_used,
               "moe_intermediate_size": s.ff, "intermediate_size": s.shared_ff} if s.experts else {
               "intermediate_size": s.ff, "use_double_wide_mlp": True}  # fmt: skip
    factors = model.tensors["rope_freqs.weight"]
    config = Gemma4TextConfig(
        vocab_size=s.vocab,
        vocab_size_per_layer_input=s.vocab,
        hidden_size=s.width,
        hidden_size_per_layer_input=s.layer_input,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads,
        num_global_key_value_heads=s.full_kv_heads,
        head_dim=s.head_dim,
        global_head_dim=s.full_head_dim,
        attention_k_eq_v=bool(s.experts),
        num_kv_shared_layers=s.shared_layers,
        sliding_window=s.window,
        layer_types=[_SLIDING if slides else _FULL for slides in meta["attention.sliding_window_pattern"]],
        max_position_embeddings=meta["context_length"],
        rms_norm_eps=meta["attention.layer_norm_rms_epsilon"],
        final_logit_softcapping=meta["final_logit_softcapping"],
        rope_parameters={
            _SLIDING: {"rope_type": "default", "rope_theta": meta["rope.freq_base_swa"]},
            _FULL: {"rope_type": "proportional", "partial_rotary_factor": float((factors == 1).mean()),
                    "rope_theta": s.rope_base},
        },
        pad_token_id=None,
        **experts,
    )  # fmt: skip
    return _loaded(Gemma4ForCausalLM(config), _checkpoint(model.tensors))


def _checkpoint(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """GGUF tensors under the names of a checkpoint, values as they are."""
    out = {"lm_head.weight": tensors.get("output.weight", tensors["token_embd.weight"])}
    for name, x in tensors.items():
        if name.startswith("blk."):
            _, layer, rest = name.split(".", 2)
            out[f"model.layers.{layer}.{_NAMES[rest]}"] = x
        elif name in _GLOBAL_NAMES:
            out[f"model.{_GLOBAL_NAMES[name]}"] = x
    return out


def _loaded(network: torch.nn.Module, state: dict[str, np.ndarray]) -> torch.nn.Module:
    network = network.eval().float()
    network.set_attn_implementation("eager")
    network.load_state_dict({name: torch.tensor(x) for name, x in state.items()}, strict=True)
    return network
