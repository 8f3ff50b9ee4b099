"""A random qwen4exp model run by Hugging Face's own class: the reference where attention drops blocks.

llama.cpp keeps a different number of cells once the budget of sparse attention binds, so its logits are no reference
there. Needs an environment with `pip install torch==2.13.0 transformers==5.18.0 gguf numpy`; CPU is enough.
"""

from collections.abc import Callable

import numpy as np
import torch
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM

from tools.random_model import RandomModel, Sizes


class TieError(Exception):
    """A selection hung on a tie, where the reference's choice is arbitrary."""


def run(
    model: RandomModel, tokens: np.ndarray, *, cached_steps: int, least_gap: float
) -> tuple[np.ndarray, np.ndarray]:
    """Logits f32 [tokens, vocabulary] of one pass, and [cached_steps, vocabulary] of the last ones decoded singly.

    Raises TieError if any selection (of blocks, of experts) had a gap below `least_gap` between kept and dropped.
    """
    network = _load(model)
    ids = torch.tensor(tokens.astype(np.int64))[None]
    gaps: list[float] = []
    undo = _watch_selections(gaps)
    try:
        with torch.no_grad():
            logits = network(ids).logits[0].numpy()
            start = len(tokens) - cached_steps
            out = network(ids[:, :start], use_cache=True)
            rows = []
            for i in range(start, len(tokens)):
                out = network(ids[:, i : i + 1], past_key_values=out.past_key_values, use_cache=True)
                rows.append(out.logits[0, -1].numpy())
    finally:
        undo()
    if min(gaps) < least_gap:
        raise TieError(f"a selection has a gap of {min(gaps):.1e}")
    return logits.astype(np.float32), np.stack(rows).astype(np.float32)


def _load(model: RandomModel) -> Qwen4ExpForCausalLM:
    s, meta = model.sizes, {key.removeprefix("qwen4exp."): value for key, value in model.metadata.items()}
    config = Qwen4ExpTextConfig(
        vocab_size=s.vocab,
        hidden_size=s.width,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads,
        head_dim=s.head_dim,
        linear_num_key_heads=s.ssm_key_heads,
        linear_num_value_heads=s.ssm_value_heads,
        linear_key_head_dim=s.ssm_dim,
        linear_value_head_dim=s.ssm_dim,
        linear_conv_kernel_dim=meta["ssm.conv_kernel"],
        moe_intermediate_size=s.ff,
        shared_expert_intermediate_size=s.ff,
        num_experts=s.experts,
        num_experts_per_tok=s.experts_used,
        hc_count=meta["hyper_connection.count"],
        hc_lowrank=s.hc_low_rank,
        ple_layer_ids=[layer + 1 for layer in meta["ple.layers"]],
        ple_embed_dim=s.width,
        ple_conv_kernel_size=meta["ple.conv_kernel"],
        ngram_size=meta["ple.ngram_size"],
        heads_per_ngram=s.ngram_heads,
        ngram_vocab_size_base=s.ngram_rows,
        make_ngram_vocab_size_divisible_by=8,
        split_ngram_parts=1,
        indexer_n_heads=s.index_heads,
        indexer_kv_heads=1,
        indexer_head_dim=s.index_dim,
        indexer_budget=s.index_budget,
        indexer_compress_ratio=4,
        output_gate_type="sigmoid",
        eos_token_id=meta["ple.eos_token_id"],
        rms_norm_eps=1e-6,
        max_position_embeddings=meta["context_length"],
        rope_parameters={
            "rope_type": "default",
            "rope_theta": s.rope_base,
            "partial_rotary_factor": s.rope_dims / s.head_dim,
            "mrope_section": meta["rope.dimension_sections"][:3],
            "mrope_interleaved": True,
        },
    )
    network = Qwen4ExpForCausalLM(config).eval().float()
    network.set_attn_implementation("eager")
    state = checkpoint(model.tensors, s)
    hashes = {"layer_multipliers": "layer_multipliers", "ngram_heads_vocab_sizes": "head_vocab_sizes"}
    own = network.state_dict()
    for theirs, ours in {**hashes, "ngram_heads_offsets": "head_offsets"}.items():
        name = f"model.layers.{meta['ple.layers'][0]}.ple.ple_embedding.{theirs}"
        if own[name].tolist() != meta[f"ple.{ours}"].value:
            raise ValueError(f"{name} is {own[name].tolist()} there, {meta[f'ple.{ours}'].value} in the metadata")
        state[name] = own[name].numpy()
    # The class keeps some per-stream norms flat and some as [streams, width].
    network.load_state_dict({name: torch.tensor(x.reshape(own[name].shape)) for name, x in state.items()}, strict=True)
    return network


