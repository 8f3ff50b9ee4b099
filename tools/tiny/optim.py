"""Muon for the matrices, AdamW for the rest, and the learning-rate schedule.

Muon's matrices are stacked by shape so that one batch of products orthogonalises all of a kind. Works on leaf tensors
in place; knows names only by pattern.
"""
from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

NOT_MUON = ("token_embd.weight", "output.weight", "inject.weight", "conv1d.weight", "ssm_alpha.weight",
            "ssm_beta.weight", "gate_inp.weight", "gate_inp_shexp.weight")


def is_muon(name: str, ndim: int) -> bool:
    """Hidden matrices are Muon's; `attn_output.weight` ends like the head but is one of them."""
    if ndim < 2:
        return False
    return name.endswith("attn_output.weight") or not name.endswith(NOT_MUON)


def orthogonal(g: Tensor) -> Tensor:
    """About the nearest matrix with orthonormal rows, for a stack of wide matrices [n, r, c], r ≤ c."""
    x = g.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x


class Muon:
    """Momentum, orthogonalised; steps have about the size AdamW's would have at the same rate."""

    def __init__(self, named: dict[str, Tensor], *, decay: float, momentum: float = 0.95):
        self.decay, self.momentum = decay, momentum
        groups: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for p in named.values():
            groups[(min(p.shape[-2:]), max(p.shape[-2:]))].append(p)
        self.groups = [(shape, members, None) for shape, members in groups.items()]
        self.direction = torch.compile(orthogonal, dynamic=False) if next(iter(named.values())).is_cuda else orthogonal

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for i, (shape, members, mean) in enumerate(self.groups):
            wide = [(p.grad.mT if p.shape[-2] > p.shape[-1] else p.grad).reshape(-1, *shape) for p in members]
            g = torch.cat(wide)
            mean = torch.zeros_like(g) if mean is None else mean
            mean.lerp_(g, 1 - self.momentum)
            self.groups[i] = (shape, members, mean)
            update = self.direction(g.lerp(mean, self.momentum)).float() * (0.2 * shape[1] ** 0.5)
            for p, u in zip(members, update.split([x.shape[0] for x in wide]), strict=True):
                tall = p.shape[-2] > p.shape[-1]
                p.mul_(1 - lr * self.decay).sub_((u.mT if tall else u).reshape(p.shape), alpha=lr)


def rate(progress: float, *, hold: float) -> float:
    """Share of the peak rate: flat until `hold`, then linear to 2%."""
    return 1.0 if progress < hold else max(0.02, (1 - progress) / (1 - hold))
