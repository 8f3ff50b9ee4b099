"""The same weights in Hugging Face's Qwen4Exp class, to hold our training model against an independent reading.

Needs transformers with `qwen4_exp` (5.16 or newer). Norms become zero-centred, value heads grouped by key head.
"""
from __future__ import annotations

import torch
from torch import Tensor
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

from tools.tiny.config import TinyConfig

ATTENTION = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj"}


def hf_config(c: TinyConfig) -> Qwen4ExpTextConfig:
    half = c.rotary_dims // 2
    section = [half - 2 * (half // 3), half // 3, half // 3]
    return Qwen4ExpTextConfig(
        vocab_size=c.vocab, hidden_size=c.width, num_hidden_layers=c.layers, num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads, head_dim=c.head_dim, linear_num_key_heads=c.key_heads,
        linear_num_value_heads=c.value_heads, linear_key_head_dim=c.state_dim, linear_value_head_dim=c.state_dim,
        linear_conv_kernel_dim=c.conv, moe_intermediate_size=c.expert_width,
        shared_expert_intermediate_size=c.expert_width, num_experts=c.experts, num_experts_per_tok=c.top_k,
        hc_count=c.streams, hc_lowrank=c.stream_rank, ple_layer_ids=[c.ple_layer + 1], ple_embed_dim=c.width,
        ple_conv_kernel_size=c.ple_conv, ngram_size=c.ple_ngram, heads_per_ngram=c.ple_heads,
        ngram_vocab_size_base=c.ple_first_prime, make_ngram_vocab_size_divisible_by=128, split_ngram_parts=1,
        indexer_n_heads=c.index_heads, indexer_kv_heads=1, indexer_head_dim=c.index_dim, indexer_budget=c.index_budget,
        indexer_compress_ratio=c.block, output_gate_type="sigmoid", eos_token_id=c.end_of_text, rms_norm_eps=c.eps,
        max_position_embeddings=c.context, full_attention_interval=c.full_interval,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_base,
                         "partial_rotary_factor": c.rotary_dims / c.head_dim, "mrope_section": section,
                         "mrope_interleaved": True})


def group(x: Tensor, c: TinyConfig, axis: int, width: int) -> Tensor:
    """Value heads from the file's tiled order back to the checkpoint's (grouped by key head)."""
    x = x.movedim(axis, 0)
    y = x.reshape(c.value_heads // c.key_heads, c.key_heads, width, *x.shape[1:]).transpose(0, 1).reshape(x.shape)
    return y.movedim(0, axis)


def hf_weights(w: dict[str, Tensor], c: TinyConfig) -> dict[str, Tensor]:
    """Our trunk's weights under the checkpoint's names."""
    out = {"model.embed_tokens.weight": w["token_embd.weight"], "lm_head.weight": w["output.weight"]}

    def hyper(target: str, source: str) -> None:
        out[target + ".hc_norm.weight"] = w[source + "norm.weight"] - 1
        out[target + ".input_mix_weight_down.weight"] = w[source + "down.weight"]
        out[target + ".input_mix_weight_up.weight"] = w[source + "up.weight"]
        if source + "inject.weight" in w:
            out[target + ".block_inject_weight.weight"] = w[source + "inject.weight"]

    hyper("model.hyper_connection_mixer", "output_hc_")
    for i in range(c.layers):
        p, b = f"model.layers.{i}.", f"blk.{i}."
        hyper(p + "attn_hyper_connection", b + "hc_attn_")
        hyper(p + "mlp_hyper_connection", b + "hc_ffn_")
        if c.attends(i):
            q = p + "self_attn."
            for ours, theirs in ATTENTION.items():
                out[f"{q}{theirs}.weight"] = w[f"{b}{ours}.weight"]
            out[q + "q_norm.weight"] = w[b + "attn_q_norm.weight"] - 1
            out[q + "k_norm.weight"] = w[b + "attn_k_norm.weight"] - 1
            out[q + "indexer.index_qk_proj.weight"] = torch.cat(
                [w[b + "indexer.q_proj.weight"], w[b + "indexer.k_proj.weight"]])
            out[q + "indexer.q_layernorm.weight"] = w[b + "indexer.q_norm.weight"] - 1
            out[q + "indexer.k_layernorm.weight"] = w[b + "indexer.k_norm.weight"] - 1
        else:
            q, key = p + "linear_attn.", 2 * c.key_width
            def split(x, key=key):
                return torch.cat([x[:key], group(x[key:], c, 0, c.state_dim)])
            out[q + "in_proj_qkv.weight"] = split(w[b + "attn_qkv.weight"])
            out[q + "in_proj_z.weight"] = group(w[b + "attn_gate.weight"], c, 0, c.state_dim)
            out[q + "in_proj_b.weight"] = group(w[b + "ssm_beta.weight"], c, 0, 1)
            out[q + "in_proj_a.weight"] = group(w[b + "ssm_alpha.weight"], c, 0, 1)
            out[q + "A_log"] = group(w[b + "ssm_a_log"], c, 0, 1)
            out[q + "dt_bias"] = group(w[b + "ssm_dt.bias"], c, 0, 1)
            out[q + "conv1d.weight"] = split(w[b + "ssm_conv1d.weight"])[:, None]
            out[q + "norm.weight"] = w[b + "ssm_norm.weight"]
            out[q + "out_proj.weight"] = group(w[b + "ssm_out.weight"], c, 1, c.state_dim)
        if i == c.ple_layer:
            q = p + "ple."
            out[q + "ple_embedding.ngram_embedding.weight"] = w["per_layer_token_embd.weight"]
            out[q + "key_proj.weight"], out[q + "value_proj.weight"] = w[b + "ple_key.weight"], w[b + "ple_value.weight"]
            for name in ("norm_key", "norm_query", "norm_conv"):
                out[f"{q}{name}.weight"] = w[f"{b}ple_{name}.weight"] - 1
            out[q + "conv1d.weight"] = w[b + "ple_conv1d.weight"][:, None]
        q = p + "mlp."
        out[q + "gate.weight"] = w[b + "ffn_gate_inp.weight"]
        out[q + "shared_expert_gate.weight"] = w[b + "ffn_gate_inp_shexp.weight"][None]
        out[q + "experts.gate_up_proj"] = torch.cat([w[b + "ffn_gate_exps.weight"], w[b + "ffn_up_exps.weight"]], 1)
        out[q + "experts.down_proj"] = w[b + "ffn_down_exps.weight"]
        for name in ("gate", "up", "down"):
            out[f"{q}shared_expert.{name}_proj.weight"] = w[f"{b}ffn_{name}_shexp.weight"]
    return out


def hf_model(w: dict[str, Tensor], c: TinyConfig) -> Qwen4ExpForCausalLM:
    """Hugging Face's model with our weights, float32, eager attention. Raises ValueError where the two disagree."""
    model = Qwen4ExpForCausalLM(hf_config(c)).eval().float()
    model.set_attn_implementation("eager")
    state = model.state_dict()
    ours = hf_weights(w, c)
    constants = {"layer_multipliers": c.ple_multipliers, "ngram_heads_offsets": c.ple_offsets,
                 "ngram_heads_vocab_sizes": c.ple_sizes}
    for name, tensor in state.items():
        last = name.rsplit(".", 1)[-1]
        if last in constants:
            if tuple(int(x) for x in tensor) != constants[last]:
                raise ValueError(f"{name}: {tensor.tolist()} is not {constants[last]}")
        elif name not in ours:
            raise ValueError(f"no weight of ours for {name}")
        elif tensor.shape != ours[name].shape:
            raise ValueError(f"{name}: {tuple(tensor.shape)} is not {tuple(ours[name].shape)}")
        else:
            with torch.no_grad():
                tensor.copy_(ours.pop(name).reshape(tensor.shape))
    if ours:
        raise ValueError(f"weights of ours that the class lacks: {sorted(ours)}")
    return model
