"""What an architecture file says to a backend: frozen descriptions of blocks, and the calls that take them.

A model is described once, when it is loaded; the backend records what to run for a window of tokens and is then run many
times. Nothing here knows which processor it will be. Shapes: T tokens of the window, D the model's width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from engine.gguf import Tensor

Weights = Mapping[str, Tensor]  # by role inside one block, such as "q" or "down_exps"
Activation = Literal["swiglu", "geglu", "clamped_swiglu", "squared_relu"]  # the last one has no gate
Scoring = Literal["softmax", "sigmoid", "selected_softmax"]


@dataclass(frozen=True)
class Yarn:
    """Stretching of a rotation by wavelength: slow pairs are interpolated, fast ones are left, those between are mixed."""

    original_context: int
    magnitude: float  # factor of cosines and sines
    fast_turns: float = 32.0  # pairs that turn at least so often in the original context are left
    slow_turns: float = 1.0  # pairs that turn at most so often are interpolated


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of the first `dims` of a head."""

    dims: int
    base: float
    adjacent: bool = False  # pairs (2i, 2i + 1) instead of (i, i + dims / 2)
    frequency_factors: tuple[float, ...] = ()  # divide the angle of each pair
    scale: float = 1.0  # factor of angles (with yarn: of the interpolated ones)
    yarn: Yarn | None = None


@dataclass(frozen=True)
class Indexer:
    """Block selection before attention: `heads` index queries score blocks of `block` cells, the best `budget` cells stay."""

    heads: int
    dim: int
    block: int
    budget: int


@dataclass(frozen=True)
class Attention:
    """Softmax attention. Weights: q k v output, and where the model has them q_norm k_norm, q_bias k_bias v_bias output_bias,
    sinks (a score without a value, one a head), indexer_q indexer_k indexer_q_norm indexer_k_norm. Without v, values are the
    projected keys; without k, the layer only reads the cache that it is given."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    eps: float
    rope: Rope | None
    gated: bool = False  # q holds for every head the query, then a gate for the output
    indexer: Indexer | None = None
    window: int = 0  # cells that a token sees, its own included; 0: all
    whole_norms: bool = False  # q_norm and k_norm go over all heads at once
    value_norm: bool = False  # values are normed, without a weight


@dataclass(frozen=True)
class Mla:
    """Attention over compressed cells: one latent vector, of which every head's keys and values are projections, and a rotated
    part of the key that all heads share. Weights: q, or q_a q_a_norm q_b; kv_a kv_a_norm output; k_b [heads, latent, content]
    and v_b [heads, value, latent], or kv_b with the rows of every head's keys, then of its values."""

    heads: int
    latent: int
    content_dim: int  # of a head's query, the part without position
    value_dim: int
    rope: Rope  # of the part with position; all its dimensions turn
    scale: float
    eps: float
    query_rank: int = 0  # of the narrow layer that queries go through, if they do


@dataclass(frozen=True)
class DeltaNet:
    """Gated delta rule. Weights: qkv z beta alpha a dt conv norm output. Value head j reads key head j mod key_heads,
    or with `neighbours` key head j // (value_heads / key_heads)."""

    key_heads: int
    value_heads: int
    head_dim: int  # of keys and values
    conv_taps: int
    eps: float
    output_gate: Literal["sigmoid", "silu"]
    neighbours: bool = False  # value heads of one key head lie side by side


@dataclass(frozen=True)
class Mamba2:
    """Selective state space. Weights: input conv dt a d norm output, and where the model has it conv_bias. Rows of the
    input are gates, then what goes through the convolution (values of all heads, b and c of all groups), then a step of
    every head."""

    heads: int
    head_dim: int
    state_size: int
    groups: int  # of neighbouring heads, which share b and c
    conv_taps: int
    eps: float

    @property
    def channels(self) -> int:
        """Of the convolution."""
        return self.heads * self.head_dim + 2 * self.groups * self.state_size


@dataclass(frozen=True)
class ShortConv:
    """Causal convolution between two products. Weights: input conv output. Rows of the input are a factor before the
    convolution, a factor behind it, and values."""

    taps: int


