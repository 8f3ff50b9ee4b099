"""The gated delta rule over whole sequences, in chunks, as matrix products.

One chunk's error vectors U solve a unit-lower-triangular system; chunks are then chained by one product each.
Knows nothing of projections, norms or gates. Float32 throughout (tf32 products where the caller allows them).
"""
from __future__ import annotations

import torch

CHUNK = 64
LEAF = 16


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 for strictly lower A [..., CHUNK, CHUNK]: doubling on the leaves of the diagonal, then merging."""

    @staticmethod
    def forward(ctx, a: torch.Tensor) -> torch.Tensor:
        n = a.shape[-1]
        leaves = torch.stack([a[..., i:i + LEAF, i:i + LEAF] for i in range(0, n, LEAF)], -3)
        power = -leaves
        x = torch.eye(LEAF, dtype=a.dtype, device=a.device) + power
        for _ in range(3):                       # (I+N)(I+N²)(I+N⁴)(I+N⁸) is exact for 16 × 16
            power = power @ power
            x = x + x @ power
        size = LEAF
        blocks = list(x.unbind(-3))
        while size < n:
            merged = []
            for i in range(0, len(blocks), 2):
                top, low = blocks[i], blocks[i + 1]
                corner = a[..., (i + 1) * size:(i + 2) * size, i * size:(i + 1) * size]
                corner = -(low @ corner) @ top
                above = torch.cat([top, torch.zeros_like(top)], -1)
                merged.append(torch.cat([above, torch.cat([corner, low], -1)], -2))
            blocks, size = merged, 2 * size
        ctx.save_for_backward(blocks[0])
        return blocks[0]

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return -(x.mT @ grad @ x.mT).tril(-1)


def delta_rule(q, k, v, g, beta):
    """Outputs of the recurrence S ← e^g S; u = β(v − Sᵀk); S ← S + k uᵀ; o = Sᵀq from a zero state.

    q, k [B, T, HV, d] (already normalised), v [B, T, HV, d], g, beta [B, T, HV] (g ≤ 0) -> [B, T, HV, d].
    """
    batch, length, heads, d = v.shape
    chunks = length // CHUNK
    if chunks * CHUNK != length:
        raise ValueError(f"sequence length {length} is not a multiple of {CHUNK}")
    def fold(x):
        return x.reshape(batch, chunks, CHUNK, heads, -1).permute(0, 3, 1, 2, 4).float()
    q, k, v = fold(q), fold(k), fold(v)                                      # [B, H, N, C, d]
    g, beta = fold(g)[..., 0], fold(beta)                                    # [B, H, N, C], [B, H, N, C, 1]
    total = g.cumsum(-1)                                                     # log-decay since the chunk's start
    low = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=v.device).tril()
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~low, float("-inf")).exp()
    inverse = UnitLowerInverse.apply((beta * decay * (k @ k.mT)).tril(-1))
    u0 = inverse @ (beta * v)                                                # errors if the state were zero
    w = inverse @ (beta * total[..., None].exp() * k)                        # U = u0 − w S
    last = total[..., -1:]
    k_out = k * (last - total)[..., None].exp()
    carry = -(k_out.mT @ w) + last[..., None].exp() * torch.eye(d, device=v.device)  # S' = carry S + fresh
    fresh = k_out.mT @ u0
    state = torch.zeros(batch, heads, d, d, device=v.device, dtype=v.dtype)
    states = [state]
    for i in range(chunks - 1):
        state = torch.baddbmm(fresh[:, :, i].flatten(0, 1), carry[:, :, i].flatten(0, 1), state.flatten(0, 1))
        state = state.reshape(batch, heads, d, d)
        states.append(state)
    s = torch.stack(states, 2)                                               # [B, H, N, d, d], at each chunk's start
    u = u0 - w @ s
    out = (q * total[..., None].exp()) @ s + (decay * (q @ k.mT)) @ u
    return out.permute(0, 2, 3, 1, 4).reshape(batch, length, heads, d)
