"""Philox4x32-10, the counter-based generator behind every draw.

The random number of a token is a pure function of (seed, absolute position), so windows, drafts and cancels cannot
change a text. Constants and rounds are those of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3" (2011); they stay as they are for ever, or old seeds would give new texts.
"""

_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_KEY_STEP_0 = 0x9E3779B9  # the golden ratio
_KEY_STEP_1 = 0xBB67AE85  # the square root of 3, less 1
_ROUNDS = 10
_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four 32-bit words of a 128-bit counter and a 64-bit key, both least significant word first."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & _MASK,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & _MASK,
        )
        k0 = (k0 + _KEY_STEP_0) & _MASK
        k1 = (k1 + _KEY_STEP_1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) on a grid of 2**-53: key = seed, counter = position, the first two words of the block."""
    low, high, _, _ = philox4x32((position & _MASK, position >> 32, 0, 0), (seed & _MASK, seed >> 32))
    return ((high << 32 | low) >> 11) * 2.0**-53
