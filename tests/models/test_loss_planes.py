"""Planes of the loss: directions, grids, the loss on many points at once, and its shape."""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from tiny_models import CONTEXT, KINDS, VOCABULARY, opened, saved
from torch import Tensor

from toposcope.errors import ToposcopeError
from toposcope.family.model import build
from toposcope.family.run import ModelSize
from toposcope.homology import Diagram, profile_grid
from toposcope.models import load_model
from toposcope.models.family_model import FamilyModel
from toposcope.models.loss_planes import (
    Axes,
    Plane,
    Surface,
    Unfinished,
    between_planes,
    can_move,
    eigenvector_directions,
    estimates,
    evaluate,
    grid_sample,
    measure_plane,
    path_directions,
    points_on_disk,
    random_directions,
    scattered_sample,
    shape_of,
)
from toposcope.models.loss_planes.directions import hessian_directions
from toposcope.models.loss_planes.landscape import slice_curvature
from toposcope.models.loss_planes.shape import distances_between
from toposcope.models.loss_planes.surface import losses_at
from toposcope.models.summed_loss import Block, SummedLoss, text_loss
from toposcope.models.texts import TokenSequence
from toposcope.progress import Progress

BLOCKS = {
    "matrix": Block(0, 12, (3, 4)),
    "bias": Block(12, 15, (3,)),
    "stored the other way": Block(15, 27, (4, 3), transposed=True),
    "kernel": Block(27, 51, (2, 3, 4)),
    "column": Block(51, 56, (5, 1)),
}


def point_of(seed: int, size: int = 56) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=size))


def filters_of(flat: Tensor, name: str) -> Tensor:
    block = BLOCKS[name]
    weights = flat[block.start : block.stop].view(block.shape)
    return weights.T if block.transposed else weights.flatten(1)


# Directions


@given(seed=st.integers(0, 2**60), of=st.integers(0, 2**30))
@examples(60)
def test_every_filter_is_moved_by_its_own_length_and_at_right_angles(seed: int, of: int) -> None:
    point = point_of(of)
    first, second = random_directions(point, BLOCKS, seed)
    for name in ("matrix", "stored the other way", "kernel"):
        a, b, weights = (filters_of(flat, name) for flat in (first, second, point))
        torch.testing.assert_close(a.norm(dim=1), weights.norm(dim=1), rtol=1e-12, atol=0)
        torch.testing.assert_close(b.norm(dim=1), weights.norm(dim=1), rtol=1e-12, atol=0)
        assert float((a * b).sum(dim=1).abs().max()) < 1e-12 * float(weights.square().sum())
    assert abs(float(first @ second)) < 1e-12 * float(point @ point)
    for name in ("bias", "column"):
        block = BLOCKS[name]
        assert not first[block.start : block.stop].any()
        assert not second[block.start : block.stop].any()


def test_directions_are_seeded_by_the_name_of_a_parameter() -> None:
    point = point_of(0)
    one = random_directions(point, BLOCKS, seed=3)
    assert torch.equal(one, random_directions(point, BLOCKS, seed=3))
    assert not torch.equal(one, random_directions(point, BLOCKS, seed=4))
    alone = random_directions(point[:12], {"matrix": BLOCKS["matrix"]}, seed=3)
    assert torch.equal(alone, one[:, :12])


def test_the_directions_of_single_filters_are_uniform_on_the_sphere() -> None:
    """Gaussian draws, normalised: the mean is zero, and no coordinate is larger than another."""
    blocks = {"matrix": Block(0, 60000, (20000, 3))}
    point = torch.ones(60000, dtype=torch.float64)
    for direction in random_directions(point, blocks, seed=0):
        units = direction.view(-1, 3) / math.sqrt(3)
        assert float(units.mean(dim=0).abs().max()) < 6 / math.sqrt(3 * 20000)
        assert float((units.square().mean(dim=0) - 1 / 3).abs().max()) < 6 * math.sqrt(4 / 45 / 20000)


