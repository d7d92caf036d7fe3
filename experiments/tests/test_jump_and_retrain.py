"""Jumps and descents against closed forms of quadratic losses."""

import math

import numpy as np
import pytest
import torch
from function_loss import as_loss
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from torch import Tensor

from toposcope_experiments.jump_and_retrain.retraining import jump_and_retrain

EIGENVALUES = torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64)
ZERO = torch.zeros(3, dtype=torch.float64)


def quadratic(w: Tensor) -> Tensor:
    """Return 1/2 sum lambda w^2."""
    return 0.5 * (EIGENVALUES * w**2).sum()


def test_the_known_answers() -> None:
    (found,) = jump_and_retrain(as_loss(quadratic, ZERO), [torch.ones_like(ZERO)], rate=0.1, steps=5)
    assert found.offset.tolist() == pytest.approx([0.59049, 0.07776, 1e-5], rel=1e-9)
    assert (found.loss, found.jumped) == (0.0, 7.0)
    assert found.retrained == pytest.approx(float(quadratic(found.offset)))
    assert found.loss_return == pytest.approx(1 - found.retrained / 7)
    assert found.distance == pytest.approx(math.sqrt(0.59049**2 + 0.07776**2 + 1e-10) / math.sqrt(3))
    assert found.separation == pytest.approx(found.distance)


@examples(40)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 12), st.floats(0.01, 0.3))
def test_any_quadratic_from_any_point(seed: int, n: int, steps: int, rate: float) -> None:
    """Away from the minimum the weights drift, and the separation does not: the jump contracts as at the minimum."""
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(n, n))
    hessian = torch.from_numpy(factor @ factor.T / n)
    slope, point, jump = (torch.from_numpy(rng.normal(size=n)) for _ in range(3))

    def loss(w: Tensor) -> Tensor:
        return 0.5 * w @ hessian @ w + slope @ w

    (found,) = jump_and_retrain(as_loss(loss, point), [jump], rate, steps)
    step = torch.eye(n, dtype=torch.float64) - rate * hessian
    contracted = torch.linalg.matrix_power(step, steps) @ jump
    assert found.separation == pytest.approx(float(contracted.norm() / jump.norm()), rel=1e-6, abs=1e-9)
    place = point + jump
    for _ in range(steps):
        place = place - rate * (hessian @ place + slope)
    assert found.offset.tolist() == pytest.approx((place - point).tolist(), rel=1e-6, abs=1e-9)
    assert found.distance == pytest.approx(float((place - point).norm() / jump.norm()), rel=1e-6, abs=1e-9)
    assert found.retrained == pytest.approx(float(loss(place)), rel=1e-6, abs=1e-9)


def test_a_jump_that_lowers_the_loss_has_no_share_that_returns() -> None:
    point = torch.ones_like(ZERO)
    up, down = jump_and_retrain(as_loss(quadratic, point), [point, -point], rate=0.1, steps=3)
    assert 0 < up.loss_return < 2
    assert math.isnan(down.loss_return)


def test_a_descent_that_diverges_is_not_finite() -> None:
    (found,) = jump_and_retrain(as_loss(quadratic, ZERO), [torch.ones_like(ZERO)], rate=1e6, steps=60)
    assert not math.isfinite(found.retrained)
