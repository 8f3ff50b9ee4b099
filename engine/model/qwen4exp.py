"""`qwen4exp` (Qwen3.8-Flash-Next): hyper-connections around every block, delta nets and sparse attention in turns, experts
with a gated shared one, n-gram embeddings before one layer.

Norm weights hold their full value. Value heads are in the file's own order: head j reads key head j mod key heads. A
trailing draft block is left alone, and the sections of the rotation, which matter to images only.
"""

from collections.abc import Mapping
from itertools import accumulate, count, islice
from math import isqrt

from engine.backend.base import Attention, Backend, DeltaNet, HyperConnection, Indexer, Moe, NgramTable, Rope, Weights
from engine.errors import BadModel
from engine.model.base import Hyper, Tensors, routed_experts
from engine.model.layers.delta_net import delta_net_spec, recurrent_layers

Shapes = Mapping[str, tuple]  # role -> (tensor name, *shape in numpy order)

_TABLE = "per_layer_token_embd.weight"
# The published rule for hash constants that a file does not give
_SEED, _GOLDEN, _MASK = 1234, 0x9E3779B97F4A7C15, (1 << 64) - 1
_LEAST_HEAD_SIZE = 20_000_000


def describe(backend: Backend, hyper: Hyper, tensors: Tensors) -> None:
    """Record the trunk."""
    embedding, output = tensors["token_embd.weight"], tensors.head()
    vocab, width = embedding.shape
    if output.shape != embedding.shape:
        raise BadModel(f"{output.name}: its shape is {output.shape}, that of {embedding.name} is {embedding.shape}")
    hyper_connection = HyperConnection(hyper.integer("hyper_connection.count", high=64), _eps(hyper))
    streams, rank = hyper_connection.streams, hyper.integer("hyper_connection.low_rank")
    experts = hyper.integer("expert_count")
    moe = Moe(experts, hyper.integer("expert_used_count", high=experts), normalise=True)
    recurrent, delta_net = recurrent_layers(hyper), delta_net_spec(hyper, "sigmoid")
    attention = {layer: attention_spec(hyper, layer) for layer in range(hyper.layers) if not recurrent[layer]}
    table = ngram_layer(hyper, tensors, vocab)

    def mixed(prefix: str, *, inject: bool) -> Weights:
        return weights(tensors, hyper_shapes(prefix, streams, width, rank, inject=inject))

    x = backend.embed(embedding, copies=streams)
    for layer in range(hyper.layers):
        block = f"blk.{layer}."
        if table and layer == table[0]:
            found = weights(tensors, ngram_shapes(block, table[1], width))
            x = backend.ngram(x, table[1], {**found, "table": tensors[_TABLE]})
        y, inject = backend.hyper_read(x, hyper_connection, mixed(block + "hc_attn_", inject=True))
        if recurrent[layer]:
            y = backend.delta_net(y, delta_net, weights(tensors, delta_net_shapes(block, delta_net, width)))
        else:
            spec = attention[layer]
            y = backend.attention(y, spec, weights(tensors, attention_shapes(block, spec, width)))
        x = backend.hyper_write(x, y, inject)
        y, inject = backend.hyper_read(x, hyper_connection, mixed(block + "hc_ffn_", inject=True))
        x = backend.hyper_write(x, backend.moe(y, moe, expert_weights(hyper, tensors, layer, width)), inject)
    last, _ = backend.hyper_read(x, hyper_connection, mixed("output_hc_", inject=False))
    backend.head(last, output)


def weights(tensors: Tensors, shapes: Shapes) -> dict:
    """Tensors by role, each of the shape that the hyperparameters ask for."""
    found = {}
    for role, (name, *shape) in shapes.items():
        found[role] = tensors[name]
        if found[role].shape != tuple(shape):
            raise BadModel(f"{name}: its shape is {found[role].shape}, expected {tuple(shape)}")
    return found


def _eps(hyper: Hyper) -> float:
    return hyper.number("attention.layer_norm_rms_epsilon", low=0.0)


def _of_layer(hyper: Hyper, key: str, layer: int) -> int:
    values = hyper.per_layer(key, hyper.layers)
    if len(values) < hyper.layers:
        raise BadModel(f"{hyper.arch}.{key}: {len(values)} values for {hyper.layers} layers")
    return values[layer]


