"""Which token is picked: known answers, exact order, and the distribution it comes from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from engine.protocol import Sampling
from engine.sampling.candidates import top_ids
from engine.sampling.logprobs import log_probabilities
from engine.sampling.philox import philox4x32, uniform
from engine.sampling.sampler import penalize, pick

WORD = 0xFFFFFFFF
# five tokens with known probabilities, as logits shifted away from log-probabilities
PROBABILITIES = np.array([0.08, 0.40, 0.02, 0.30, 0.20])
FIVE = (np.log(PROBABILITIES) + 3.0).astype(np.float32)
# upper 1e-4 quantiles of chi-square for 1 … 4 degrees of freedom
CHI_SQUARE_LIMIT = {1: 15.14, 2: 18.42, 3: 21.11, 4: 23.51}
DRAWS = 20_000


# ---- the generator ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers published with the Random123 library for philox4x32, 10 rounds
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == expected


def test_the_uniform_number_never_changes() -> None:
    # the first two words of the block of counter 0 and key 0, as 53 bits
    assert uniform(0, 0) == ((0xE169C58D << 32 | 0x6627E8D5) >> 11) / 2**53
    # numpy's Philox is 4x64, so these are frozen here: a change of them changes every seeded text
    assert [uniform(42, position) for position in (0, 1, 2**32)] == FROZEN
    assert len({uniform(seed, 7) for seed in (0, 1, 2**32, 2**63, 2**64 - 1)}) == 5


FROZEN = [0.4685865183391049, 0.32706338120338474, 0.49120127602043595]


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_the_uniform_number_is_below_one(seed: int, position: int) -> None:
    assert 0.0 <= uniform(seed, position) < 1.0


# ---- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [1, 5, 1000, 5000, 50_000])
@pytest.mark.parametrize("levels", [1, 3, 40, 10**6])
def test_top_ids_are_a_stable_sort(vocab: int, levels: int) -> None:
    # few levels make many ties
    logits = np.random.default_rng(vocab).integers(0, levels, vocab).astype(np.float32)
    order = sorted(range(vocab), key=lambda i: (-logits[i], i))
    for n in (1, 2, 20, 64, 1024, 1500, vocab, vocab + 1):
        assert top_ids(logits, n).tolist() == order[:n]


@settings(deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 300), elements=st.integers(-4, 4).map(float)))
def test_greedy_takes_the_lowest_of_equal_ids(logits: NDArray[np.float32]) -> None:
    best = min(range(logits.size), key=lambda i: (-logits[i], i))
    assert pick(logits, Sampling(), seed=0, position=0) == best


def test_greedy_ignores_everything_but_penalties() -> None:
    sampling = Sampling(temperature=0, top_k=1, top_p=0.1, min_p=1, seed=3)
    assert pick(FIVE, sampling, seed=3, position=9) == 1


# ---- distribution ----------------------------------------------------------------------------------------------------


def _expected(sampling: Sampling) -> NDArray[np.float64]:
    """The distribution by definition, token by token."""
    order = sorted(range(FIVE.size), key=lambda i: (-FIVE[i], i))
    kept = order[: sampling.top_k or None]
    total = sum(PROBABILITIES[kept])
    mass, prefix = 0.0, []
    for i in kept:
        if prefix and mass >= sampling.top_p * total:
            break
        prefix.append(i)
        mass += PROBABILITIES[i]
    kept = [i for i in prefix if PROBABILITIES[i] >= sampling.min_p * PROBABILITIES[order[0]] * (1 - 1e-6)]
    weights = np.zeros(FIVE.size)
    weights[kept] = PROBABILITIES[kept] ** (1 / sampling.temperature)
    return weights / weights.sum()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, top_k=0),
        Sampling(temperature=1.0),
        Sampling(temperature=0.7, top_p=0.85),
        Sampling(temperature=1.8, top_k=3),
        Sampling(temperature=1.0, top_k=0, top_p=0.65),
        Sampling(temperature=0.5, top_k=0, min_p=0.3),
        Sampling(temperature=1.3, top_k=0, top_p=0.95, min_p=0.25),
        Sampling(temperature=1.3, top_k=4, top_p=0.95, min_p=0.25),
    ],
)
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    expected = _expected(sampling)
    drawn = np.bincount([pick(FIVE, sampling, seed=2024, position=n) for n in range(DRAWS)], minlength=FIVE.size)
    possible = expected > 0
    assert not drawn[~possible].any()
    chi_square = ((drawn - DRAWS * expected)[possible] ** 2 / (DRAWS * expected[possible])).sum()
    assert chi_square < CHI_SQUARE_LIMIT[int(possible.sum()) - 1]


def test_draws_of_different_seeds_follow_it_too() -> None:
    drawn = np.bincount([pick(FIVE, Sampling(temperature=1), seed=n, position=5) for n in range(DRAWS)], minlength=5)
    assert ((drawn - DRAWS * PROBABILITIES) ** 2 / (DRAWS * PROBABILITIES)).sum() < CHI_SQUARE_LIMIT[4]


def test_a_whole_vocabulary_and_its_sorted_part_agree_on_what_may_be_drawn() -> None:
    logits = (np.random.default_rng(1).standard_normal(20_000) * 2).astype(np.float32)
    probabilities = np.exp(logits.astype(np.float64) - logits.max())
    probabilities /= probabilities.sum()
    order = np.argsort(-logits, kind="stable")
    inside = set(order[: np.searchsorted(np.cumsum(probabilities[order]), 0.8) + 1].tolist())
    assert len(inside) > 500  # so that the search had to go on after its first look
    sampling = Sampling(temperature=5.0, top_k=0, top_p=0.8)
    drawn = {pick(logits, sampling, seed=3, position=n) for n in range(300)}
    assert drawn <= inside
    assert len(drawn & set(order[64:].tolist())) > 100


random_settings = st.builds(
    Sampling,
    temperature=st.sampled_from([1e-300, 0.01, 0.7, 1.0, 100.0]),
    top_k=st.sampled_from([0, 1, 2, 20, 64]),
    top_p=st.sampled_from([0.0, 1e-9, 0.5, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-9, 0.5, 1.0]),
)


@settings(max_examples=150, deadline=None)
@given(
    hnp.arrays(np.float32, st.integers(1, 200), elements=st.integers(-80, 80).map(float)),
    random_settings,
    st.integers(0, 2**64 - 1),
    st.integers(0, 10**6),
)
@pytest.mark.filterwarnings("error")
def test_every_pick_is_a_kept_token_and_can_be_repeated(
    logits: NDArray[np.float32], sampling: Sampling, seed: int, position: int
) -> None:
    before = logits.copy()
    token = pick(logits, sampling, seed=seed, position=position)
    assert token == pick(logits, sampling, seed=seed, position=position)
    assert (logits == before).all()
    rank = sum(logits > logits[token]) + sum(logits[:token] == logits[token])
    assert rank < (sampling.top_k or logits.size)
    if sampling.top_p == 0.0:
        assert rank == 0
    if sampling.min_p > 0:
        assert logits[token] >= logits.max() + np.log(sampling.min_p) - 1e-3


def test_a_draw_depends_on_its_position_alone() -> None:
    rows = np.random.default_rng(5).standard_normal((40, 300)).astype(np.float32)
    sampling = Sampling(temperature=1.0)
    forwards = [pick(rows[n], sampling, seed=9, position=n) for n in range(40)]
    backwards = [pick(rows[n], sampling, seed=9, position=n) for n in reversed(range(40))]
    assert forwards == backwards[::-1]
    assert forwards != [pick(rows[n], sampling, seed=9, position=n + 1) for n in range(40)]


# ---- penalties -------------------------------------------------------------------------------------------------------


def test_penalties_by_hand() -> None:
    logits = np.array([2.0, -2.0, 0.0, 4.0, 1.0], dtype=np.float32)
    sampling = Sampling(penalty_last_n=5, penalty_repeat=2.0, penalty_freq=0.25, penalty_present=0.5)
    history = np.array([4, 4, 0, 1, 1, 1, 3], dtype=np.int32)  # the two 4s lie too far back
    expected = [2 / 2 - 0.25 - 0.5, -2 * 2 - 0.75 - 0.5, 0.0, 4 / 2 - 0.25 - 0.5, 1.0]
    assert penalize(logits, sampling, history=history).tolist() == expected
    assert logits.tolist() == [2.0, -2.0, 0.0, 4.0, 1.0]


def test_penalties_change_the_choice_and_the_window_limits_them() -> None:
    logits = np.array([1.0, 3.0, 2.5], dtype=np.float32)
    history = np.array([1, 0, 0], dtype=np.int32)

    def choice(sampling: Sampling) -> int:
        return pick(logits, sampling, seed=0, position=3, history=history)

    assert choice(Sampling(penalty_present=1.0)) == 2
    assert choice(Sampling(penalty_present=1.0, penalty_last_n=2)) == 1
    assert choice(Sampling(penalty_present=1.0, penalty_last_n=0)) == 1
    assert choice(Sampling(penalty_repeat=3.0)) == 2
    assert choice(Sampling(penalty_freq=-9.0)) == 0
    assert pick(logits, Sampling(penalty_present=1.0), seed=0, position=0) == 1


# ---- log-probabilities -----------------------------------------------------------------------------------------------


def test_log_probabilities_are_the_model_s_own() -> None:
    logprob, top = log_probabilities(FIVE, 4, n_top=3)
    assert logprob == pytest.approx(np.log(0.2), abs=1e-6)
    assert [token for token, _ in top] == [1, 3, 4]
    assert [value for _, value in top] == pytest.approx(np.log([0.4, 0.3, 0.2]), abs=1e-6)
    assert log_probabilities(FIVE, 4, n_top=0) == (logprob, ())


def test_a_certain_token_has_a_log_probability_of_zero() -> None:
    logits = np.array([0.0, 900.0], dtype=np.float32)
    logprob, ((token, value),) = log_probabilities(logits, 1, n_top=1)
    assert (logprob, token, value) == (0.0, 1, 0.0)
    assert log_probabilities(logits, 0, n_top=0)[0] == -900.0
