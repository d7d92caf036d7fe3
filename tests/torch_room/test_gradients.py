"""Gradients of rips and neural persistence against finite differences of the values without gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import toposcope as ts
from toposcope.homology import statistics

torch = pytest.importorskip("torch")
tt: Any = ts.torch

Clouds = arrays(np.float64, st.tuples(st.integers(2, 9), st.integers(1, 3)), elements=st.integers(-2, 2).map(float))
"""With ties, and with points that are equal."""


def relative_error(value: Callable[[np.ndarray], float], at: np.ndarray, gradient: np.ndarray) -> float:
    """Of the slope along the gradient and a random direction, against a central difference of fourth order."""
    random = np.random.default_rng(1).standard_normal(at.shape)
    along, step = gradient / np.linalg.norm(gradient) + random / np.linalg.norm(random), 1e-5
    near, far = (value(at + k * step * along) - value(at - k * step * along) for k in (1, 2))
    slope = (8 * near - far) / (12 * step)
    return float(abs((gradient * along).sum() - slope) / abs(slope))


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def rips_error(points: np.ndarray, dimension: int) -> float:
    def total(x: np.ndarray) -> float:
        return float(ts.rips(x, max_dimension=dimension)[dimension].lifetimes.sum())

    tensor = torch.tensor(points, requires_grad=True)
    tt.total(tt.rips(tensor, max_dimension=dimension)[dimension]).backward()
    return relative_error(total, points, tensor.grad.numpy())


def persistence_error(W: np.ndarray) -> float:
    tensor = torch.tensor(W, requires_grad=True)
    tt.neural_persistence(tensor).mean.backward()
    return relative_error(lambda x: ts.neural_persistence(x).mean, W, tensor.grad.numpy())


@pytest.mark.parametrize(("n", "d"), [(60, 3), (100, 512), (300, 10)])
def test_finite_differences(n: int, d: int) -> None:
    points = normal(n, d)
    assert rips_error(points, 0) < 1e-7
    assert rips_error(points[:100], 1) < 1e-8
    assert persistence_error(points) < 1e-9


@pytest.mark.slow
def test_finite_differences_of_many_points() -> None:
    for d in (3, 64, 512):
        assert rips_error(normal(2000, d), 0) < 1e-7
    assert rips_error(normal(600, 10), 1) < 1e-8
    assert persistence_error(normal(2000, 512)) < 1e-9


def test_second_derivatives() -> None:
    angles = 2 * np.pi * np.arange(7) / 7
    ring = np.column_stack([np.cos(angles), np.sin(angles), 0 * angles]) + 0.1 * normal(7, 3)
    cloud, matrix = (torch.tensor(values, requires_grad=True) for values in (ring, normal(4, 3)))
    at, births, lifetimes = [0.3, 0.9, 1.4], [-np.inf, 0.4, 1.0], [0.0, 0.4, np.inf]
    target = ts.rips(normal(8, 3))[0]

    def of_cloud(points: object, metric: str = "euclidean", pairing: object = None) -> object:
        h0, h1 = tt.rips(points, metric=metric, pairing=pairing)
        scalars = [tt.total(h0), tt.total(h0, scale_free=True), tt.entropy(h0), 3 * tt.total(h1, scale_free=True)]
        scalars += [tt.wasserstein(h0, target, order=order) for order in (1, 2)]
        weights = torch.arange(4.0, dtype=torch.float64).view(2, 2)
        images = (tt.image(h, births, lifetimes, 0.2) * weights for h in (h0, h1))
        return torch.stack([*scalars, tt.landscape(h0, at, 3).sum(), *(each.sum() for each in images)]).sin().sum()

    def of_matrix(W: object, scale: object = "layer") -> object:
        found = tt.neural_persistence(W, scale=scale)
        scalars = [found.mean, found.norm, found.normalized, tt.total(found.diagram), tt.entropy(found.diagram)]
        return torch.stack(scalars).sin().sum()

    distances = torch.cdist(cloud, cloud).detach().requires_grad_()
    kept = tt.rips(distances, metric="precomputed")
    assert len(kept[1].pairs)
    for function, of in [
        (of_cloud, cloud),
        (lambda x: of_cloud(x, "cosine"), cloud),
        (lambda x: of_cloud(x, "precomputed", kept), distances),
        (of_matrix, matrix),
        (lambda x: of_matrix(x, 2 * x.abs().max()), matrix),
    ]:
        assert torch.autograd.gradcheck(function, (of,), fast_mode=True)
        assert torch.autograd.gradgradcheck(function, (of,), fast_mode=True)


@settings(max_examples=30, deadline=None)
@given(Clouds)
def test_ties_and_equal_points(points: np.ndarray) -> None:
    """The total of H0 is the least over all trees: that of the tree whose gradient it is bounds it from above."""
    tensor = torch.tensor(points, requires_grad=True)
    diagrams = tt.rips(tensor)
    for diagram, exact in zip(diagrams, ts.rips(points), strict=True):
        # the root of a tensor errs in its last digit on some processors
        np.testing.assert_array_max_ulp(diagram.pairs.detach().numpy(), exact.pairs, maxulp=2)
        assert diagram.n_essential == exact.n_essential
    total = tt.total(diagrams[0])
    (gradient,) = torch.autograd.grad(total, tensor, create_graph=True)
    step = 1e-4 * np.random.default_rng(0).standard_normal(points.shape)
    # zero bars of equal points grow at first order in any direction
    _, first, apart = np.unique(points, axis=0, return_index=True, return_inverse=True)
    step = step[first][apart.ravel()]
    moved = float(ts.rips(points + step, max_dimension=0)[0].lifetimes.sum())
    assert moved <= total.item() + (gradient.detach().numpy() * step).sum() + 1e-5
    loss = (gradient**2).sum() + tt.total(diagrams[1], scale_free=True) + tt.entropy(diagrams[0])
    loss.backward()
    assert torch.isfinite(tensor.grad).all()


def test_bars_of_length_zero_have_no_gradient() -> None:
    for values in (torch.zeros(4, 3), torch.full((4, 3), 7.0)):
        points = values.double().requires_grad_()
        (h0,) = tt.rips(points, max_dimension=0)
        assert h0.pairs.tolist() == [[0.0, 0.0]] * 3
        value = tt.total(h0, scale_free=True) + tt.entropy(h0) + tt.total(h0)
        value += tt.wasserstein(h0, ts.rips(values, max_dimension=0)[0])
        (gradient,) = torch.autograd.grad(value, points, create_graph=True)
        assert not gradient.any()
        gradient.square().sum().backward()
        assert not points.grad.any()


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "precomputed"])
def test_points_that_are_there_twice_are_as_if_there_once(metric: str) -> None:
    def slope(points: np.ndarray) -> Any:
        values = torch.tensor(points)
        of = ((values[:, None] - values).norm(dim=2) if metric == "precomputed" else values).requires_grad_()
        h0, h1 = tt.rips(of, metric=metric)
        assert len(h1.pairs)
        (found,) = torch.autograd.grad(tt.total(h0) + tt.total(h1) + tt.entropy(h0), of)
        return found

    points = np.column_stack([normal(30, 2), np.ones(30)])
    once, both = slope(points), slope(np.concatenate([points, points]))
    if metric == "precomputed":
        assert not both[range(60), [*range(30, 60), *range(30)]].any()  # where the distance is 0
        both = both.reshape(2, 30, 60).sum(0).reshape(30, 2, 30).sum(1)
    else:
        both = both.reshape(2, 30, 3).sum(0)
    torch.testing.assert_close(both, once, rtol=1e-9, atol=1e-12)


def test_an_all_zero_matrix() -> None:
    W = torch.zeros(3, 4, requires_grad=True)
    found = tt.neural_persistence(W)
    (found.mean + found.norm + found.normalized + tt.entropy(found.diagram)).backward()
    assert (found.mean.item(), found.norm.item(), found.normalized.item()) == (0, 0, 0)
    assert not W.grad.any()


def test_a_total_beyond_the_range_of_16_bits() -> None:
    points = torch.tensor(normal(300, 20) * 100).half().requires_grad_()
    (h0,) = tt.rips(points, max_dimension=0)
    (same,) = tt.rips(points.double(), max_dimension=0)
    assert tt.total(same) > torch.finfo(torch.float16).max
    for function in (lambda h: tt.total(h, scale_free=True), tt.entropy):
        assert function(h0).item() == pytest.approx(function(same).item(), rel=2e-3)
        (found,), (exact,) = (
            torch.autograd.grad(1024 * function(h), points, retain_graph=True) for h in (h0, same)
        )  # as losses are scaled
        assert (found - exact).norm() < 0.01 * exact.norm()


def test_a_total_beyond_the_range_of_32_bits() -> None:
    near, far = (tt.rips(torch.tensor(normal(30, 4)).float() * unit, 0)[0] for unit in (1, 2.0**124))
    assert tt.total(far).isinf()
    for function in (lambda h: tt.total(h, scale_free=True), tt.entropy):
        assert function(far).item() == pytest.approx(function(near).item(), rel=1e-5)


def test_second_derivatives_at_any_scale() -> None:
    def curvature(unit: float) -> object:
        points = torch.tensor(normal(12, 3) * unit, requires_grad=True)
        h0, h1 = tt.rips(points)
        value = tt.total(h0, scale_free=True) + tt.total(h1, scale_free=True) + tt.entropy(h0)
        (slope,) = torch.autograd.grad(value, points, create_graph=True)
        (second,) = torch.autograd.grad((slope * unit).square().sum() / 2, points)
        return second * unit

    usual = curvature(1 / 2)
    for exponent in (-450, -300, 300, 450):
        torch.testing.assert_close(curvature(2.0**exponent), usual, rtol=1e-9, atol=1e-12)


def test_autocast_changes_nothing() -> None:
    points = torch.tensor(normal(20, 3)).float()
    edges = [0.0, 0.5, 2.0]
    expected = tt.image(tt.rips(points)[0], edges, edges, 0.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(tt.image(tt.rips(points)[0], edges, edges, 0.3), expected)


def test_within_a_compiled_function() -> None:
    W = torch.tensor(normal(4, 3), requires_grad=True)

    def value(W: object) -> object:
        return 2 * tt.neural_persistence(W).mean + tt.total(*tt.rips(W, 0), scale_free=True)

    (compiled,), (exact,) = (torch.autograd.grad(f(W), W) for f in (torch.compile(value, backend="eager"), value))
    assert torch.equal(compiled, exact)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e25])
def test_far_from_the_origin_in_float32(scale: float) -> None:
    points = (normal(50, 10) * scale).astype(np.float32)
    points[:, 3] = 1e4 * scale
    tensor = torch.tensor(points, requires_grad=True)
    (h0,) = tt.rips(tensor, max_dimension=0)
    exact = ts.rips(points, max_dimension=0)[0].lifetimes.sum()
    assert tt.total(h0).item() == pytest.approx(exact, rel=1e-6)
    tt.total(h0).backward()
    wide = torch.tensor(points.astype(np.float64), requires_grad=True)
    tt.total(tt.rips(wide, max_dimension=0)[0]).backward()
    torch.testing.assert_close(tensor.grad.double(), wide.grad, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_distances_leaves_them_symmetric() -> None:
    distances = torch.cdist(torch.tensor(normal(8, 2)), torch.tensor(normal(8, 2)))
    distances = (distances + distances.T).fill_diagonal_(0).requires_grad_()
    h0, h1 = tt.rips(distances, metric="precomputed")
    (tt.total(h0) + tt.total(h1)).backward()
    assert torch.equal(distances.grad, distances.grad.T)
    assert distances.grad.sum().item() == pytest.approx(7)


def test_a_loop_is_opened_by_descent() -> None:
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 2 * np.pi, 40)
    ring = np.column_stack([np.cos(angles), np.sin(angles)]) + 0.25 * rng.standard_normal((40, 2))
    points = torch.tensor(ring, requires_grad=True)
    optimizer = torch.optim.SGD([points], lr=0.05)
    before = ts.rips(ring)[1].lifetimes.max()
    for _ in range(40):
        optimizer.zero_grad()
        loss = (points.norm(dim=1) - 1).relu().square().sum() - tt.rips(points)[1].lifetimes.max()
        loss.backward()
        optimizer.step()
    assert ts.rips(points.detach())[1].lifetimes.max() > 1.3 * before


def test_entropy_is_that_of_the_statistics() -> None:
    for diagram, exact in zip(tt.rips(torch.tensor(normal(30, 3))), ts.rips(normal(30, 3)), strict=True):
        assert tt.entropy(diagram).item() == pytest.approx(statistics(exact)["entropy"], rel=1e-12)
