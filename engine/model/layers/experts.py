"""Routed experts from the common metadata keys."""

from types import MappingProxyType

from engine.backend.base import Activation, Moe, Scoring
from engine.errors import BadModel
from engine.model.base import Hyper

_SCORINGS: MappingProxyType[int, Scoring] = MappingProxyType({1: "softmax", 2: "sigmoid", 3: "selected_softmax"})


def scoring(hyper: Hyper, default: Scoring) -> Scoring:
    """How the router scores, by the number in the file if there is one."""
    number = hyper.integer("expert_gating_func", 0, low=0)
    if number and number not in _SCORINGS:
        raise BadModel(f"{hyper.arch}.expert_gating_func: the router's rule {number} is not supported, only {set(_SCORINGS)}")
    return _SCORINGS.get(number, default)


def moe_spec(hyper: Hyper, *, normalise: bool, scoring: Scoring = "softmax", activation: Activation = "swiglu") -> Moe:
    """The router's rule: what the architecture fixes, and what the file adds to it."""
    experts = hyper.integer("expert_count", high=1 << 16)
    return Moe(
        experts, hyper.integer("expert_used_count", high=experts), normalise=normalise,
        weight_scale=hyper.number("expert_weights_scale", 0.0) or 1.0, scoring=scoring, activation=activation,
        groups=hyper.integer("expert_group_count", 0, low=0) or 1,
        groups_used=hyper.integer("expert_group_used_count", 0, low=0) or 1)