def test_weights_that_cannot_move() -> None:
    blocks = {"bias": Block(0, 3, (3,)), "zeros": Block(3, 9, (2, 3)), "column": Block(9, 11, (2, 1))}
    point = torch.cat([torch.ones(3), torch.zeros(6), torch.ones(2)])
    assert not can_move(point, blocks)
    assert can_move(point + 1, blocks)
    with pytest.raises(ToposcopeError, match="weights other than zero"):
        random_directions(point, blocks, seed=0)


def test_eigenvectors_are_scaled_to_one_nat() -> None:
    curvatures = torch.tensor([8.0, -2.0, 0.5], dtype=torch.float64)
    loss = SummedLoss.of_function(lambda w: (curvatures * w**2).sum() / 2, torch.zeros(3, dtype=torch.float64))
    directions = eigenvector_directions([8.0, -2.0], torch.eye(3, dtype=torch.float64)[:2])
    found = evaluate(loss, directions, grid_sample((3, 3), 1.0)).values.reshape(3, 3)
    np.testing.assert_allclose(found, [[0, 1, 0], [-1, 0, -1], [0, 1, 0]], atol=1e-14)
    with pytest.raises(ToposcopeError, match="set no scale"):
        eigenvector_directions([1.0, 0.0], torch.eye(3)[:2])


def test_the_plane_of_a_path_goes_through_it() -> None:
    """A path in a plane is all in the plane found, whose components are those of an independent decomposition."""
    rng = np.random.default_rng(5)
    inside = rng.normal(size=(7, 2)) * [5, 2]
    basis = np.linalg.qr(rng.normal(size=(40, 2)))[0].T
    point = torch.from_numpy(rng.normal(size=40))
    path = point + torch.from_numpy(inside @ basis)
    directions, coordinates, share = path_directions(point, list(path))
    assert share == pytest.approx(1)
    assert np.abs(coordinates).max() == pytest.approx(0.8)
    torch.testing.assert_close(point + torch.from_numpy(coordinates) @ directions, path, rtol=1e-10, atol=1e-10)
    assert abs(float(directions[0] @ directions[1])) < 1e-10
    _, lengths, components = np.linalg.svd((path - point).numpy(), full_matrices=False)
    for k in range(2):
        cosine = float(directions[k] @ torch.from_numpy(components[k]) / directions[k].norm())
        assert abs(cosine) == pytest.approx(1)
        assert np.linalg.norm(coordinates[:, k]) * float(directions[k].norm()) == pytest.approx(lengths[k])