@dataclass(frozen=True)
class Moe:
    """Routed experts. Weights: router, gate_exps and up_exps or gate_up_exps (or up_exps alone), down_exps; with a shared
    expert gate_shared up_shared down_shared, and router_shared if that expert has a gate. Where the model has them:
    router_bias, selection_bias (counts for the choice only), of every expert gate_exps_bias up_exps_bias down_exps_bias, and
    down_exps_scale."""

    experts: int
    used: int
    normalise: bool  # chosen weights add up to 1
    weight_scale: float = 1.0
    scoring: Scoring = "softmax"  # selected_softmax: the best logits, softmax over those alone
    groups: int = 1  # of neighbouring experts; the best `groups_used` by their two best scores stay
    groups_used: int = 1
    activation: Activation = "swiglu"


@dataclass(frozen=True)
class HyperConnection:
    """Residual streams. Weights: norm down up, and inject unless it is the final read."""

    streams: int
    eps: float


@dataclass(frozen=True)
class NgramTable:
    """Embeddings of the last two and three tokens, looked up by hash.

    Weights: table key value norm_key norm_query norm_conv conv."""

    multipliers: tuple[int, ...]
    head_sizes: tuple[int, ...]
    head_offsets: tuple[int, ...]
    heads_per_ngram: int
    row_width: int
    conv_taps: int
    dilation: int
    reset_token: int
    streams: int
    eps: float


@dataclass(frozen=True)
class LayerInputs:
    """A vector of `width` for every token and layer, that the layer reads behind its halves.

    Weights: table (of tokens) projection (of the first stream) norm; of one layer gate output norm."""

    layers: int
    width: int
    tokens: int  # rows of the table
    eps: float


@dataclass(frozen=True)
class Draw:
    """How a backend that picks tokens itself draws them: see engine.sampling."""

    top_k: int  # at least 1
    top_p: float
    min_p: float
    temperature: float  # above 0
    seed: int


@dataclass(frozen=True)
class StateArray:
    """One piece of a sequence's state.

    Positional: row i belongs to cells i * cells_per_row …, so it can be cut. Otherwise the array is a summary of all
    cells so far and has to be copied to be kept.
    """

    name: str
    array: np.ndarray
    positional: bool
    cells_per_row: int = 1


class Rows(Protocol):
    """A handle for float32 activations [T, width] of the window."""

    width: int


class Backend(Protocol):
    """Blocks. Every call appends to the description of the model; none computes."""

    max_context: int
    state: list[StateArray]

    def embed(self, table: Tensor, *, copies: int = 1, scale: float = 1.0) -> Any: ...

    def norm(self, x: Any, weight: Tensor | None, *, eps: float, name: str = "normed") -> Any: ...

    def key_value_cache(self, spec: Attention, name: str) -> Any: ...

    def attention(self, x: Any, spec: Attention, weights: Weights, *, cache: Any = None) -> Any: ...

    def mla(self, x: Any, spec: Mla, weights: Weights) -> Any: ...

    def delta_net(self, x: Any, spec: DeltaNet, weights: Weights) -> Any: ...

    def mamba2(self, x: Any, spec: Mamba2, weights: Weights) -> Any: ...

    def short_conv(self, x: Any, spec: ShortConv, weights: Weights) -> Any: ...

    def project(self, x: Any, weight: Tensor, *, width: int, name: str) -> Any: ...

    def moe(self, x: Any, spec: Moe, weights: Weights, *, router_input: Any = None) -> Any: ...

    def feed_forward(self, x: Any, weights: Weights, *, activation: Activation = "swiglu") -> Any: ...

    def add(self, x: Any, y: Any, *, scale: float = 1.0) -> Any: ...

    def scale(self, x: Any, factor: float) -> Any: ...

    def hyper_read(self, streams: Any, spec: HyperConnection, weights: Weights) -> tuple[Any, Any]: ...

    def hyper_write(self, streams: Any, y: Any, inject: Any) -> Any: ...

    def ngram(self, streams: Any, spec: NgramTable, weights: Weights) -> Any: ...

    def layer_inputs(self, x: Any, spec: LayerInputs, weights: Weights) -> Any: ...

    def read_layer_input(self, x: Any, inputs: Any, spec: LayerInputs, weights: Weights, *, layer: int) -> Any: ...

    def head(self, x: Any, weight: Tensor, *, scale: float = 1.0, soft_cap: float = 0.0) -> None: ...