def hyper_shapes(prefix: str, streams: int, width: int, rank: int, *, inject: bool) -> Shapes:
    """One hyper-connection read."""
    wide = streams * width
    shapes = {"norm": (f"{prefix}norm.weight", wide), "down": (f"{prefix}down.weight", rank, wide),
              "up": (f"{prefix}up.weight", wide, rank)}
    return {**shapes, "inject": (f"{prefix}inject.weight", streams, wide)} if inject else shapes


def delta_net_shapes(block: str, spec: DeltaNet, width: int) -> Shapes:
    """One recurrent layer: rows of qkv are queries, keys, values."""
    heads, inner = spec.value_heads, spec.value_heads * spec.head_dim
    channels = 2 * spec.key_heads * spec.head_dim + inner
    return {
        "qkv": (f"{block}attn_qkv.weight", channels, width), "z": (f"{block}attn_gate.weight", inner, width),
        "alpha": (f"{block}ssm_alpha.weight", heads, width), "beta": (f"{block}ssm_beta.weight", heads, width),
        "a": (f"{block}ssm_a", heads), "dt": (f"{block}ssm_dt.bias", heads),
        "conv": (f"{block}ssm_conv1d.weight", channels, spec.conv_taps), "norm": (f"{block}ssm_norm.weight", spec.head_dim),
        "output": (f"{block}ssm_out.weight", width, inner)}


def attention_spec(hyper: Hyper, layer: int) -> Attention:
    """Gated attention of one layer; sparse where the file gives it a block size."""
    heads, kv_heads = hyper.integer("attention.head_count"), _of_layer(hyper, "attention.head_count_kv", layer)
    head_dim = hyper.integer("attention.key_length", high=1 << 12)
    rotary = hyper.integer("rope.dimension_count", high=head_dim)
    if kv_heads < 1 or heads % kv_heads or rotary % 2:
        raise BadModel(f"{hyper.arch}: {heads} heads on {kv_heads} of keys, {rotary} dimensions rotated: do not go together")
    if hyper.number("rope.scaling.factor", 1.0) != 1:
        raise BadModel(f"{hyper.arch}.rope.scaling.factor: scaled rotation is not supported")
    block, indexer = _of_layer(hyper, "attention.compress_ratios", layer), None
    if block > 0:
        indexer = Indexer(hyper.integer("attention.indexer.head_count", high=1 << 12),
                          hyper.integer("attention.indexer.key_length", high=1 << 12), block,
                          hyper.integer("attention.indexer.top_k", high=1 << 24))
    return Attention(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        value_dim=hyper.integer("attention.value_length", head_dim, high=1 << 12), scale=head_dim**-0.5, eps=_eps(hyper),
        rope=Rope(rotary, hyper.number("rope.freq_base")), gated=True, indexer=indexer)


def attention_shapes(block: str, spec: Attention, width: int) -> Shapes:
    """One attention layer: of every head, query rows before gate rows."""
    if spec.value_dim != spec.head_dim:
        raise BadModel(f"{block}attn_q.weight: values of {spec.value_dim} with a gate of {spec.head_dim}")
    q, kv, dim = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.head_dim
    shapes = {
        "q": (f"{block}attn_q.weight", 2 * q, width), "k": (f"{block}attn_k.weight", kv, width),
        "v": (f"{block}attn_v.weight", kv, width), "output": (f"{block}attn_output.weight", width, q),
        "q_norm": (f"{block}attn_q_norm.weight", dim), "k_norm": (f"{block}attn_k_norm.weight", dim)}
    if spec.indexer is None:
        return shapes
    heads, dim = spec.indexer.heads, spec.indexer.dim
    return {
        **shapes,
        "indexer_q": (f"{block}indexer.q_proj.weight", heads * dim, width),
        "indexer_k": (f"{block}indexer.k_proj.weight", dim, width),
        "indexer_q_norm": (f"{block}indexer.q_norm.weight", dim), "indexer_k_norm": (f"{block}indexer.k_norm.weight", dim)}


