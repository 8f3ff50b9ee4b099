"""Tables of rotary angles, with linear scaling and yarn. Angles are formed in float64."""

from math import ceil, floor, log, pi

import numpy as np

from engine.backend.base import Rope, Yarn


def rotation_table(rope: Rope, positions: range) -> np.ndarray:
    """Cosines and sines of some positions, f32 [positions, 2, dims / 2]."""
    pair = np.arange(rope.dims // 2)
    step = rope.base ** (-2.0 * pair / rope.dims) / np.array(rope.frequency_factors or np.ones(len(pair)))
    magnitude = 1.0
    if rope.yarn is not None:
        left = untouched_part(rope, rope.yarn)
        step, magnitude = step * (rope.scale * (1 - left) + left), rope.yarn.magnitude
    else:
        step = step * rope.scale
    angle = np.arange(positions.start, positions.stop)[:, None] * step
    return (np.stack([np.cos(angle), np.sin(angle)], 1) * magnitude).astype(np.float32)


def untouched_part(rope: Rope, yarn: Yarn) -> np.ndarray:
    """How much of each pair's frequency yarn leaves as it is: f64 [dims / 2], from 1 (fast pairs) down to 0."""
    def pair_with(turns: float) -> float:
        return rope.dims * log(yarn.original_context / (turns * 2 * pi)) / (2 * log(rope.base))

    low = max(0, floor(pair_with(yarn.fast_turns)))
    high = min(rope.dims - 1, ceil(pair_with(yarn.slow_turns)))
    ramp = (np.arange(rope.dims // 2) - low) / max(0.001, high - low)
    return 1 - np.clip(ramp, 0, 1)