def checkpoint(tensors: dict[str, np.ndarray], s: Sizes) -> dict[str, np.ndarray]:
    """GGUF tensors as the checkpoint names and keeps them: zero-centred norms, value heads grouped by key head."""
    ple = "model.layers.1.ple."
    out = {
        "model.embed_tokens.weight": tensors["token_embd.weight"],
        "lm_head.weight": tensors["output.weight"],
        ple + "ple_embedding.ngram_embedding.weight": tensors["per_layer_token_embd.weight"],
        **_hyper_connection(tensors, "output_hc_", "model.hyper_connection_mixer"),
    }
    for i in range(s.layers):
        b, p = f"blk.{i}.", f"model.layers.{i}."
        out |= _hyper_connection(tensors, b + "hc_attn_", p + "attn_hyper_connection")
        out |= _hyper_connection(tensors, b + "hc_ffn_", p + "mlp_hyper_connection")
        out |= _delta_net(tensors, b, p + "linear_attn.", s) if b + "ssm_a" in tensors else _attention(tensors, b, p)
        m = p + "mlp."
        out[m + "gate.weight"] = tensors[b + "ffn_gate_inp.weight"]
        out[m + "shared_expert_gate.weight"] = tensors[b + "ffn_gate_inp_shexp.weight"][None]
        fused = (tensors[b + "ffn_gate_exps.weight"], tensors[b + "ffn_up_exps.weight"])
        out[m + "experts.gate_up_proj"] = np.concatenate(fused, axis=1)
        out[m + "experts.down_proj"] = tensors[b + "ffn_down_exps.weight"]
        for name in ("gate", "up", "down"):
            out[f"{m}shared_expert.{name}_proj.weight"] = tensors[f"{b}ffn_{name}_shexp.weight"]
        if b + "ple_key.weight" in tensors:
            for name in ("key", "value"):
                out[f"{ple}{name}_proj.weight"] = tensors[f"{b}ple_{name}.weight"]
            for name in ("norm_key", "norm_query", "norm_conv"):
                out[f"{ple}{name}.weight"] = tensors[f"{b}ple_{name}.weight"] - 1
            out[ple + "conv1d.weight"] = tensors[b + "ple_conv1d.weight"][:, None]
    return out


def _hyper_connection(tensors: dict[str, np.ndarray], b: str, p: str) -> dict[str, np.ndarray]:
    out = {
        p + ".hc_norm.weight": tensors[b + "norm.weight"] - 1,
        p + ".input_mix_weight_down.weight": tensors[b + "down.weight"],
        p + ".input_mix_weight_up.weight": tensors[b + "up.weight"],
    }
    if b + "inject.weight" in tensors:
        out[p + ".block_inject_weight.weight"] = tensors[b + "inject.weight"]
    return out


def _attention(tensors: dict[str, np.ndarray], b: str, p: str) -> dict[str, np.ndarray]:
    p += "self_attn."
    pairs = (("attn_q", "q_proj"), ("attn_k", "k_proj"), ("attn_v", "v_proj"), ("attn_output", "o_proj"))
    out = {f"{p}{theirs}.weight": tensors[f"{b}{ours}.weight"] for ours, theirs in pairs}
    both = (tensors[b + "indexer.q_proj.weight"], tensors[b + "indexer.k_proj.weight"])
    out[p + "indexer.index_qk_proj.weight"] = np.concatenate(both)
    for side in ("q", "k"):
        out[f"{p}{side}_norm.weight"] = tensors[f"{b}attn_{side}_norm.weight"] - 1
        out[f"{p}indexer.{side}_layernorm.weight"] = tensors[f"{b}indexer.{side}_norm.weight"] - 1
    return out


def _delta_net(tensors: dict[str, np.ndarray], b: str, p: str, s: Sizes) -> dict[str, np.ndarray]:
    def grouped(x: np.ndarray, axis: int, width: int) -> np.ndarray:
        """Value heads from GGUF's order (head j belongs to key head j mod n) to one key head's after another's."""
        x = np.moveaxis(x, axis, 0)
        y = x.reshape(s.ssm_value_heads // s.ssm_key_heads, s.ssm_key_heads, width, *x.shape[1:])
        return np.moveaxis(y.swapaxes(0, 1).reshape(x.shape), 0, axis)

    def channels(x: np.ndarray) -> np.ndarray:
        keys = 2 * s.ssm_key_heads * s.ssm_dim  # queries and keys stay, values are grouped
        return np.concatenate([x[:keys], grouped(x[keys:], 0, s.ssm_dim)])

    return {
        p + "in_proj_qkv.weight": channels(tensors[b + "attn_qkv.weight"]),
        p + "in_proj_z.weight": grouped(tensors[b + "attn_gate.weight"], 0, s.ssm_dim),
        p + "in_proj_b.weight": grouped(tensors[b + "ssm_beta.weight"], 0, 1),
        p + "in_proj_a.weight": grouped(tensors[b + "ssm_alpha.weight"], 0, 1),
        p + "A_log": grouped(np.log(-tensors[b + "ssm_a"].astype(np.float64)).astype(np.float32), 0, 1),
        p + "dt_bias": grouped(tensors[b + "ssm_dt.bias"], 0, 1),
        p + "conv1d.weight": channels(tensors[b + "ssm_conv1d.weight"])[:, None],
        p + "norm.weight": tensors[b + "ssm_norm.weight"],
        p + "out_proj.weight": grouped(tensors[b + "ssm_out.weight"], 1, s.ssm_dim),
    }


def _watch_selections(gaps: list[float]) -> Callable[[], None]:
    """Note for every torch.topk how far the last kept value is from the first dropped one; returns the undo."""
    plain, method = torch.topk, torch.Tensor.topk

    def watched(x, k, *args, **kwargs):  # type: ignore[no-untyped-def]
        if x.is_floating_point() and x.shape[-1] > k:
            best = plain(x.float(), k + 1, dim=-1).values
            gap = (best[..., k - 1] - best[..., k])[torch.isfinite(best[..., k])]
            if gap.numel():
                gaps.append(float(gap.min()))
        return plain(x, k, *args, **kwargs)

    def undo() -> None:
        torch.topk, torch.Tensor.topk = plain, method

    torch.topk = torch.Tensor.topk = watched
    return undo
