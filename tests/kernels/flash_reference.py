"""The qwen4exp trunk in float64 numpy, a whole text at once: what the kernels are held against.

Functions take the same roles and descriptions as backend.base, so a block can be compared alone; `trunk` has a table of
tensor names of its own.
"""

from types import SimpleNamespace

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normed(x, weight, eps=1e-6):
    """Over the last axis."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotated(x, positions, *, dims, base):
    """x [T, heads, dim]: pairs (i, i + dims / 2) of the first dims turn."""
    half = dims // 2
    angle = np.asarray(positions)[:, None, None] * base ** (-np.arange(half) * 2.0 / dims)
    a, b, rest = np.split(x, [half, dims], axis=-1)
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle), rest], -1)


def hyper_read(streams, w, spec):
    """streams [T, n * D] -> [T, D], [T, n] or None."""
    n = spec.streams
    parts = streams.reshape(len(streams), n, -1)
    y = normed(parts, w["norm"].reshape(n, -1), spec.eps)
    flat = y.reshape(streams.shape)
    low = flat @ w["down"].T / n
    gate = sigmoid((low * sigmoid(low)) @ w["up"].T).reshape(parts.shape)
    inject = 2 * sigmoid(flat @ w["inject"].T / n) if "inject" in w else None
    return (gate * y).mean(1), inject


def hyper_write(streams, y, inject):
    return streams + (inject[:, :, None] * y[:, None]).reshape(streams.shape)


def convolved(x, weight, *, dilation=1):
    """x [T, channels], weight [channels, taps]: causal, zeros before the start, then silu."""
    taps, total = weight.shape[1], np.zeros_like(x)
    for k in range(taps):
        back = (taps - 1 - k) * dilation
        if back < len(x):
            total[back:] += weight[:, k] * x[:len(x) - back]
    return total * sigmoid(total)


def delta_net(x, w, spec):
    dim, n_keys, n_values = spec.head_dim, spec.key_heads, spec.value_heads
    qkv = convolved(x @ w["qkv"].T, w["conv"]).reshape(len(x), -1, dim)
    q, k, v = np.split(qkv, [n_keys, 2 * n_keys], axis=1)
    q, k = (u / np.sqrt((u * u).sum(-1, keepdims=True) + 1e-6) for u in (q, k))
    beta = sigmoid(x @ w["beta"].T)
    decay = np.exp(w["a"] * np.logaddexp(0, x @ w["alpha"].T + w["dt"]))
    out = np.empty_like(v)
    for j in range(n_values):
        state = np.zeros((dim, dim))  # keys first
        for t in range(len(x)):
            key = k[t, j % n_keys]
            state *= decay[t, j]
            state += np.outer(key, beta[t, j] * (v[t, j] - key @ state))
            out[t, j] = q[t, j % n_keys] / np.sqrt(dim) @ state
    z = (x @ w["z"].T).reshape(out.shape)
    gate = sigmoid(z) if spec.output_gate == "sigmoid" else z * sigmoid(z)
    return (normed(out, w["norm"], spec.eps) * gate).reshape(len(x), -1) @ w["output"].T


def chosen_cells(x, w, spec):
    """Ascending cells that each token of x [T, D] attends to; ties go to the lower block."""
    index, n = spec.indexer, len(x)
    raw = x @ w["indexer_k"].T
    query = normed((x @ w["indexer_q"].T).reshape(n, index.heads, index.dim), w["indexer_q_norm"], spec.eps)
    blocks = n // index.block
    keys = normed(raw[:blocks * index.block].reshape(blocks, index.block, -1).mean(1), w["indexer_k_norm"], spec.eps)
    if spec.rope:
        turn = {"dims": spec.rope.dims, "base": spec.rope.base}
        query = rotated(query, np.arange(n), **turn)
        keys = rotated(keys[:, None], np.arange(blocks) * index.block, **turn)[:, 0]
    chosen = []
    for t in range(n):
        whole = (t + 1) // index.block
        best = np.arange(whole)
        if whole > index.budget // index.block:
            score = np.maximum(keys[:whole] @ query[t].T, 0).sum(1).round(9)  # a product's noise is no difference
            best = np.sort(np.argsort(-score, kind="stable")[:index.budget // index.block])
        cells = (best[:, None] * index.block + np.arange(index.block)).ravel()
        chosen.append(np.concatenate([cells, np.arange(whole * index.block, t + 1)]))
    return chosen


def attention(x, w, spec):
    n, heads, dim = len(x), spec.heads, spec.head_dim
    turn = {"dims": spec.rope.dims, "base": spec.rope.base}
    both = (x @ w["q"].T).reshape(n, heads, 2, dim)
    q = rotated(normed(both[:, :, 0], w["q_norm"], spec.eps), np.arange(n), **turn)
    k = rotated(normed((x @ w["k"].T).reshape(n, -1, dim), w["k_norm"], spec.eps), np.arange(n), **turn)
    v = (x @ w["v"].T).reshape(n, -1, dim)
    chosen = chosen_cells(x, w, spec) if spec.indexer else [np.arange(t + 1) for t in range(n)]
    out = np.empty((n, heads, dim))
    for t in range(n):
        for h in range(heads):
            keys, values = (a[chosen[t], h * spec.kv_heads // heads] for a in (k, v))
            p = keys @ q[t, h] * spec.scale
            p = np.exp(p - p.max())
            out[t, h] = p / p.sum() @ values
    return (out * sigmoid(both[:, :, 1])).reshape(n, -1) @ w["output"].T


def moe(x, w, *, used):
    logits = x @ w["router"].T
    out = np.empty_like(x)

    def expert(v, gate, up, down):
        g = gate @ v
        return down @ (g * sigmoid(g) * (up @ v))

    for t, v in enumerate(x):
        best = np.argsort(-logits[t], kind="stable")[:used]
        p = np.exp(logits[t, best] - logits[t].max())
        shared = expert(v, w["gate_shared"], w["up_shared"], w["down_shared"])
        out[t] = sigmoid(v @ w["router_shared"]) * shared + sum(
            share * expert(v, w["gate_exps"][e], w["up_exps"][e], w["down_exps"][e])
            for e, share in zip(best, p / p.sum(), strict=True))
    return out


def ngram_rows(tokens, spec):
    """Table rows [T, heads], in Python's integers."""
    rows = []
    for t in range(len(tokens)):
        text = [int(tokens[t])]
        for back in range(1, len(spec.multipliers)):
            ended = (back > 1 and text[-1] == spec.reset_token) or back > t
            text.append(spec.reset_token if ended else int(tokens[t - back]))
        mixed, by_length = text[0] * spec.multipliers[0], []
        for token, multiplier in zip(text[1:], spec.multipliers[1:], strict=True):
            mixed ^= token * multiplier
            by_length += [mixed] * spec.heads_per_ngram
        rows.append([m % size + offset for m, size, offset in
                     zip(by_length, spec.head_sizes, spec.head_offsets, strict=True)])
    return np.array(rows)


