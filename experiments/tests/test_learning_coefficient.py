"""The local learning coefficient against closed forms, quadrature and singular learning theory."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from property_examples import examples

from toposcope.errors import ToposcopeError
from toposcope.typing import Vector
from toposcope_experiments.learning_coefficient.learning_coefficient import (
    LearningCoefficient,
    LossAndGradient,
    local_learning_coefficient,
)

CURVATURE = np.array([1.0, 10.0, 100.0, 0.0])
N_BETA, GAMMA = 30, 1.0
COPIES = 500
"""Of each coordinate: the estimate is that of one, many times over, with a smaller relative error."""


def quadratic(curvature: Vector) -> LossAndGradient:
    def loss(w: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        return 0.5 * float(curvature @ w**2), curvature * w

    return loss


def exact(curvature: Vector, n_beta: float, gamma: float, step: float = 0.0) -> float:
    """Of a quadratic loss; with a step, that of the unadjusted chain, whose variance is 1 / (a (1 - step a / 4))."""
    a = n_beta * curvature + gamma
    return float((n_beta * curvature / 2 / (a * (1 - step * a / 4))).sum())


def assert_agrees(found: LearningCoefficient, expected: float, within: float) -> None:
    """Five standard errors, and these at most a share of the value."""
    assert not found.reason
    assert found.r_hat <= 1.1
    assert found.standard_error < within * expected
    assert abs(found.value - expected) < 5 * found.standard_error
    assert found.value == pytest.approx(found.chains.mean())


# Quadratic losses


def of_the_quadratic(copies: int = COPIES, **options: Any) -> LearningCoefficient:
    curvature = np.tile(CURVATURE, copies)
    return local_learning_coefficient(
        quadratic(curvature), np.zeros(len(curvature)), n=N_BETA, beta=1.0, localisation=GAMMA, **options
    )


@pytest.mark.slow
@pytest.mark.parametrize(("leapfrog", "draws"), [(1, 3000), (4, 800)])
def test_an_adapted_chain_on_the_quadratic(leapfrog: int, draws: int) -> None:
    found = of_the_quadratic(n_leapfrog=leapfrog, n_draws=draws, n_warmup=300)
    assert_agrees(found, COPIES * 1.482043, within=0.01)
    assert found.negative_share == 0
    assert found.discretisation_bias > 0


LANGEVIN: dict[str, Any] = {"step": 1e-4, "n_leapfrog": 1, "n_warmup": 2000, "n_draws": 20_000}
"""Slow coordinates forget 0.16% of their place a step."""


@pytest.mark.slow
def test_the_unadjusted_chain_has_the_bias_that_is_stated() -> None:
    found = of_the_quadratic(metropolis=False, **LANGEVIN)
    assert_agrees(found, COPIES * 1.526739, within=0.004)
    assert abs(found.value - COPIES * 1.482043) > 4 * found.standard_error
    # Step / 8 times n beta times the sum of curvatures is the first order of 0.044696.
    first_order = 1e-4 / 8 * N_BETA * float(CURVATURE.sum())
    assert first_order == pytest.approx(0.041625)
    assert abs(found.discretisation_bias / COPIES - first_order) < 4 * found.discretisation_bias_error / COPIES + 0.004


@pytest.mark.slow
def test_a_metropolis_step_removes_it() -> None:
    assert_agrees(of_the_quadratic(10, **LANGEVIN), 10 * 1.482043, within=0.03)


@examples(12)
@given(st.integers(0, 2**32), st.integers(1, 30), st.floats(0.1, 1000))
def test_any_quadratic(seed: int, n: int, gamma: float) -> None:
    curvature = np.random.default_rng(seed).gamma(0.3, 10, size=n)
    point = np.random.default_rng(seed).normal(size=n)
    plain = quadratic(curvature)
    found = local_learning_coefficient(
        lambda w: plain(w - point),
        point,
        n=1000,
        localisation=gamma,
        n_draws=200,
        n_warmup=100,
        n_leapfrog=3,
        seed=seed,
    )
    if not found.reason:  # of so few draws, an interval of 6 standard errors
        expected = exact(curvature, 1000 / math.log(1000), gamma)
        assert abs(found.value - expected) < 6 * found.standard_error + 1e-9


# Degenerate losses


def monomial(p: int, q: int) -> LossAndGradient:
    """Return (x^p y^q)^2."""

    def loss(w: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        x, y = w
        slope = [
            2 * p * x ** (2 * p - 1) * y ** (2 * q) if p else 0.0,
            2 * q * x ** (2 * p) * y ** (2 * q - 1) if q else 0.0,
        ]
        return float(x ** (2 * p) * y ** (2 * q)), np.array(slope)

    return loss


def by_quadrature(p: int, q: int, n_beta: float) -> float:
    """n beta times the mean of (x^p y^q)^2 under the posterior with gamma = 1, on a grid that is fine near the axes."""
    x = np.exp(np.linspace(-16, np.log(12), 4001))
    weight = x * np.exp(-(x**2) / 2)
    energy = n_beta * np.outer(x ** (2 * p), x ** (2 * q))
    density = np.outer(weight, weight) * np.exp(-energy)
    return float((density * energy).sum() / density.sum())


@pytest.mark.slow
@pytest.mark.parametrize(("p", "q"), [(1, 0), (3, 0), (1, 1), (1, 2), (2, 3)])
def test_monomials(p: int, q: int) -> None:
    n_beta = 10_000
    expected = by_quadrature(p, q, n_beta)
    found = local_learning_coefficient(monomial(p, q), np.zeros(2), n=n_beta, beta=1.0, n_draws=2000, n_warmup=500)
    assert_agrees(found, expected, within=0.25)


# Reduced-rank regression of a true map of rank zero (Aoyagi and Watanabe 2005)

REDUCED_RANK = {(5, 4, 5): 8.0, (4, 3, 8): 6.0, (3, 8, 4): 6.0}
"""By inputs, rank of the model and outputs."""


def reduced_rank(inputs: int, rank: int, outputs: int) -> LossAndGradient:
    """Return half of ||B A||^2, the excess loss of y = B A x for whitened inputs."""

    def loss(w: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        a, b = w[: rank * inputs].reshape(rank, inputs), w[rank * inputs :].reshape(outputs, rank)
        product = b @ a
        return 0.5 * float((product**2).sum()), np.concatenate([(b.T @ product).ravel(), (product @ a.T).ravel()])

    return loss


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "expected"), REDUCED_RANK.items(), ids=str)
def test_reduced_rank_regression(shape: tuple[int, int, int], expected: float) -> None:
    n = 100_000
    inputs, rank, outputs = shape
    found = local_learning_coefficient(
        reduced_rank(*shape), np.zeros(rank * (inputs + outputs)), n=n, n_draws=2000, n_warmup=500
    )
    assert found.value == pytest.approx(expected, rel=0.15)
    assert found.standard_error < 0.03 * expected


# Normal crossings with the noise of samples

CROSSINGS = [(1,), (2,), (3,), (1, 1), (1, 2), (2, 2), (1, 3), (2, 3), (1, 1, 2)]
NOISE = {"in nats": (1.0, 1000, True), "small, in nats": (0.3, 10_000, True), "squares": (0.3, 300, False)}
"""Standard deviation, samples, and whether squared errors are divided by twice its square."""


def crossing(powers: tuple[int, ...], noise: float, n: int, in_nats: bool, seed: int) -> LossAndGradient:
    """Return the squared error of y = w_1^k_1 ... w_d^k_d x on samples of which the true y is noise alone."""
    rng, k = np.random.default_rng([seed, *powers]), np.array(powers, float)
    x, y = rng.normal(size=n), noise * rng.normal(size=n)
    xx, xy, yy, unit = x @ x / n, x @ y / n, y @ y / n, 1 / (2 * noise**2) if in_nats else 1.0

    def loss(w: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        factors = w**k
        others = np.array([np.prod(np.delete(factors, i)) for i in range(len(k))])
        product = factors.prod()
        value = unit * (product**2 * xx - 2 * product * xy + yy)
        return float(value), 2 * unit * (product * xx - xy) * k * w ** (k - 1) * others

    return loss


@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize("seed", [0, 1])
def test_noisy_normal_crossings_have_an_estimate(kind: str, seed: int) -> None:
    """lambda is 1 / (2 max k): within the interval, or there is a flag, for at least eight of nine."""
    noise, n, in_nats = NOISE[kind]
    n_answers = 0
    for powers in CROSSINGS:
        loss = crossing(powers, noise, n, in_nats, seed)
        found = local_learning_coefficient(loss, np.zeros(len(powers)), n=n, n_draws=300)
        low, high = found.interval
        assert found.flag == "" or (found.negative_share > 0.1 and "," not in found.flag and "\n" not in found.flag)
        n_answers += not found.reason and (low <= 1 / (2 * max(powers)) <= high or found.flag != "")
    assert n_answers >= 8


def saddle(height: float, d: int) -> LossAndGradient:
    """Half the coordinates go up, and as many down as far as some walls; the last is a slope if d is odd."""
    signs = np.where(np.arange(d) % 2 == 0, 1.0, -1.0)

    def loss(w: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        return height * float(signs @ w**2 + (w**4).sum()), height * (2 * signs * w + 4 * w**3)

    return loss


@pytest.mark.parametrize("height", [0.05, 30.0])
@pytest.mark.parametrize("d", [2, 5, 40])
@pytest.mark.parametrize("seed", [0, 1])
def test_saddles_and_slopes_have_none(height: float, d: int, seed: int) -> None:
    def tilted(w: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        return height * float((w**2).sum() + w.sum()), height * (2 * w + 1)

    for loss in (saddle(height, d), tilted):
        found = local_learning_coefficient(loss, np.zeros(d), n=2000, n_draws=200, n_warmup=200, seed=seed)
        assert found.reason
        assert not found.flag
        assert math.isnan(found.value)


# No estimate

FEW: dict[str, Any] = {"n": 1000, "n_draws": 100, "n_warmup": 50, "n_leapfrog": 2}


def wells(w: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    """The deepest well is at 0."""
    return float((1 - np.cos(2 * w) + 0.01 * w**2).sum()), 2 * np.sin(2 * w) + 0.02 * w


def slope(w: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    return float(w.sum()), np.ones_like(w)


def cliff(w: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    return (float(w @ w) if (np.abs(w) < 0.1).all() else math.nan), 2 * w


@pytest.mark.parametrize(
    ("loss", "options", "word"),
    [
        (wells, {"localisation": 0.05, "n": 10**6}, "disagree"),
        (slope, {"localisation": 100.0, "n_draws": 1000}, "left for a lower loss (below that of the point at 100%"),
        (cliff, {"localisation": 1e-4}, "not finite"),
        (quadratic(np.ones(3)), {"step": 1e6}, "accept 0%"),
        (quadratic(np.ones(3)), {"n_draws": 9, "n_leapfrog": 8, "seed": 2}, "effective draws"),
    ],
    ids=["wells", "slope", "cliff", "large step", "few draws"],
)
def test_there_is_no_estimate(loss: Callable[..., Any], options: dict[str, Any], word: str) -> None:
    found = local_learning_coefficient(loss, np.zeros(3), **FEW | options)
    assert math.isnan(found.value)
    assert math.isnan(found.standard_error)
    assert word in found.reason
    assert found.reason.splitlines() == [found.reason]
    assert "no estimate" in repr(found)
    assert len(found.chains) == 4


def test_a_loss_that_does_not_vary() -> None:
    found = local_learning_coefficient(lambda w: (2.5, 0 * w), np.zeros(3), **FEW)
    assert (found.value, found.standard_error, found.reason) == (0.0, 0.0, "")
    assert math.isnan(found.r_hat)


def test_the_same_call_gives_the_same_bits_and_another_seed_others() -> None:
    loss = quadratic(CURVATURE)
    first, again, other = (local_learning_coefficient(loss, np.ones(4), **FEW, seed=seed) for seed in (0, 0, 1))
    assert (first.chains == again.chains).all()
    assert (first.chains != other.chains).all()


def test_a_point_of_32_bits_stays_so() -> None:
    seen = set()

    def loss(w: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        seen.add(w.dtype)
        return 0.5 * float(w.astype(np.float64) @ w), w

    found = local_learning_coefficient(loss, np.zeros(50, np.float32), n=1000, n_draws=200, n_warmup=100)
    assert seen == {np.dtype(np.float32)}
    assert_agrees(found, exact(np.ones(50), 1000 / math.log(1000), 1.0), within=0.03)


@pytest.mark.parametrize(
    ("point", "options", "word"),
    [
        (np.zeros((2, 2)), {}, "shape"),
        (np.zeros(0), {}, "shape"),
        (np.zeros(2, int), {}, "int64"),
        (np.array([1.0, math.nan]), {}, "NaN"),
        *[(np.zeros(2), {name: 0.0}, name) for name in ("localisation", "beta", "step")],
        (np.zeros(2), {"localisation": math.inf}, "localisation"),
        *[
            (np.zeros(2), {name: least - 1}, name)
            for name, least in {"n": 2, "n_chains": 2, "n_draws": 4, "n_warmup": 8, "n_leapfrog": 1}.items()
        ],
    ],
)
def test_what_is_refused(point: NDArray[Any], options: dict[str, Any], word: str) -> None:
    with pytest.raises(ToposcopeError, match=word):
        local_learning_coefficient(quadratic(np.ones(2)), point, **{"n": 100, **options})


def test_a_loss_that_is_not_finite_at_the_point_is_refused() -> None:
    with pytest.raises(ToposcopeError, match="nan at the point"):
        local_learning_coefficient(lambda w: (math.nan, w), np.zeros(2), n=100)
