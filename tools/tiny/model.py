"""The training model: `qwen4exp` as pure functions of a dictionary of tensors that bear their GGUF names.

Norm weights are stored ready to multiply, value heads in the file's tiled order, `ssm_a` as its logarithm until
export. Blocks are separate functions over short names, so that each compiles once. Knows no optimizer and no files.
"""
from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.tiny.config import TinyConfig
from tools.tiny.delta import delta_rule

Weights = dict[str, Tensor]


def lin(x: Tensor, w: Tensor) -> Tensor:
    """x W^T in x's own precision."""
    return F.linear(x, w.to(x.dtype))


def rms(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """RMS norm over the last axis in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


def rope(x: Tensor, c: TinyConfig) -> Tensor:
    """Rotates the first rotary_dims of x [B, T, H, d] by their position on axis 1."""
    half = c.rotary_dims // 2
    inverse = c.rope_base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)[:, None, None] * inverse
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half], x[..., half:2 * half]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half:]], -1)


def hyper_read(r: Tensor, w: Weights, name: str, c: TinyConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Streams [B, T, HC, D] -> block input [B, T, D] and write weights [B, T, HC, 1] (None for a final mixer)."""
    n = rms(r, w[name + "norm.weight"].reshape(c.streams, c.width), c.eps).to(dtype)
    flat = n.flatten(-2)
    low = F.silu(lin(flat, w[name + "down.weight"]).float() / c.streams).to(dtype)
    gate = torch.sigmoid(lin(low, w[name + "up.weight"]).float()).reshape(r.shape)
    x = (gate * n).mean(-2).to(dtype)
    inject = w.get(name + "inject.weight")
    if inject is None:
        return x, None
    return x, 2 * torch.sigmoid(lin(flat, inject).float() / c.streams)[..., None]


def causal_conv(x: Tensor, taps: Tensor, dilation: int = 1) -> Tensor:
    """Depthwise causal convolution of x [B, T, C] with taps [C, K], the last tap on the current token."""
    k, length = taps.shape[1], x.shape[1]
    padded = F.pad(x.float(), (0, 0, (k - 1) * dilation, 0))
    return sum(taps[:, i] * padded[:, i * dilation:i * dilation + length] for i in range(k))


def delta_block(r: Tensor, w: Weights, c: TinyConfig, dtype: torch.dtype) -> Tensor:
    """One gated delta net between its hyper-connection read and write."""
    x, inject = hyper_read(r, w, "hc_attn_", c, dtype)
    batch, length, _ = x.shape
    h = F.silu(causal_conv(lin(x, w["attn_qkv.weight"]), w["ssm_conv1d.weight"]))
    q, k, v = h.split([c.key_width, c.key_width, c.value_width], -1)
    def heads(y):
        return y.reshape(batch, length, -1, c.state_dim)
    def unit(y):
        return y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6)
    tiled = (1, 1, c.value_heads // c.key_heads, 1)                          # value head j reads key head j mod HK
    q = (unit(heads(q)) * c.state_dim**-0.5).repeat(tiled)
    k = unit(heads(k)).repeat(tiled)
    beta = torch.sigmoid(lin(x, w["ssm_beta.weight"]).float())
    g = -w["ssm_a_log"].exp() * F.softplus(lin(x, w["ssm_alpha.weight"]).float() + w["ssm_dt.bias"])
    o = delta_rule(q, k, heads(v), g, beta)
    z = torch.sigmoid(lin(x, w["attn_gate.weight"]).float()).reshape(o.shape)
    o = rms(o, w["ssm_norm.weight"], c.eps) * z
    return r + inject * lin(o.flatten(-2).to(dtype), w["ssm_out.weight"]).float()[..., None, :]


def attention_block(r: Tensor, w: Weights, c: TinyConfig, dtype: torch.dtype, teach_rows: int) -> tuple[Tensor, Tensor]:
    """Dense gated attention, and the indexer's loss on the first `teach_rows` sequences (zero for none)."""
    x, inject = hyper_read(r, w, "hc_attn_", c, dtype)
    batch, length, _ = x.shape
    both = lin(x, w["attn_q.weight"]).reshape(batch, length, c.heads, 2 * c.head_dim)
    q, gate = both.split(c.head_dim, -1)
    q = rope(rms(q, w["attn_q_norm.weight"], c.eps), c).to(dtype).transpose(1, 2)
    k = lin(x, w["attn_k.weight"]).reshape(batch, length, c.kv_heads, c.head_dim)
    k = rope(rms(k, w["attn_k_norm.weight"], c.eps), c).to(dtype).transpose(1, 2)
    v = lin(x, w["attn_v.weight"]).reshape(batch, length, c.kv_heads, c.head_dim).transpose(1, 2)
    group = c.heads // c.kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    o = (o.float() * torch.sigmoid(gate.float())).to(dtype).flatten(-2)
    loss = torch.zeros((), device=r.device)
    if teach_rows:
        t = slice(0, teach_rows)
        loss = indexer_loss(x[t].detach().float(), q[t].detach().float(), k[t].detach().float(), w, c)
    return r + inject * lin(o, w["attn_output.weight"]).float()[..., None, :], loss


def indexer_scores(x: Tensor, w: Weights, c: TinyConfig) -> Tensor:
    """Score of every complete block for every query: x [B, T, D] -> [B, T, T // r]."""
    batch, length, _ = x.shape
    raw = lin(x, w["indexer.k_proj.weight"])[:, :length // c.block * c.block]
    mean = raw.reshape(batch, -1, c.block, c.index_dim).mean(2)                 # [B, T/r, di]
    keys = rms(mean, w["indexer.k_norm.weight"], c.eps)
    first = torch.zeros(batch, length, 1, c.index_dim, device=x.device)
    first[:, :keys.shape[1] * c.block:c.block, 0] = keys                     # turned at the block's first position
    keys = rope(first, c)[:, ::c.block, 0][:, :keys.shape[1]]
    q = lin(x, w["indexer.q_proj.weight"]).reshape(batch, length, c.index_heads, c.index_dim)
    q = rope(rms(q, w["indexer.q_norm.weight"], c.eps), c)
    return torch.einsum("bthd,bnd->bhtn", q, keys).relu().sum(1) * c.index_dim**-0.5


def indexer_loss(x: Tensor, q: Tensor, k: Tensor, w: Weights, c: TinyConfig) -> Tensor:
    """Cross-entropy of the indexer's block distribution against where attention looks; the trunk is not taught."""
    length = x.shape[1]
    cell = torch.arange(length, device=x.device)
    seen = cell[:, None] >= cell
    mass = (q @ k.mT * c.head_dim**-0.5).masked_fill(~seen, float("-inf")).softmax(-1).mean(1)    # [B, T, T]
    mass = mass.reshape(*mass.shape[:2], length // c.block, c.block).sum(-1)
    complete = (cell[:, None] + 1) // c.block > cell[:length // c.block]     # [T, T/r]
    mass = mass * complete
    mass = mass / mass.sum(-1, keepdim=True).clamp(min=1e-6)
    scores = indexer_scores(x, w, c).masked_fill(~complete, -1e4)
    return -(mass * scores.log_softmax(-1)).sum(-1)[:, c.block:].mean()


def expert_block(r: Tensor, w: Weights, c: TinyConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Mixture of experts, every expert computed for every token; also the balance loss and the load [E]."""
    x, inject = hyper_read(r, w, "hc_ffn_", c, dtype)
    logits = lin(x.float(), w["ffn_gate_inp.weight"])
    prob = logits.softmax(-1)
    top, index = prob.topk(c.top_k, -1)
    share = torch.zeros_like(prob).scatter(-1, index, top / top.sum(-1, keepdim=True))
    load = (share > 0).float().mean((0, 1)) / c.top_k
    balance = c.experts * (load.detach() * prob.mean((0, 1))).sum() + 0.02 * logits.logsumexp(-1).square().mean()
    def stack(*names):
        return torch.cat([w[f"ffn_{n}.weight"].flatten(0, -2) for n in names])
    gate, up = lin(x, stack("gate_exps", "up_exps")).float().chunk(2, -1)
    h = (F.silu(gate) * up).unflatten(-1, (c.experts, -1)) * share[..., None]
    y = lin(h.flatten(-2).to(dtype), w["ffn_down_exps.weight"].permute(1, 0, 2).flatten(1))
    gate, up = lin(x, stack("gate_shexp", "up_shexp")).float().chunk(2, -1)
    shared = lin((F.silu(gate) * up).to(dtype), w["ffn_down_shexp.weight"])
    shared = torch.sigmoid(lin(x, w["ffn_gate_inp_shexp.weight"][None]).float()) * shared.float()
    return r + inject * (y.float() + shared)[..., None, :], balance, load


def ngram_rows(ids: Tensor, c: TinyConfig) -> Tensor:
    """Rows of the n-gram table for ids [B, T] (int64) -> [B, T, tables]; before the start everything is end-of-text."""
    before = F.pad(ids, (2, 0), value=c.end_of_text)
    c1, c2 = before[:, 1:-1], before[:, :-2]
    c2 = torch.where(c1 == c.end_of_text, c1, c2)
    m = c.ple_multipliers
    two = (ids * m[0]) ^ (c1 * m[1])
    three = two ^ (c2 * m[2])
    sizes, offsets = (torch.tensor(x, device=ids.device) for x in (c.ple_sizes, c.ple_offsets))
    keys = torch.stack([two] * c.ple_heads + [three] * c.ple_heads, -1)
    return keys % sizes + offsets


def ple_block(r: Tensor, ids: Tensor, table: Tensor, w: Weights, c: TinyConfig, dtype: torch.dtype) -> Tensor:
    """Adds the n-gram embedding to every stream."""
    e = F.embedding(ngram_rows(ids, c), table).flatten(-2).to(dtype)
    shape = (c.streams, c.width)
    key = rms(lin(e, w["ple_key.weight"]).reshape(r.shape), w["ple_norm_key.weight"].reshape(shape), c.eps)
    query = rms(r, w["ple_norm_query.weight"].reshape(shape), c.eps)
    value = lin(e, w["ple_value.weight"]).float()
    s = (key * query).sum(-1, keepdim=True) * c.width**-0.5
    gate = torch.sigmoid(s.sign() * s.abs().clamp(min=1e-6).sqrt())
    gated = gate * value[..., None, :]
    n = rms(gated, w["ple_norm_conv.weight"].reshape(shape), c.eps).flatten(-2)
    return r + gated + F.silu(causal_conv(n, w["ple_conv1d.weight"], c.ple_ngram)).reshape(r.shape)


def draft_input(r: Tensor, after: Tensor, w: Weights, c: TinyConfig, dtype: torch.dtype) -> Tensor:
    """The draft block's streams from the trunk's r and the embeddings [B, T, D] of the tokens one to the right."""
    e = rms(after, w["nextn.enorm.weight"], c.eps).to(dtype)
    h = rms(r.flatten(-2), w["nextn.hnorm.weight"], c.eps).to(dtype).reshape(r.shape)   # one norm over all streams
    by_embedding, by_hidden = w["nextn.eh_proj.weight"].split(c.width, 1)
    return (lin(h, by_hidden) + lin(e, by_embedding)[..., None, :]).float()


def head(r: Tensor, w: Weights, name: str, output: Tensor, c: TinyConfig, dtype: torch.dtype) -> Tensor:
    """Final mixer and vocabulary logits [B, T, V] in float32."""
    return lin(hyper_read(r, w, name, c, dtype)[0], output).float()


def head_loss(r: Tensor, target: Tensor, w: Weights, name: str, output: Tensor, c: TinyConfig, dtype: torch.dtype) -> Tensor:
    """Mean cross-entropy of the head on target [B, T]; negative targets do not count."""
    return F.cross_entropy(head(r, w, name, output, c, dtype).flatten(0, 1), target.flatten(), ignore_index=-100)


class TinyModel:
    """The blocks in order. `wrap` may compile them; the arithmetic is in `dtype`, streams and norms in float32."""

    def __init__(self, config: TinyConfig, *, dtype: torch.dtype, wrap: Callable[[Callable], Callable] = lambda f: f):
        self.c, self.dtype = config, dtype
        self.blocks = {f.__name__: wrap(f) for f in (delta_block, attention_block, expert_block, ple_block,
                                                     draft_input, head, head_loss)}

    def part(self, w: Weights, layer: int) -> Weights:
        prefix = f"blk.{layer}."
        return {k.removeprefix(prefix): v for k, v in w.items() if k.startswith(prefix)}

    def layer(self, r: Tensor, w: Weights, layer: int, teach_rows: int, notes: dict[str, list[Tensor]]) -> Tensor:
        part, b = self.part(w, layer), self.blocks
        experts = {k: v for k, v in part.items() if k.startswith(("hc_ffn", "ffn"))}
        mixer = {k: v for k, v in part.items() if k not in experts and not k.startswith(("nextn", "ple"))}
        if self.c.attends(layer):
            r, loss = b["attention_block"](r, mixer, self.c, self.dtype, teach_rows)
            notes["indexer"].append(loss)
        else:
            r = b["delta_block"](r, mixer, self.c, self.dtype)
        r, balance, load = b["expert_block"](r, experts, self.c, self.dtype)
        notes["balance"].append(balance)
        notes["load"].append(load)
        return r

    def trunk(self, ids: Tensor, w: Weights, *, teach_rows: int = 0) -> tuple[Tensor, dict[str, list[Tensor]]]:
        """Token ids [B, T] -> streams after the last trunk block [B, T, HC, D]."""
        notes: dict[str, list[Tensor]] = {"balance": [], "load": [], "indexer": []}
        r = F.embedding(ids, w["token_embd.weight"])[..., None, :].expand(-1, -1, self.c.streams, -1)
        for layer in range(self.c.layers):
            if layer == self.c.ple_layer:
                ple = {k: v for k, v in self.part(w, layer).items() if k.startswith("ple")}
                r = self.blocks["ple_block"](r, ids, w["per_layer_token_embd.weight"], ple, self.c, self.dtype)
            r = self.layer(r, w, layer, teach_rows, notes)
        return r, notes

    def draft(self, r: Tensor, ids: Tensor, w: Weights, notes: dict[str, list[Tensor]], *, teach_rows: int = 0) -> Tensor:
        """Streams of the draft block; cell j joins the trunk's r_j with token j + 1 (the last cell sees token 0)."""
        after = F.embedding(ids.roll(-1, 1), w["token_embd.weight"])
        nextn = {k: v for k, v in self.part(w, self.c.layers).items() if k.startswith("nextn.")}
        r = self.blocks["draft_input"](r, after, nextn, self.c, self.dtype)
        return self.layer(r, w, self.c.layers, teach_rows, notes)

    def logits(self, ids: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
        """Logits of the trunk and of the draft block, [B, T, V] each."""
        r, notes = self.trunk(ids, w)
        d = self.draft(r, ids, w, notes)
        return (self.blocks["head"](r, self.mixer(w), "output_hc_", w["output.weight"], self.c, self.dtype),
                self.blocks["head"](d, self.draft_mixer(w), "nextn.hc_head_", w["output.weight"], self.c, self.dtype))

    def mixer(self, w: Weights) -> Weights:
        return {k: v for k, v in w.items() if k.startswith("output_hc_")}

    def draft_mixer(self, w: Weights) -> Weights:
        return {k: v for k, v in self.part(w, self.c.layers).items() if k.startswith("nextn.hc_head")}

    def losses(self, ids: Tensor, target: Tensor, w: Weights, *, teach_rows: int) -> dict[str, Tensor]:
        """Training losses on ids [B, T] and the tokens that follow them; `load` is [blocks, E]."""
        r, notes = self.trunk(ids, w, teach_rows=teach_rows)
        main = self.blocks["head_loss"](r, target, self.mixer(w), "output_hc_", w["output.weight"], self.c, self.dtype)
        d = self.draft(r, ids, w, notes, teach_rows=teach_rows)
        second = torch.cat([target[:, 1:], torch.full_like(target[:, :1], -100)], 1)
        draft = self.blocks["head_loss"](d, second, self.draft_mixer(w), "nextn.hc_head_", w["output.weight"],
                                         self.c, self.dtype)
        return {"main": main, "draft": draft, "balance": torch.stack(notes["balance"]).mean(),
                "indexer": torch.stack(notes["indexer"]).mean(), "load": torch.stack(notes["load"])}


def shapes(c: TinyConfig) -> dict[str, tuple[int, ...]]:
    """Every trained tensor: name -> shape."""
    d, hd, e, f = c.width, c.streams * c.width, c.experts, c.expert_width
    out: dict[str, tuple[int, ...]] = {"token_embd.weight": (c.vocab, d), "output.weight": (c.vocab, d),
                                       "per_layer_token_embd.weight": (c.ple_rows, c.ple_row_width)}

    def hyper(name: str, inject: bool) -> None:
        out[name + "norm.weight"] = (hd,)
        out[name + "down.weight"], out[name + "up.weight"] = (c.stream_rank, hd), (hd, c.stream_rank)
        if inject:
            out[name + "inject.weight"] = (c.streams, hd)

    hyper("output_hc_", inject=False)
    for i in range(c.layers + 1):
        b = f"blk.{i}."
        hyper(b + "hc_attn_", inject=True)
        hyper(b + "hc_ffn_", inject=True)
        if c.attends(i):
            local = {"attn_q.weight": (2 * c.heads * c.head_dim, d), "attn_k.weight": (c.kv_heads * c.head_dim, d),
                     "attn_v.weight": (c.kv_heads * c.head_dim, d), "attn_output.weight": (d, c.heads * c.head_dim),
                     "attn_q_norm.weight": (c.head_dim,), "attn_k_norm.weight": (c.head_dim,),
                     "indexer.q_proj.weight": (c.index_heads * c.index_dim, d), "indexer.k_proj.weight": (c.index_dim, d),
                     "indexer.q_norm.weight": (c.index_dim,), "indexer.k_norm.weight": (c.index_dim,)}
        else:
            local = {"attn_qkv.weight": (2 * c.key_width + c.value_width, d), "attn_gate.weight": (c.value_width, d),
                     "ssm_alpha.weight": (c.value_heads, d), "ssm_beta.weight": (c.value_heads, d),
                     "ssm_a_log": (c.value_heads,), "ssm_dt.bias": (c.value_heads,),
                     "ssm_conv1d.weight": (2 * c.key_width + c.value_width, c.conv), "ssm_norm.weight": (c.state_dim,),
                     "ssm_out.weight": (d, c.value_width)}
        local |= {"ffn_gate_inp.weight": (e, d), "ffn_gate_inp_shexp.weight": (d,), "ffn_gate_exps.weight": (e, f, d),
                  "ffn_up_exps.weight": (e, f, d), "ffn_down_exps.weight": (e, d, f), "ffn_gate_shexp.weight": (f, d),
                  "ffn_up_shexp.weight": (f, d), "ffn_down_shexp.weight": (d, f)}
        if i == c.ple_layer:
            local |= {"ple_key.weight": (hd, d), "ple_value.weight": (d, d), "ple_norm_key.weight": (hd,),
                      "ple_norm_query.weight": (hd,), "ple_norm_conv.weight": (hd,), "ple_conv1d.weight": (hd, c.ple_conv)}
        out |= {b + k: v for k, v in local.items()}
    b = f"blk.{c.layers}.nextn."
    out |= {b + "eh_proj.weight": (d, 2 * d), b + "enorm.weight": (d,), b + "hnorm.weight": (hd,)}
    hyper(b + "hc_head_", inject=False)
    return out


def initial(c: TinyConfig, seed: int) -> Weights:
    """Random weights to start from, float32 on the CPU."""
    random = torch.Generator().manual_seed(seed)
    w: Weights = {}
    for name, shape in shapes(c).items():
        normal = torch.randn(shape, generator=random)
        if name.endswith("norm.weight") or "ple_norm" in name:
            w[name] = torch.ones(shape)
        elif name.endswith("ssm_a_log"):
            w[name] = torch.empty(shape).uniform_(1, 16, generator=random).log()
        elif name.endswith("ssm_dt.bias"):
            step = torch.empty(shape).uniform_(math.log(1e-3), math.log(1e-1), generator=random).exp()
            w[name] = step + (-torch.expm1(-step)).log()                     # softplus gives the step back
        elif name.endswith("ssm_conv1d.weight"):
            w[name] = 0.2 * normal
            w[name][:, -1] += 0.5
        elif name.endswith("ple_conv1d.weight"):
            w[name] = 0.01 * normal
        elif name == "token_embd.weight":
            w[name] = 0.7 * normal
        elif name == "per_layer_token_embd.weight":
            w[name] = 0.2 * normal
        else:
            scale = shape[-1] ** -0.5
            if name.endswith(("attn_output.weight", "ssm_out.weight", "down_exps.weight", "down_shexp.weight",
                              "inject.weight", "output.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight")):
                scale *= 0.25
            w[name] = scale * normal
    return w
