"""Routed experts from the common metadata keys."""

from engine.backend.base import Activation, Moe, Scoring
from engine.model.base import Hyper


def moe_spec(hyper: Hyper, *, normalise: bool, scoring: Scoring = "softmax", activation: Activation = "swiglu") -> Moe:
    """The router's rule: what the architecture fixes, and what the file adds to it."""
    experts = hyper.integer("expert_count", high=1 << 16)
    return Moe(
        experts, hyper.integer("expert_used_count", high=experts), normalise=normalise,
        weight_scale=hyper.number("expert_weights_scale", 0.0) or 1.0, scoring=scoring, activation=activation,
        groups=hyper.integer("expert_group_count", 0, low=0) or 1,
        groups_used=hyper.integer("expert_group_used_count", 0, low=0) or 1)