def test_a_path_on_disk_has_the_same_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    point, path = point_of(0).float(), [point_of(seed).float() for seed in range(1, 6)]
    stored = points_on_disk(iter(path))
    assert all(torch.equal(one, other) for one, other in zip(stored, path, strict=True))
    for one, other in zip(path_directions(point, stored), path_directions(point, path), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert points_on_disk([]) == []

    class Full:
        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def write(self, _: object) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", Full)
    with pytest.raises(ToposcopeError, match=r"No space left on device.*TMPDIR"):
        points_on_disk(path)


def test_a_path_that_spans_no_plane_is_refused() -> None:
    point = point_of(0)
    for path in ([point + 1], [point + 1, point + 2, point]):
        with pytest.raises(ToposcopeError, match=r"plane along a path|do not span a plane"):
            path_directions(point, path)


def test_a_path_with_weights_that_are_not_finite_is_refused() -> None:
    point = point_of(0)
    with pytest.raises(ToposcopeError, match="weights that are not finite"):
        path_directions(point, [point_of(1), point_of(2), point * float("nan")])


def test_the_plane_of_a_path_does_not_depend_on_how_much_is_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    point, path = point_of(0), [point_of(k) for k in (1, 2, 3)]
    directions, coordinates, share = path_directions(point, path)
    monkeypatch.setattr("toposcope.models.loss_planes.directions.PART", 10)
    again, coordinates_again, share_again = path_directions(point, path)
    torch.testing.assert_close(again, directions, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(coordinates_again, coordinates, rtol=1e-10)
    assert share_again == pytest.approx(share)


# Where a plane is sampled


def test_rows_of_a_grid_go_with_the_first_direction() -> None:
    sample = grid_sample((3, 5), (1.0, 2.0))
    places = sample.coordinates.reshape(3, 5, 2)
    np.testing.assert_array_equal(places[:, 0, 0], [-1, 0, 1])
    np.testing.assert_array_equal(places[0, :, 1], [-2, -1, 0, 1, 2])
    assert sample.border().reshape(3, 5).tolist() == [[True] * 5, [True, False, False, False, True], [True] * 5]
    half, chosen = sample.half()
    assert half.shape == (2, 3)
    np.testing.assert_array_equal(half.coordinates, sample.coordinates[chosen])


@given(m=st.integers(3, 60), n=st.integers(3, 60), span=st.floats(1e-3, 1e3))
@examples(60)
def test_the_checkpoint_is_a_point_of_every_odd_grid(m: int, n: int, span: float) -> None:
    sample = grid_sample((m, n), span)
    assert (sample.coordinates == 0).all(axis=1).any() == (m % 2 == n % 2 == 1)
    x, y = np.meshgrid(np.linspace(-span, span, m), np.linspace(-span, span, n), indexing="ij")
    np.testing.assert_allclose(sample.coordinates, np.stack([x.ravel(), y.ravel()], axis=1), atol=1e-12 * span)


def test_scattered_points() -> None:
    for how in ("latin", "uniform"):
        sample = scattered_sample(101, (1.0, 3.0), seed=2, how=how)
        assert len(sample) == 101
        assert sample.shape is None
        assert not sample.coordinates[0].any()
        assert (np.abs(sample.coordinates) <= [1, 3]).all()
        np.testing.assert_array_equal(sample.coordinates, scattered_sample(101, (1.0, 3.0), 2, how).coordinates)
        assert not sample.border()[0]
    slices = np.floor((scattered_sample(101, 1.0, 2).coordinates[1:] + 1) * 50).astype(int)
    for axis in slices.T:
        assert sorted(axis.tolist()) == list(range(100))


@pytest.mark.parametrize(
    "make",
    [
        lambda: grid_sample((2, 5), 1.0),
        lambda: grid_sample((5, 5), 0.0),
        lambda: grid_sample((5, 5), math.nan),
        lambda: scattered_sample(8, 1.0, 0),
        lambda: scattered_sample(20, -1.0, 0),
    ],
)
def test_samples_out_of_range_are_refused(make: object) -> None:
    with pytest.raises(ToposcopeError, match="plane: "):
        make()  # type: ignore[operator]


# The loss on many points


def sequences(count: int, vocabulary: int, length: int) -> list[TokenSequence]:
    rng = np.random.default_rng(0)
    lengths = [length] * (count - 1) + [length // 2]
    return [TokenSequence(tuple(rng.integers(0, vocabulary, n).tolist())) for n in lengths]


def in_a_loop(loss: SummedLoss, directions: Tensor, coordinates: Sequence[Sequence[float]]) -> list[float]:
    """One point after the other, each by itself."""
    return [loss.value(loss.point + a * directions[0] + b * directions[1]) for a, b in coordinates]


def test_a_plane_is_never_transposed() -> None:
    def uneven(w: Tensor) -> Tensor:
        return (w[0] - 1) ** 2 + 10 * w[1] + w[0] * w[1] ** 3

    loss = SummedLoss.of_function(uneven, torch.tensor([0.5, -0.25], dtype=torch.float64))
    sample = grid_sample((4, 7), (2.0, 3.0))
    found = evaluate(loss, torch.eye(2, dtype=torch.float64), sample).values.reshape(4, 7)
    x = 0.5 + np.linspace(-2, 2, 4)[:, None]
    y = -0.25 + np.linspace(-3, 3, 7)
    np.testing.assert_allclose(found, (x - 1) ** 2 + 10 * y + x * y**3, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_many_points_of_the_family_are_as_in_a_loop(dtype: torch.dtype) -> None:
    size = ModelSize(hidden=24, layers=2, heads=3, context=32)
    model = FamilyModel(build(size).eval(), "memory", torch.device("cpu"))
    loss = text_loss(model, sequences(5, 128, 32), dtype)
    sample = grid_sample((5, 3), 1.0)
    # Random directions leave biases and norms alone; others move everything.
    for directions in (random_directions(loss.point, loss.blocks, 0), 0.1 * torch.randn(2, len(loss.point)).to(dtype)):
        expected = in_a_loop(loss, directions, sample.coordinates.tolist())
        for together in (1, 4, 15):
            found = evaluate(loss, directions, sample, batches=2, together=together)
            np.testing.assert_allclose(found.values, expected, rtol=1e-6 if dtype == torch.float32 else 1e-13)
    assert found.totals.shape == (15, 2)
    assert found.tokens.tolist() == [3 * 31, 31 + 15]
    for k, places in enumerate(([0, 1, 2], [3, 4])):
        alone = in_a_loop(loss.on(places), directions, sample.coordinates.tolist())
        np.testing.assert_allclose(found.on_batch(k).values, alone, rtol=1e-6)


def test_nothing_in_a_model_of_the_family_is_computed_point_by_point() -> None:
    model = FamilyModel(build("tiny-3k").eval(), "memory", torch.device("cpu"))
    loss = text_loss(model, sequences(3, 128, 16))
    points = loss.point + 0.01 * torch.arange(4)[:, None]
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("error")  # vmap warns
        found = losses_at(loss, points, [True] * len(loss.blocks))
    expected = [loss.n_tokens * loss.value(point) for point in points]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["gpt_neox", "gpt2", "llama", "bloom", "mixtral", "gemma2"])
def test_many_points_of_other_models_are_as_in_a_loop(kind: str, tmp_path: Path) -> None:
    """Among them models of several attentions, and one whose numbers decide what is computed."""
    pytest.importorskip("transformers")
    assert kind in KINDS
    saved(tmp_path, kind)
    loss = text_loss(load_model(*opened(tmp_path)), sequences(3, VOCABULARY, CONTEXT // 2))
    directions = random_directions(loss.point, loss.blocks, 1)
    sample = grid_sample((3, 3), 0.3)
    found = evaluate(loss, directions, sample, together=5).values
    np.testing.assert_allclose(found, in_a_loop(loss, directions, sample.coordinates.tolist()), rtol=1e-6)


def test_twice_is_the_same_and_progress_is_reported() -> None:
    model = FamilyModel(build("tiny-3k").eval(), "memory", torch.device("cpu"))
    loss = text_loss(model, sequences(3, 128, 16))
    before = loss.point.clone()
    directions, sample = random_directions(loss.point, loss.blocks, 0), grid_sample((3, 5), 1.0)
    calls: list[tuple[str, int, int]] = []
    one, two = (
        evaluate(loss, directions, sample, together=4, progress=lambda *call: calls.append(call)).totals
        for _ in range(2)
    )
    assert np.array_equal(one, two)
    assert torch.equal(loss.point, before)
    assert calls[:5] == [("landscape", done, 15) for done in (0, 4, 8, 12, 15)]


def test_what_cannot_be_evaluated_is_refused() -> None:
    loss = SummedLoss.of_function(lambda w: w.sum(), torch.ones(2), sequences=2)
    with pytest.raises(ToposcopeError, match="3 batches of 2 sequences"):
        evaluate(loss, torch.eye(2), grid_sample((3, 3), 1.0), batches=3)
    broken = SummedLoss.of_function(lambda w: w.sum() * torch.nan, torch.ones(2))
    with pytest.raises(ToposcopeError, match="is nan"):
        evaluate(broken, torch.eye(2), grid_sample((3, 3), 1.0))


def test_a_slice_does_not_see_the_scale_of_relu_units() -> None:
    """Incoming weights times 10, outgoing ones by 10: the same function, and the same filter-normalised slice."""
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.normal(size=shape)) for shape in ((50, 4), (50, 3)))
    blocks = {"in": Block(0, 32, (8, 4)), "bias": Block(32, 40, (8,)), "out": Block(40, 64, (3, 8))}

    def mse(point: Tensor) -> Tensor:
        hidden = torch.relu(x @ point[:32].view(8, 4).T + point[32:40])
        return (hidden @ point[40:].view(3, 8).T - y).square().mean()

    plain = point_of(1, 64)
    scaled = plain * torch.tensor([10.0] * 40 + [0.1] * 24, dtype=torch.float64)
    surfaces = [
        evaluate(SummedLoss.of_function(mse, p, blocks), random_directions(p, blocks, 0), grid_sample((11, 11), 1.0))
        for p in (plain, scaled)
    ]
    a, b = (surface.values for surface in surfaces)
    assert np.abs(a / b - 1).max() <= 1e-15
    assert np.ptp(a) > 1


# Its shape


def himmelblau(w: Tensor) -> Tensor:
    return (w[0] ** 2 + w[1] - 11) ** 2 + (w[0] + w[1] ** 2 - 7) ** 2


def plane_surface(function: object, shape: tuple[int, int], span: float) -> Surface:
    loss = SummedLoss.of_function(function, torch.zeros(2, dtype=torch.float64))  # type: ignore[arg-type]
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
    loss = SummedLoss.of_function(himmelblau, torch.zeros(2, dtype=torch.float64))
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
    loss = SummedLoss.of_function(himmelblau, torch.zeros(2, dtype=torch.float64))
    for side in (7, 9):
        plane = measure_plane(loss, Axes(torch.eye(2, dtype=torch.float64)), grid_sample((side, side), 6.0))
        lowest = [surface.values.min() for surface in (plane.surface, plane.surface.half())]
        found = estimates([plane])["centre_height"]
        assert found.mean == pytest.approx(170 - lowest[0])
        assert found.resolution == pytest.approx(lowest[1] - lowest[0])


class Interrupted(Exception):
    """Raised by progress, as a key of the user would be."""


def interrupted_at(n: int) -> Progress:
    def progress(what: str, done: int, total: int) -> None:
        if done >= n:
            raise Interrupted

    return progress


@pytest.mark.parametrize("stop", [1, 200, 880])
def test_an_interrupted_plane_goes_on_where_it_was(stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.models.loss_planes.on_disk.SECONDS_BETWEEN_WRITES", 0)
    evaluated = [0]

    def counted(w: Tensor) -> Tensor:
        evaluated[0] += 1
        return himmelblau(w)

    loss = SummedLoss.of_function(counted, torch.zeros(2, dtype=torch.float64), sequences=3)
    directions, sample = torch.eye(2, dtype=torch.float64), grid_sample((30, 30), 6.0)
    whole = evaluate(loss, directions, sample, batches=3, together=7).totals
    kept = Unfinished(tmp_path / "kept", "a text")
    with pytest.raises(Interrupted):
        evaluate(loss, directions, sample, batches=3, together=7, unfinished=kept, progress=interrupted_at(stop))
    shown: list[int] = []
    resumed = evaluate(
        loss, directions, sample, batches=3, together=7, unfinished=kept, progress=lambda _, n, __: shown.append(n)
    ).totals
    assert resumed.tobytes() == whole.tobytes()
    assert shown[0] == 0
    assert shown[-1] <= 900 - max(7, stop - 7)
    evaluated[0] = 0
    again = evaluate(loss, directions, sample, batches=3, together=7, unfinished=kept).totals
    assert (again.tobytes(), evaluated[0]) == (whole.tobytes(), 1)  # the loss at the checkpoint alone


def test_points_of_other_weights_planes_or_texts_are_not_taken(tmp_path: Path) -> None:
    point, sample = torch.zeros(2, dtype=torch.float64), grid_sample((5, 5), 6.0)
    directions, kept = torch.eye(2, dtype=torch.float64), Unfinished(tmp_path, "a text")
    evaluate(SummedLoss.of_function(himmelblau, point), directions, sample, unfinished=kept)
    assert kept.points(point, directions, sample, 1).known.all()
    for other in (
        kept.points(point + 1e-9, directions, sample, 1),
        kept.points(point, 2 * directions, sample, 1),
        kept.points(point, directions, grid_sample((5, 5), 5.0), 1),
        kept.points(point, directions, sample, 2),
        Unfinished(tmp_path, "another text").points(point, directions, sample, 1),
    ):
        assert not other.known.any()
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    assert not kept.points(point, directions, sample, 1).known.any()
    (tmp_path / "a file of the user").touch()
    (tmp_path / ".axes-0.safetensors.partial").touch()
    kept.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["a file of the user"]


def test_eigenvectors_are_kept(tmp_path: Path) -> None:
    loss = SummedLoss.of_function(himmelblau, torch.zeros(2, dtype=torch.float64))
    kept = Unfinished(tmp_path, "a text")
    made = kept.axes(loss.point, "hessian", lambda: hessian_directions(loss, 0))
    found = kept.axes(loss.point, "hessian", lambda: pytest.fail("it is there"))
    assert torch.equal(found.vectors, made.vectors)
    assert (found.eigenvalues, found.residuals, found.converged) == (made.eigenvalues, made.residuals, made.converged)


def test_second_derivatives_within_a_plane() -> None:
    matrix = torch.tensor([[4.0, 1, 0], [1, 3, 2], [0, 2, -1]], dtype=torch.float64)
    loss = SummedLoss.of_function(lambda w: w @ matrix @ w / 2, torch.zeros(3, dtype=torch.float64))
    directions = torch.tensor([[1.0, 0, 0], [0, 0.5, 0]], dtype=torch.float64)
    plane = measure_plane(loss, Axes(directions), grid_sample((5, 5), 1.0))
    np.testing.assert_allclose(plane.curvature, [[4, 0.5], [0.5, 0.75]], rtol=1e-12)
    found = estimates([plane])
    assert found["slice_curvature_max"].mean == pytest.approx(np.linalg.eigvalsh(plane.curvature)[1])
    assert found["slice_curvature_mean"].mean == pytest.approx(4.75 / 2)
    assert (found["slice_curvature_max"].error or 0) < 1e-12


class OnceOnly(torch.autograd.Function):
    """A cube whose gradient has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upper: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gradient: Tensor = 3 * x**2 * upper
        return gradient


@pytest.mark.parametrize("seed", range(5))
def test_second_derivatives_by_differences_have_their_error(seed: int) -> None:
    mix = torch.from_numpy(np.random.default_rng(seed).normal(size=(12, 12))).float()
    point, directions = (
        torch.linspace(-1, 2, 12),
        torch.from_numpy(np.random.default_rng(seed + 9).normal(size=(2, 12))),
    )
    cube: Any = OnceOnly.apply
    found, error = slice_curvature(SummedLoss.of_function(lambda w: cube(torch.sin(mix @ w)).sum(), point), directions)
    wide = SummedLoss.of_function(lambda w: (torch.sin(mix.double() @ w) ** 3).sum(), point.double())
    exact, rounding = slice_curvature(wide, directions)
    wrong = np.abs(np.linalg.eigvalsh(found) - np.linalg.eigvalsh(exact)).max()
    assert rounding < 1e-10 < wrong <= error < 0.1 * np.abs(exact).max()


def test_planes_along_eigenvectors_have_eigenvalues_with_residuals() -> None:
    matrix = torch.tensor([[4.0, 1, 0], [1, 3, 2], [0, 2, -1]], dtype=torch.float64)
    loss = SummedLoss.of_function(lambda w: w @ matrix @ w / 2, torch.zeros(3, dtype=torch.float64))
    axes = hessian_directions(loss, 0)
    assert axes.converged
    found = estimates([measure_plane(loss, axes, grid_sample((5, 5), 1.0))])
    for name, value in (("eigenvalue_1", 4.85410197), ("eigenvalue_2", 3.0)):
        assert found[name].mean == pytest.approx(value, abs=1e-8)
        error = found[name].error
        assert error is not None
        assert error < 1e-8
