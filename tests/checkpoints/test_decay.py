"""Weights of averages: the definition applied to updates, which is another computation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from toposcope import ToposcopeError
from toposcope.checkpoints import decay_weights

RATES = {
    "linear": lambda x: 1 - x,
    "1-sqrt": lambda x: 1 - x**0.5,
    "cosine": lambda x: np.cos(np.pi * x / 2) ** 2,
    "ema": lambda x: 1 - np.exp(-np.log(2) * (1 - x) * 4),
}
ascending = st.lists(st.integers(0, 10**12), min_size=2, max_size=30, unique=True).map(sorted)
decays = st.sampled_from(sorted(RATES))


@given(ascending, decays, st.integers(0, 2**32 - 1))
@examples(150)
def test_the_weights_apply_the_decay_to_the_updates(steps: list[int], decay: str, seed: int) -> None:
    """theta_0 + sum_j w_j (theta_{j+1} - theta_j), w_j the decay at the midpoint of the update."""
    thetas = np.random.default_rng(seed).normal(size=(len(steps), 3))
    cooled = thetas[0].copy()
    for j in range(len(steps) - 1):
        midpoint = (steps[j] + steps[j + 1]) / 2
        share = (midpoint - steps[0]) / (steps[-1] - steps[0])
        cooled += RATES[decay](share) * (thetas[j + 1] - thetas[j])
    np.testing.assert_allclose(decay_weights(steps, decay) @ thetas, cooled, atol=1e-12)


def test_an_average_of_equal_steps_for_a_linear_decay_weighs_the_ends_by_half() -> None:
    assert decay_weights(range(0, 1001, 100)).tolist() == pytest.approx([0.05, *[0.1] * 9, 0.05])


def test_what_is_no_decay_is_refused() -> None:
    for steps, decay, words in (
        ([1, 2], "sqrt", "choose one of linear, 1-sqrt, cosine, ema"),
        ([1], "linear", "at least two"),
        ([2, 2, 3], "linear", "ascend"),
        ([3, 2], "linear", "ascend"),
    ):
        with pytest.raises(ToposcopeError, match=words):
            decay_weights(steps, decay)