def expert_weights(hyper: Hyper, tensors: Tensors, layer: int, width: int) -> dict:
    """Router, routed experts and the shared expert with its gate."""
    block, routed = f"blk.{layer}.", routed_experts(tensors, layer)
    n, hidden = hyper.integer("expert_count"), _of_layer(hyper, "expert_feed_forward_length", layer)
    shared = _of_layer(hyper, "expert_shared_feed_forward_length", layer)
    inner = {"gate_up_exps": 2 * hidden, "gate_exps": hidden, "up_exps": hidden}
    expected = {"router": (n, width), "down_exps": (n, width, hidden), **{role: (n, k, width) for role, k in inner.items()}}
    weights(tensors, {role: (routed[role].name, *shape) for role, shape in expected.items() if role in routed})
    return {**routed, **weights(tensors, {
        "gate_shared": (f"{block}ffn_gate_shexp.weight", shared, width),
        "up_shared": (f"{block}ffn_up_shexp.weight", shared, width),
        "down_shared": (f"{block}ffn_down_shexp.weight", width, shared),
        "router_shared": (f"{block}ffn_gate_inp_shexp.weight", width)})}


def ngram_layer(hyper: Hyper, tensors: Tensors, vocab: int) -> tuple[int, NgramTable] | None:
    """The layer before which n-gram embeddings are added, and their table; None for a file without."""
    layers = hyper.integers("ple.layers") if hyper.has("ple.layers") else []
    if not layers:
        return None
    if len(layers) > 1:
        raise BadModel(f"{hyper.arch}.ple.layers: n-gram embeddings on {len(layers)} layers are not supported, only on one")
    if not 0 <= layers[0] < hyper.layers:
        raise BadModel(f"{hyper.arch}.ple.layers: layer {layers[0]} of {hyper.layers}")
    n, per_ngram = hyper.integer("ple.ngram_size", low=2, high=16), hyper.integer("ple.heads_per_ngram", high=256)
    heads = (n - 1) * per_ngram
    multipliers = _constants(hyper, "layer_multipliers", n) or hash_multipliers(vocab, n)
    sizes = _constants(hyper, "head_vocab_sizes", heads) or head_sizes(heads)
    offsets = _constants(hyper, "head_offsets", heads) or [0, *accumulate(sizes[:-1])]
    row_width, (rows, *columns) = hyper.integer("embedding_length_per_layer_input", high=1 << 16), tensors[_TABLE].shape
    if columns != [row_width]:
        raise BadModel(f"{_TABLE}: rows of {columns} values, expected {row_width}")
    if min(sizes) < 1 or min(offsets) < 0 or max(o + s for o, s in zip(offsets, sizes, strict=True)) > rows:
        raise BadModel(f"{_TABLE}: has {rows} rows, fewer than the hash reaches")
    if min(multipliers) < 0 or max(multipliers) * vocab >= 1 << 63:
        raise BadModel(f"{hyper.arch}.ple.layer_multipliers: too large for {vocab} tokens")
    return layers[0], NgramTable(
        multipliers=tuple(multipliers), head_sizes=tuple(sizes), head_offsets=tuple(offsets), heads_per_ngram=per_ngram,
        row_width=row_width, conv_taps=hyper.integer("ple.conv_kernel", low=2, high=64), dilation=n,
        reset_token=hyper.integer("ple.eos_token_id", low=0, high=vocab - 1),
        streams=hyper.integer("hyper_connection.count", high=64), eps=_eps(hyper))


def ngram_shapes(block: str, table: NgramTable, width: int) -> Shapes:
    """The n-gram layer, without its table."""
    wide, gathered = table.streams * width, len(table.head_sizes) * table.row_width
    norms = {f"norm_{part}": (f"{block}ple_norm_{part}.weight", wide) for part in ("key", "query", "conv")}
    return {
        **norms, "key": (f"{block}ple_key.weight", wide, gathered), "value": (f"{block}ple_value.weight", width, gathered),
        "conv": (f"{block}ple_conv1d.weight", wide, table.conv_taps)}


def _constants(hyper: Hyper, name: str, length: int) -> list[int]:
    return hyper.integers(f"ple.{name}", length) if hyper.has(f"ple.{name}") else []


def hash_multipliers(vocab: int, n: int) -> list[int]:
    """Odd multipliers from splitmix64 steps, small enough that a token id times one stays below 2**63."""
    found = []
    for i in range(n):
        z = (_SEED + _GOLDEN * (i + 2)) & _MASK  # a step adds the constant once more
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _MASK
        found.append(2 * ((z ^ z >> 31) % (((1 << 63) - 1) // vocab // 2)) + 1)
    return found


def head_sizes(heads: int) -> list[int]:
    """The first primes from twenty million on."""
    primes = (n for n in count(_LEAST_HEAD_SIZE + 1, 2) if all(n % d for d in range(3, isqrt(n) + 1, 2)))
    return list(islice(primes, heads))