def ngram(streams, tokens, w, spec):
    n, length = spec.streams, len(tokens)
    gathered = w["table"][ngram_rows(tokens, spec)].reshape(length, -1)
    parts = streams.reshape(length, n, -1)
    key = normed((gathered @ w["key"].T).reshape(parts.shape), w["norm_key"].reshape(n, -1), spec.eps)
    query = normed(parts, w["norm_query"].reshape(n, -1), spec.eps)
    score = (key * query).sum(-1) / np.sqrt(parts.shape[-1])
    gate = sigmoid(np.sign(score) * np.sqrt(np.maximum(np.abs(score), 1e-6)))
    added = gate[:, :, None] * (gathered @ w["value"].T)[:, None]
    history = normed(added, w["norm_conv"].reshape(n, -1), spec.eps).reshape(streams.shape)
    return streams + added.reshape(streams.shape) + convolved(history, w["conv"], dilation=spec.dilation)


def trunk(arrays, metadata, tokens):
    """Logits float64 [T, vocab] from tensors by their GGUF names."""
    value = {key.removeprefix("qwen4exp."): getattr(v, "value", v) for key, v in metadata.items()}
    arrays = {name: np.asarray(a, np.float64) for name, a in arrays.items()}
    eps = value["attention.layer_norm_rms_epsilon"]

    def roles(prefix, **names):
        return {role: arrays[prefix + name] for role, name in names.items() if prefix + name in arrays}

    def connection(prefix):
        return roles(prefix, norm="norm.weight", down="down.weight", up="up.weight", inject="inject.weight")

    streams = SimpleNamespace(streams=value["hyper_connection.count"], eps=eps)
    x = np.tile(arrays["token_embd.weight"][tokens], (1, streams.streams))
    for layer in range(value["block_count"]):
        b = f"blk.{layer}."
        if layer in value["ple.layers"]:
            spec = SimpleNamespace(
                multipliers=value["ple.layer_multipliers"], head_sizes=value["ple.head_vocab_sizes"],
                head_offsets=value["ple.head_offsets"], heads_per_ngram=value["ple.heads_per_ngram"],
                reset_token=value["ple.eos_token_id"], dilation=value["ple.ngram_size"], **vars(streams))
            x = ngram(x, tokens, {**roles(
                b, key="ple_key.weight", value="ple_value.weight", norm_key="ple_norm_key.weight",
                norm_query="ple_norm_query.weight", norm_conv="ple_norm_conv.weight", conv="ple_conv1d.weight"),
                "table": arrays["per_layer_token_embd.weight"]}, spec)
        y, inject = hyper_read(x, connection(b + "hc_attn_"), streams)
        if (layer + 1) % value["full_attention_interval"]:
            y = delta_net(y, roles(
                b, qkv="attn_qkv.weight", z="attn_gate.weight", beta="ssm_beta.weight", alpha="ssm_alpha.weight", a="ssm_a",
                dt="ssm_dt.bias", conv="ssm_conv1d.weight", norm="ssm_norm.weight", output="ssm_out.weight"),
                SimpleNamespace(key_heads=value["ssm.group_count"], value_heads=value["ssm.time_step_rank"],
                                head_dim=value["ssm.state_size"], eps=eps, output_gate="sigmoid"))
        else:
            dim = value["attention.key_length"]
            index = SimpleNamespace(
                heads=value["attention.indexer.head_count"], dim=value["attention.indexer.key_length"],
                block=value["attention.compress_ratios"][layer], budget=value["attention.indexer.top_k"])
            y = attention(y, roles(
                b, q="attn_q.weight", k="attn_k.weight", v="attn_v.weight", output="attn_output.weight",
                q_norm="attn_q_norm.weight", k_norm="attn_k_norm.weight", indexer_q="indexer.q_proj.weight",
                indexer_k="indexer.k_proj.weight", indexer_q_norm="indexer.q_norm.weight",
                indexer_k_norm="indexer.k_norm.weight"),
                SimpleNamespace(heads=value["attention.head_count"], kv_heads=value["attention.head_count_kv"], head_dim=dim,
                                scale=dim**-0.5, eps=eps, indexer=index if index.block else None, rope=SimpleNamespace(
                                    dims=value["rope.dimension_count"], base=value["rope.freq_base"])))
        x = hyper_write(x, y, inject)
        y, inject = hyper_read(x, connection(b + "hc_ffn_"), streams)
        y = moe(y, roles(
            b, router="ffn_gate_inp.weight", gate_exps="ffn_gate_exps.weight", up_exps="ffn_up_exps.weight",
            down_exps="ffn_down_exps.weight", gate_shared="ffn_gate_shexp.weight", up_shared="ffn_up_shexp.weight",
            down_shared="ffn_down_shexp.weight", router_shared="ffn_gate_inp_shexp.weight"),
            used=value["expert_used_count"])
        x = hyper_write(x, y, inject)
    return hyper_read(x, connection("output_hc_"), streams)[0] @ arrays["output.weight"].T
