"""Planes of the loss: directions, grids, the loss on many points at once, and its shape."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from function_loss import as_loss
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from tiny_models import CONTEXT, KINDS, VOCABULARY, opened, saved
from torch import Tensor

from toposcope.errors import ToposcopeError
from toposcope.family.model import build
from toposcope.family.run import ModelSize
from toposcope.models import load_model
from toposcope.models.family_model import FamilyModel
from toposcope.models.loss_planes import (
    can_move,
    eigenvector_directions,
    evaluate,
    grid_sample,
    path_directions,
    points_on_disk,
    random_directions,
    scattered_sample,
)
from toposcope.models.loss_planes.surface import losses_at
from toposcope.models.summed_loss import Block, SummedLoss, text_loss
from toposcope.models.texts import TokenSequence

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


def test_weights_that_cannot_move() -> None:
    blocks = {"bias": Block(0, 3, (3,)), "zeros": Block(3, 9, (2, 3)), "column": Block(9, 11, (2, 1))}
    point = torch.cat([torch.ones(3), torch.zeros(6), torch.ones(2)])
    assert not can_move(point, blocks)
    assert can_move(point + 1, blocks)
    with pytest.raises(ToposcopeError, match="weights other than zero"):
        random_directions(point, blocks, seed=0)


def test_eigenvectors_are_scaled_to_one_nat() -> None:
    curvatures = torch.tensor([8.0, -2.0, 0.5], dtype=torch.float64)
    loss = as_loss(lambda w: (curvatures * w**2).sum() / 2, torch.zeros(3, dtype=torch.float64))
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
    for path, message in (
        ([point + 1], "plane along a path"),
        ([point + 1, point + 2, point], "do not span a plane"),
        ([point_of(1), point_of(2), point * float("nan")], "weights that are not finite"),
    ):
        with pytest.raises(ToposcopeError, match=message):
            path_directions(point, path)


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

    loss = as_loss(uneven, torch.tensor([0.5, -0.25], dtype=torch.float64))
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
    loss = as_loss(lambda w: w.sum(), torch.ones(2), sequences=2)
    with pytest.raises(ToposcopeError, match="3 batches of 2 sequences"):
        evaluate(loss, torch.eye(2), grid_sample((3, 3), 1.0), batches=3)
    broken = as_loss(lambda w: w.sum() * torch.nan, torch.ones(2))
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
        evaluate(as_loss(mse, p, blocks), random_directions(p, blocks, 0), grid_sample((11, 11), 1.0))
        for p in (plain, scaled)
    ]
    a, b = (surface.values for surface in surfaces)
    assert np.abs(a / b - 1).max() <= 1e-15
    assert np.ptp(a) > 1
