"""The shape of the loss on planes: merge trees, several planes, second derivatives."""

import dataclasses

import numpy as np
import pytest
import torch
from function_loss import as_loss
from once_differentiable import cube
from torch import Tensor

from toposcope.errors import ToposcopeError
from toposcope.family.model import build
from toposcope.homology import Diagram, profile_grid
from toposcope.models.family_model import FamilyModel
from toposcope.models.loss_planes import (
    Axes,
    Plane,
    Surface,
    between_planes,
    estimates,
    evaluate,
    grid_sample,
    measure_plane,
    random_directions,
    scattered_sample,
    shape_of,
)
from toposcope.models.loss_planes.directions import hessian_directions
from toposcope.models.loss_planes.landscape import slice_curvature
from toposcope.models.loss_planes.shape import distances_between
from toposcope.models.summed_loss import text_loss
from toposcope.models.texts import TokenSequence


def sequences(count: int, vocabulary: int, length: int) -> list[TokenSequence]:
    rng = np.random.default_rng(0)
    lengths = [length] * (count - 1) + [length // 2]
    return [TokenSequence(tuple(rng.integers(0, vocabulary, n).tolist())) for n in lengths]


def himmelblau(w: Tensor) -> Tensor:
    return (w[0] ** 2 + w[1] - 11) ** 2 + (w[0] + w[1] ** 2 - 7) ** 2


def plane_surface(function: object, shape: tuple[int, int], span: float) -> Surface:
    loss = as_loss(function, torch.zeros(2, dtype=torch.float64))  # type: ignore[arg-type]
    return evaluate(loss, torch.eye(2, dtype=torch.float64), grid_sample(shape, span))


def test_himmelblau() -> None:
    shape = shape_of(plane_surface(himmelblau, (101, 101), 6.0))
    found = shape.statistics
    bars = [13.282268, 67.631770, 103.832294]
    assert sorted(shape.tree.diagram.lifetimes) == pytest.approx(bars, abs=1e-6)
    assert found["average_persistence"] == pytest.approx(np.mean(bars), abs=1e-6)
    assert found["max_persistence"] == pytest.approx(max(bars), abs=1e-6)
    assert found["total_persistence"] == pytest.approx(sum(bars), abs=1e-6)
    assert (found["minima"], found["saddles"]) == (4, 4)
    assert found["centre_height"] == pytest.approx(170, abs=0.1)
    assert found["range"] > 2000
    assert 0 < found["side_basin_share"] < 1
    assert not shape.minimum_on_border
    assert (shape.n_on_border, shape.n_within_rounding) == (0, 0)


def test_side_basins_beyond_those_of_the_profile_count() -> None:
    """Of the 387 basins of noise, a profile holds 100."""
    surface = plane_surface(himmelblau, (51, 51), 6.0)
    noise = np.random.default_rng(0).normal(size=(51 * 51, 1))
    shape = shape_of(dataclasses.replace(surface, totals=noise))
    assert shape.statistics["minima"] == 387
    every = profile_grid(noise.reshape(51, 51), connectivity="freudenthal", n_levels=32, max_basins=1000)
    areas = every.widths[:, :-1] @ np.diff(every.levels)
    assert shape.statistics["side_basin_share"] == pytest.approx(1 - areas[0] / areas.sum(), rel=0.03)


def test_a_bowl_has_no_finite_bar_and_a_slope_its_minimum_on_the_border() -> None:
    bowl = shape_of(plane_surface(lambda w: w.square().sum(), (9, 9), 1.0))
    assert bowl.statistics.keys().isdisjoint({"average_persistence", "smad"})
    assert (bowl.statistics["minima"], bowl.statistics["saddles"], bowl.statistics["total_persistence"]) == (1, 0, 0)
    assert bowl.statistics["centre_height"] == 0
    assert not bowl.minimum_on_border
    slope = shape_of(plane_surface(lambda w: w.sum(), (9, 9), 1.0))
    assert (slope.minimum_on_border, slope.n_on_border) == (True, 1)
    corners = shape_of(plane_surface(lambda w: -(w[0] ** 2) * w[1] ** 2, (9, 9), 1.0))
    assert (corners.statistics["minima"], corners.n_on_border) == (4, 4)


def test_losses_that_are_not_finite_are_a_plateau() -> None:
    """Two wells and a wall between them that is infinite: the bar ends where the finite losses do."""

    def walled(w: Tensor) -> Tensor:
        return torch.where(w[0].abs() < 0.3, torch.inf, (w[0].abs() - 0.5) ** 2 + 0.1 * w[0])

    function = plane_surface(lambda w: walled(w - torch.tensor([0.5, 0.0])), (21, 5), 1.0)
    shape = shape_of(function)
    assert shape.n_not_finite > 0
    assert np.isfinite(shape.values).all()
    finite = function.values[np.isfinite(function.values)]
    assert len(finite) == 105 - shape.n_not_finite
    assert shape.statistics["range"] == pytest.approx(np.ptp(finite))
    assert shape.tree.diagram.pairs[:, 1].max() == finite.max()
    nowhere = Surface(function.sample, np.full((105, 1), np.nan), np.array([1]), 1e-15)
    with pytest.raises(ToposcopeError, match="finite nowhere"):
        shape_of(nowhere)


def test_scattered_points_find_the_minima_that_a_grid_finds() -> None:
    loss = as_loss(himmelblau, torch.zeros(2, dtype=torch.float64))
    found = evaluate(loss, torch.eye(2, dtype=torch.float64), scattered_sample(10_000, 6.0, 0, "uniform"))
    shape = shape_of(found)
    deep = shape.tree.diagram.lifetimes > 5
    assert deep.sum() == 3
    assert shape.statistics["minima"] - shape.statistics["saddles"] <= 1
    neighbours = shape_of(found, "nearest")
    assert neighbours.statistics["minima"] > 10
    assert "saddles" not in neighbours.statistics


@pytest.mark.slow
def test_distances_between_diagrams() -> None:
    one = Diagram(np.array([(0.0, 1.0), (0.0, 3.0)]), 0)
    two = Diagram(np.array([(0.0, 1.2), (0.5, 2.5)]), 0)
    assert distances_between([one, two]) == pytest.approx({"wasserstein_1": 0.7, "bottleneck": 0.5})
    assert distances_between([one, two, one])["bottleneck"] == pytest.approx(1 / 3)
    assert distances_between([one]) == {}


# Several planes


def planes_of(n: int) -> list[Plane]:
    model = FamilyModel(build("tiny-3k", initial_scale=8.0).eval(), "memory", torch.device("cpu"))
    loss = text_loss(model, sequences(6, 128, 24), torch.float64)
    return [
        measure_plane(loss, Axes(random_directions(loss.point, loss.blocks, seed)), grid_sample((9, 9), 1.5), batches=3)
        for seed in range(n)
    ]


def test_spreads_are_those_of_the_planes_batches_and_resolutions() -> None:
    planes = planes_of(3)
    found = estimates(planes)
    ranges = [np.ptp(plane.surface.values) for plane in planes]
    assert found["range"].mean == pytest.approx(np.mean(ranges))
    assert found["range"].planes == pytest.approx(np.std(ranges, ddof=1))
    batches = [[np.ptp(p.surface.totals[:, k] / p.surface.tokens[k]) for k in range(3)] for p in planes]
    assert found["range"].batches == pytest.approx(np.mean([np.std(each, ddof=1) for each in batches]))
    coarse = [np.ptp(plane.surface.values.reshape(9, 9)[::2, ::2]) for plane in planes]
    assert found["range"].resolution == pytest.approx(np.mean(np.abs(np.subtract(ranges, coarse))))
    assert all(each.n_planes == 3 for name, each in found.items() if name not in ("average_persistence", "smad"))
    assert set(between_planes(planes)) == {"wasserstein_1", "bottleneck"}
    alone = estimates(planes[:1])["range"]
    assert (alone.planes, alone.n_planes) == (None, 1)
    assert between_planes(planes[:1]) == {}


def test_the_height_of_the_checkpoint_has_its_change_at_every_resolution() -> None:
    """Of 7 points the checkpoint is the fourth, and not one of every second."""
    loss = as_loss(himmelblau, torch.zeros(2, dtype=torch.float64))
    for side in (7, 9):
        plane = measure_plane(loss, Axes(torch.eye(2, dtype=torch.float64)), grid_sample((side, side), 6.0))
        lowest = [surface.values.min() for surface in (plane.surface, plane.surface.half())]
        found = estimates([plane])["centre_height"]
        assert found.mean == pytest.approx(170 - lowest[0])
        assert found.resolution == pytest.approx(lowest[1] - lowest[0])


def test_second_derivatives_within_a_plane() -> None:
    matrix = torch.tensor([[4.0, 1, 0], [1, 3, 2], [0, 2, -1]], dtype=torch.float64)
    loss = as_loss(lambda w: w @ matrix @ w / 2, torch.zeros(3, dtype=torch.float64))
    directions = torch.tensor([[1.0, 0, 0], [0, 0.5, 0]], dtype=torch.float64)
    plane = measure_plane(loss, Axes(directions), grid_sample((5, 5), 1.0))
    np.testing.assert_allclose(plane.curvature, [[4, 0.5], [0.5, 0.75]], rtol=1e-12)
    found = estimates([plane])
    assert found["slice_curvature_max"].mean == pytest.approx(np.linalg.eigvalsh(plane.curvature)[1])
    assert found["slice_curvature_mean"].mean == pytest.approx(4.75 / 2)
    assert (found["slice_curvature_max"].error or 0) < 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_second_derivatives_by_differences_have_their_error(seed: int) -> None:
    mix = torch.from_numpy(np.random.default_rng(seed).normal(size=(12, 12))).float()
    point, directions = (
        torch.linspace(-1, 2, 12),
        torch.from_numpy(np.random.default_rng(seed + 9).normal(size=(2, 12))),
    )
    found, error = slice_curvature(as_loss(lambda w: cube(torch.sin(mix @ w)).sum(), point), directions)
    wide = as_loss(lambda w: (torch.sin(mix.double() @ w) ** 3).sum(), point.double())
    exact, rounding = slice_curvature(wide, directions)
    wrong = np.abs(np.linalg.eigvalsh(found) - np.linalg.eigvalsh(exact)).max()
    assert rounding < 1e-10 < wrong <= error < 0.1 * np.abs(exact).max()


def test_planes_along_eigenvectors_have_eigenvalues_with_residuals() -> None:
    matrix = torch.tensor([[4.0, 1, 0], [1, 3, 2], [0, 2, -1]], dtype=torch.float64)
    loss = as_loss(lambda w: w @ matrix @ w / 2, torch.zeros(3, dtype=torch.float64))
    axes = hessian_directions(loss, 0)
    assert axes.converged
    found = estimates([measure_plane(loss, axes, grid_sample((5, 5), 1.0))])
    for name, value in (("eigenvalue_1", 4.85410197), ("eigenvalue_2", 3.0)):
        assert found[name].mean == pytest.approx(value, abs=1e-8)
        error = found[name].error
        assert error is not None
        assert error < 1e-8
