"""Mixture of experts: router with its choice, gate and up of every route, down with the weighted sum; the shared expert
beside them. Also the dense feed-forward."""

from dataclasses import dataclass
from types import MappingProxyType

from engine.backend import base
from engine.backend.cuda.launch import Buffer, Launch
from engine.backend.cuda.layouts import LAYOUTS, chunks_of, held
from engine.backend.cuda.memory import Weight, float_values
from engine.backend.cuda.products import Product, Source, products, rows_and_depth
from engine.backend.cuda.rows import Target
from engine.errors import BadModel

# numbers as in kernels/activation.cuh and kernels/router.cu
ACTIVATIONS = MappingProxyType({"swiglu": 0, "geglu": 1, "clamped_swiglu": 2})
SCORINGS = MappingProxyType({"softmax": 0, "sigmoid": 1, "selected_softmax": 2})
_MOST_USED, _MOST_GROUPS = 32, 32  # lanes of a warp
_MOST_EXPERTS = 512


@dataclass
class ExpertsBlock:
    """See `base.Moe`."""

    b: object
    spec: base.Moe
    source: Source
    router_source: Source | None
    router: Buffer
    vectors: dict[str, Buffer]
    gate: Weight
    up: Weight
    up_first: int  # row of the matrix `up` where up begins
    down: Weight
    usage: Buffer
    shared: "FeedForwardBlock | None"
    shared_gate: Product | None
    target: Target

    def window(self, tokens: int) -> list[Launch]:
        """Launches for windows of up to `tokens`."""
        hidden, down = self._routes(tokens)
        shared, added = self._shared(tokens)
        # the shared expert reads the stream before `down` adds to it
        return [*self._router(tokens), hidden, *shared, down, *added]

    def _router(self, tokens: int) -> list[Launch]:
        b, s, columns = self.b, self.spec, self.source.columns
        other = self.router_source
        return [Launch(
            "router", (("FORMAT", self.gate.format), ("HELD", str(held(columns))),
                       ("EXPERTS_A_LANE", str(-(-s.experts // 32)))), "router", (-(-s.experts // 8) + 1, 1, 1), 256,
            4 * max(columns, 8 * s.experts), {
                "window": b.window, "x": self.source.x, "norm": self.source.norm, "eps": self.source.eps,
                "router_x": other.x if other else None, "router_norm": other.norm if other else None, "columns": columns,
                "weights": self.router, "bias": self.vectors.get("router_bias"),
                "selection_bias": self.vectors.get("selection_bias"), "experts": s.experts, "used": s.used,
                "scoring": SCORINGS[s.scoring], "normalise": int(s.normalise), "groups": s.groups,
                "groups_used": s.groups_used, "weight_scale": s.weight_scale,
                "rounded": b.memory.scratch("rounded", 8 * LAYOUTS[self.gate.format].rounded_bytes(columns)),
                "logits": b.scratch_rows("router", s.experts), "ids": b.memory.scratch("ids", 4 * 8 * s.used),
                "route_weights": b.scratch_rows("route_weights", s.used),
                "arrived": b.memory.scratch("router.arrived", 4), "usage": self.usage})]

    def _routes(self, tokens: int) -> tuple[Launch, Launch]:
        b, s, columns, inner = self.b, self.spec, self.source.columns, self.down.columns
        stride = 64 * chunks_of(inner)
        hidden, ids = b.scratch_rows("expert_hidden", s.used * stride), b.memory.scratch("ids", 4 * 8 * s.used)
        sizes = (("COLUMNS", str(columns)), ("INNER", str(inner)), ("USED", str(s.used)))
        _, depth = rows_and_depth(columns)
        first = Launch(
            "experts", (("FORMAT", self.gate.format), ("DEPTH", str(depth)), ("HELD", "1"), ("ROWS", "2"),
                        ("MIN_BLOCKS", "3" if depth == 1 else "1"), *sizes), "gate_up", (-(-stride // 16), tokens * s.used, 1),
            256, 0, {
                "window": b.window, "rounded": b.memory.scratch("rounded", 0), "ids": ids, "gate": self.gate.buffer,
                "up": self.up.buffer, "matrix_rows": self.gate.rows, "gate_first": 0, "up_first": self.up_first,
                "expert_bytes_gate": self.gate.matrix_bytes, "expert_bytes_up": self.up.matrix_bytes,
                "gate_bias": self.vectors.get("gate_exps_bias"), "up_bias": self.vectors.get("up_exps_bias"),
                "activation": ACTIVATIONS[s.activation],
                "hidden": hidden})
        chunks, layout = s.used * stride // 64, LAYOUTS[self.down.format]
        depth = min(4, -(-chunks // 32))
        shared_bytes = layout.rounded_bytes(64 * chunks) + 4 * 8 * int(chunks * layout.terms_a_chunk)
        return first, Launch(
            "experts", (("FORMAT", self.down.format), ("DEPTH", str(depth)), ("HELD", str(held(64 * chunks))), ("ROWS", "1"),
                        ("MIN_BLOCKS", "2"), *sizes), "down",
            (-(-self.down.rows // 8), tokens, 1), 256, shared_bytes, {
                "window": b.window, "hidden": hidden, "ids": ids, "route_weights": b.scratch_rows("route_weights", s.used),
                "weights": self.down.buffer, "expert_bytes": self.down.matrix_bytes, "rows": self.down.rows,
                "bias": self.vectors.get("down_exps_bias"),
                "factors": self.vectors.get("down_exps_scale"), "out": self.target.out,
                "accumulate": int(self.target.accumulate), "scale": self.target.scale})

    def _shared(self, tokens: int) -> tuple[list[Launch], list[Launch]]:
        """What computes the shared expert, and what adds it."""
        if self.shared is None:
            return [], []
        b = self.b
        launches = self.shared.window(tokens)
        if self.shared_gate is not None:
            launches += products(b.window, self.source, [self.shared_gate], tokens, multiprocessors=b.multiprocessors)
        width = self.shared.down.rows
        return launches, [Launch("rows", (), "add_rows", (-(-width // 256), tokens, 1), 256, 0, {
            "window": b.window, "y": self.shared.target.out, "x": self.target.out,
            "gate": self.shared_gate.out if self.shared_gate else None, "columns": width, "x_scale": 1.0,
            "scale": self.target.scale if self.target.accumulate else 1.0})]


@dataclass
class FeedForwardBlock:
    """down · activation(gate · x, up · x)."""

    b: object
    source: Source
    gate: Product
    up: Product
    hidden: Buffer
    down: Weight
    activation: base.Activation
    target: Target

    def window(self, tokens: int) -> list[Launch]:
        """Launches for windows of up to `tokens`."""
        b, width = self.b, self.down.columns
        launches = products(b.window, self.source, [self.gate, self.up], tokens, multiprocessors=b.multiprocessors)
        launches.append(Launch("rows", (), "activate_rows", (-(-width // 256), tokens, 1), 256, 0, {
            "window": b.window, "gate": self.gate.out, "up": self.up.out, "columns": width,
            "activation": ACTIVATIONS[self.activation], "out": self.hidden}))
        return launches + products(
            b.window, Source(self.hidden, width, width), [Product(self.down, self.target.out)], tokens,
            multiprocessors=b.multiprocessors, accumulate=self.target.accumulate, scale=self.target.scale)


def _check_activation(kind: base.Activation, name: str) -> None:
    if kind not in ACTIVATIONS:
        raise BadModel(f"{name}: the activation {kind} has no kernel on CUDA yet; use --backend cpu")


def feed_forward(b, x, w: base.Weights, *, name: str, activation: base.Activation) -> tuple[FeedForwardBlock, object]:
    """The block, not recorded yet, and its rows f32 [T, D]."""
    _check_activation(activation, w["down"].name)
    inner = w["gate"].shape[0]
    rows = b.new_rows(f"{name}_out", w["down"].shape[0])
    rows.target = Target(rows.buffer)
    block = FeedForwardBlock(
        b, b.source(x), Product(b.weight(w["gate"]), b.scratch_rows(f"{name}_gate", inner)),
        Product(b.weight(w["up"]), b.scratch_rows(f"{name}_up", inner)), b.scratch_rows(f"{name}_hidden", inner),
        b.weight(w["down"]), activation, rows.target)
    return block, rows


def moe(b, x, spec: base.Moe, w: base.Weights, router_input):
    """Record the block on rows x f32 [T, D]: rows f32 [T, D]."""
    _check_activation(spec.activation, w["down_exps"].name)
    first = w.get("gate_up_exps", w.get("gate_exps"))
    if spec.used > _MOST_USED or spec.groups > _MOST_GROUPS:
        raise BadModel(f"{w['router'].name}: {spec.used} experts of {spec.groups} groups a token: CUDA has at most "
                       f"{_MOST_USED} of {_MOST_GROUPS}")
    if spec.experts > _MOST_EXPERTS or w["router"].shape[-1] % 8:
        raise BadModel(f"{w['router'].name}: its shape is {w['router'].shape}, CUDA has at most {_MOST_EXPERTS} experts and "
                       "widths that are multiples of 8")
    for tensor in (first, w["down_exps"]):
        if tensor.format.name not in LAYOUTS:
            raise BadModel(f"{tensor.name}: experts in {tensor.format.name} have no kernel on CUDA")
    gate, down = b.weight(first), b.weight(w["down_exps"])
    up = gate if "gate_up_exps" in w else b.weight(w["up_exps"])
    if up.format != gate.format:
        raise BadModel(f"{w['up_exps'].name}: its format is {up.format}, that of gate {gate.format}: CUDA wants them equal")
    names = ("router_bias", "selection_bias", "gate_exps_bias", "up_exps_bias", "down_exps_bias", "down_exps_scale")
    vectors = {name: b.memory.vector(w[name]) for name in names if name in w}
    rows = b.new_rows("block_out", w["down_exps"].shape[-2])
    rows.target = Target(rows.buffer)
    shared = shared_gate = None
    if "down_shared" in w:
        parts = {role: w[f"{role}_shared"] for role in ("gate", "up", "down")}
        shared, _ = feed_forward(b, x, parts, name="shared", activation=spec.activation)
        if "router_shared" in w:
            shared_gate = Product(b.matrix_of(w["router_shared"]), b.scratch_rows("shared_gate", 1))
    b.record(ExpertsBlock(
        b, spec, b.source(x), b.source(router_input) if router_input is not x else None,
        b.memory.array(w["router"].name, float_values(w["router"])), vectors, gate, up,
        w["down_exps"].shape[-1] if up is gate else 0, down, b.usage_counter(spec.experts), shared, shared_gate, rows.target))
    return rows
