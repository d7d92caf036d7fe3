"""Values, batches, kept pairings and faults of diagrams with gradients."""

import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, assert_type

import numpy as np
import pytest

import toposcope as ts
from toposcope.errors import ToposcopeError
from toposcope.homology import Diagram, arrays, landscape, persistence_image, wasserstein
from toposcope.homology.point_cloud import Metric

if TYPE_CHECKING:
    from torch import Tensor

torch = pytest.importorskip("torch")
Module: Any = torch.nn.Module
tt: Any = ts.torch


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def gradient(value: object, of: object) -> np.ndarray:
    (found,) = torch.autograd.grad(value, of, retain_graph=True)
    return np.asarray(found.numpy())


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "precomputed"])
def test_diagrams_are_those_without_gradients(metric: Metric) -> None:
    points = normal(40, 6)
    if metric == "precomputed":
        points = np.abs(points @ points.T)
        np.fill_diagonal(points, 0)
    for diagram, exact in zip(
        tt.rips(torch.tensor(points), metric=metric), ts.rips(points, metric=metric), strict=True
    ):
        tolerance = 0 if metric == "precomputed" else 1e-15
        np.testing.assert_allclose(diagram.pairs.numpy(), exact.pairs, rtol=tolerance, atol=tolerance)
        assert (diagram.dimension, diagram.n_essential) == (exact.dimension, exact.n_essential)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_neural_persistence_is_that_without_gradients(dtype: str) -> None:
    W = torch.tensor(normal(20, 30)).to(getattr(torch, dtype))
    for scale in ("layer", 5.0):
        found, exact = tt.neural_persistence(W, scale=scale), ts.neural_persistence(W, scale=scale)
        tolerance = 10 * torch.finfo(W.dtype).eps
        for name in ("mean", "norm", "normalized", "scale"):
            assert getattr(found, name).item() == pytest.approx(getattr(exact, name), rel=tolerance)
        np.testing.assert_allclose(found.deaths.double(), exact.deaths, rtol=tolerance if dtype != "float64" else 0)
        np.testing.assert_allclose(found.diagram.pairs.double(), exact.diagram.pairs, rtol=tolerance)
        assert found.mean.dtype == found.diagram.pairs.dtype == W.dtype


def test_vectors_and_distances_are_those_without_gradients() -> None:
    points, other = normal(30, 3), normal(25, 3)
    diagrams = [*tt.rips(torch.tensor(points)), tt.neural_persistence(torch.tensor(points)).diagram]
    exact = [*ts.rips(points), ts.neural_persistence(points).diagram]
    targets = [*ts.rips(other), ts.neural_persistence(other).diagram]
    at, births, lifetimes = [-np.inf, 0.2, 0.7, 0.9, 1.3], np.linspace(0, 2, 5), [0, 0.1, 0.5, np.inf]
    for found, same, target in zip(diagrams, exact, targets, strict=True):
        np.testing.assert_allclose(tt.landscape(found, at, 40), landscape(same, at, 40), atol=1e-15)
        image = persistence_image(same, births, lifetimes, 0.3)
        np.testing.assert_allclose(tt.image(found, births, lifetimes, 0.3), image, atol=1e-13)
        for order in (1, 2):
            distance = tt.wasserstein(found, target, order=order).item()
            assert distance == pytest.approx(wasserstein(same, target, order=order), rel=1e-12)
            empty = Diagram(np.empty((0, 2)), same.dimension, same.n_essential)
            away = tt.wasserstein(found, empty, order=order).item()
            assert away == pytest.approx(wasserstein(same, empty, order=order), rel=1e-12)


def test_the_target_of_a_distance_has_a_gradient_too() -> None:
    points, other = (torch.tensor(normal(n, 3), requires_grad=True) for n in (9, 12))
    distance = tt.wasserstein(tt.rips(points)[0], tt.rips(other)[0], order=1)
    back = tt.wasserstein(tt.rips(other)[0], tt.rips(points)[0], order=1)
    for of in (points, other):
        np.testing.assert_allclose(gradient(distance, of), gradient(back, of), atol=1e-15)


def test_many_clouds_are_each_as_if_alone() -> None:
    stack = torch.tensor(normal(4, 9, 3), requires_grad=True)
    mask = torch.arange(9) != torch.tensor([[0], [3], [8], [9]])
    ragged = [cloud[chosen] for cloud, chosen in zip(stack, mask, strict=True)]
    wide = torch.tensor(normal(5, 6), requires_grad=True)
    for clouds, batch in [(stack, tt.rips(stack)), (ragged, tt.rips(stack, mask=mask)), (ragged, tt.rips(ragged))]:
        for diagrams, cloud in zip(batch, clouds, strict=True):
            for found, alone in zip(diagrams, tt.rips(cloud), strict=True):
                assert torch.equal(found.pairs, alone.pairs)
                np.testing.assert_array_equal(found.pairing, alone.pairing)
                for scale_free in (False, True):
                    batched, single = (
                        gradient(tt.total(each, scale_free=scale_free), stack) for each in (found, alone)
                    )
                    np.testing.assert_allclose(batched, single, atol=1e-15)
    assert [len(diagrams[0].pairs) for diagrams in tt.rips([stack[0], wide])] == [8, 4]
    for several in (stack, [stack[0], wide, stack[1]]):
        for found, W in zip(tt.neural_persistence(several), several, strict=True):
            alone = tt.neural_persistence(W)
            assert torch.equal(found.deaths, alone.deaths)
            of = wide if W is wide else stack
            np.testing.assert_array_equal(gradient(found.mean, of), gradient(alone.mean, of))
    assert tt.rips([]) == tt.neural_persistence([]) == []


def test_types_are_those_of_what_is_returned() -> None:
    stack: Tensor = torch.tensor(normal(2, 4, 3))
    assert_type(ts.torch.rips(stack[0]), list[ts.torch.TensorDiagram])
    assert_type(ts.torch.neural_persistence(stack[0]), ts.torch.TensorNeuralPersistence)
    several = assert_type(ts.torch.rips(stack.unbind()), list[list[ts.torch.TensorDiagram]])
    assert_type(ts.torch.neural_persistence(stack.unbind()), list[ts.torch.TensorNeuralPersistence])
    assert [len(diagrams) for diagrams in several] == [2, 2]


def test_padding_may_hold_anything() -> None:
    stack = torch.tensor(normal(2, 6, 3))
    stack[1, 4:] = torch.nan
    stack.requires_grad_()
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    sum(tt.total(diagram) for diagrams in tt.rips(stack, mask=mask) for diagram in diagrams).backward()
    assert torch.isfinite(stack.grad).all()
    assert not stack.grad[1, 4:].any()
    distances = torch.cdist(stack[:1], stack[:1]).detach()
    (masked,) = tt.rips(distances, metric="precomputed", mask=mask[1:])
    assert torch.equal(masked[0].pairs, tt.rips(distances[0, :4, :4], metric="precomputed")[0].pairs)


def test_a_kept_pairing_is_used_and_checked() -> None:
    points = torch.tensor(normal(12, 3), requires_grad=True)
    diagrams = tt.rips(points)
    for kept in (diagrams, [each.pairing for each in diagrams], [torch.tensor(each.pairing) for each in diagrams]):
        for found, exact in zip(tt.rips(points, pairing=kept), diagrams, strict=True):
            assert torch.equal(found.pairs, exact.pairs)
    moved = points + torch.tensor(normal(12, 3))
    ends = diagrams[0].pairing
    torch.testing.assert_close(
        tt.rips(moved, pairing=diagrams)[0].lifetimes, (moved[ends[:, 0]] - moved[ends[:, 1]]).norm(dim=1)
    )
    assert torch.equal(tt.rips(points[None], pairing=[diagrams])[0][1].pairs, diagrams[1].pairs)
    found = tt.neural_persistence(points)
    for kept in (found, found.pairing, found.diagram):
        assert torch.equal(tt.neural_persistence(points, pairing=kept).deaths, found.deaths)
    assert torch.equal(tt.neural_persistence([points], pairing=[found])[0].deaths, found.deaths)
    scaled = 3 * points.detach()
    scaled[0, 0] = 100
    assert tt.neural_persistence(scaled, pairing=found).scale.item() == 100


def test_one_point_has_no_bar() -> None:
    point = torch.ones(1, 3, requires_grad=True)
    for diagram in tt.rips(point):
        assert diagram.pairs.shape == (0, 2)
        value = tt.total(diagram) + tt.entropy(diagram) + tt.landscape(diagram, [1.0]).sum()
        value += tt.image(diagram, [0, 1], [0, 1], 1).sum()
        assert value.item() == 0
        assert not gradient(value + tt.total(diagram, scale_free=True), point).any()


def test_without_gradients_one_warning_names_the_room() -> None:
    W = torch.ones(3, 2, requires_grad=True)
    arrays._warn_once.cache_clear()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        ts.rips(W)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ts.rips(W)
        ts.neural_persistence(W)
    (warning,) = caught
    assert "no gradient, though the tensor requires one: toposcope.torch" in str(warning.message)
    assert warning.filename == __file__


class Mean(Module):  # type: ignore[misc]
    def forward(self, W: Any) -> Any:
        return tt.neural_persistence(W).mean


POINTS = torch.tensor(normal(5, 2))
KEPT = tt.rips(POINTS)
WITH_NAN = torch.stack([POINTS, POINTS, POINTS])
WITH_NAN[2, 3, 1] = torch.nan
CUT = torch.stack([POINTS[:2] * 0, torch.tensor([[0.0, torch.inf], [torch.inf, 0.0]])])
FAULTS: dict[str, Callable[[], object]] = {
    "points: expected a torch.Tensor, got ndarray; toposcope.rips takes arrays": lambda: tt.rips(np.eye(3)),
    "points[1]: expected a torch.Tensor, got ndarray": lambda: tt.rips([POINTS, np.eye(3)]),
    "points[0]: expected a matrix, got shape (5,)": lambda: tt.rips([POINTS[:, 0]]),
    "points: expected a matrix or several, shape (b, rows, columns), got (5,)": lambda: tt.rips(POINTS[:, 0]),
    "points: expected floating-point entries, got torch.int64": lambda: tt.rips(torch.ones(3, 2, dtype=torch.long)),
    "points: 1 of 2 entries are NaN or infinite": lambda: tt.rips(torch.tensor([[torch.nan, 1.0]])),
    "points: some distances are infinite": lambda: tt.rips(
        torch.tensor([[0.0, torch.inf], [torch.inf, 0.0]]), metric="precomputed"
    ),
    "max_dimension: expected 0 or 1, got 2": lambda: tt.rips(POINTS, max_dimension=2),
    "metric: expected 'euclidean', 'cosine' or 'precomputed', got 'l1'": lambda: tt.rips(POINTS, metric="l1"),
    "mask: expected a bool tensor of shape (b, n)": lambda: tt.rips(POINTS[None], mask=torch.ones(1, 5)),
    "mask: 1 of 1 clouds have no point": lambda: tt.rips(POINTS[None], mask=torch.zeros(1, 5, dtype=torch.bool)),
    "pairing: expected a list of pairings, one per dimension up to 1": lambda: tt.rips(POINTS, pairing=[np.eye(2)]),
    "pairing[0]: expected whole numbers of shape (k, 2), got float64": lambda: tt.rips(POINTS, 0, pairing=[np.eye(2)]),
    "pairing[0]: its numbers go from 0 to 7, beyond": lambda: tt.rips(POINTS, 0, pairing=[np.array([[0, 7]])]),
    "pairing[0]: 5 bars of 5 points": lambda: tt.rips(POINTS, 0, pairing=[np.zeros((5, 2), int)]),
    "pairing[0]: 3 bars of 5 points, which have 4": lambda: tt.rips(POINTS, 0, pairing=tt.rips(POINTS[:4])),
    "pairing: expected a list, one of each of the 1 matrices, got 2": lambda: tt.rips([POINTS], pairing=[0, 0]),
    "pairing: expected a list, one of each of the 1 matrices, got TensorNeuralPersistence": lambda: (
        tt.neural_persistence([POINTS], pairing=tt.neural_persistence(POINTS))
    ),
    "points[1]: is empty, shape (0, 2)": lambda: tt.rips([POINTS, POINTS[:0]]),
    "points: expected a dense tensor, got a torch.sparse_coo one": lambda: tt.rips(POINTS.to_sparse()),
    "points: expected a dense tensor, got a meta one": lambda: tt.rips(POINTS.to("meta")),
    "points: its numbers are out of reach within transforms of torch.func": lambda: torch.func.grad(
        lambda points: tt.total(tt.rips(points)[0])
    )(POINTS),
    "W: its numbers are out of reach within transforms of torch.func and torch.export; pass": lambda: (
        torch.export.export(Mean(), (POINTS,))
    ),
    "diagram: its numbers are out of reach": lambda: torch.func.grad(
        lambda points: tt.wasserstein(tt.rips(points, 0, pairing=KEPT)[0], KEPT[0])
    )(POINTS),
    "numbers are out of reach within torch.func.vmap; pass the batch": lambda: torch.func.vmap(
        lambda points: tt.total(tt.rips(points, 0, pairing=KEPT)[0])
    )(POINTS[None]),
    "numbers are out of reach within torch.func.vmap; pass": lambda: torch.func.vmap(
        lambda points: tt.neural_persistence(points, pairing=tt.neural_persistence(POINTS)).mean
    )(POINTS[None]),
    "points[2]: 1 of 10 entries are NaN or infinite": lambda: tt.rips(WITH_NAN),
    "points[2]: 1 of 10 entries are NaN": lambda: tt.rips(WITH_NAN, mask=torch.ones(3, 5, dtype=torch.bool)),
    "points[1]: 1 of 10 entries are NaN or infinite": lambda: tt.rips([POINTS[:3], WITH_NAN[2], POINTS], 0),
    "points[2]: 1 of 4 lengths are infinite or NaN": lambda: tt.rips(WITH_NAN, 0, pairing=3 * [KEPT]),
    "points[1]: some distances are infinite": lambda: tt.rips([POINTS[:2], CUT[1]], metric="precomputed"),
    "points[1]: some distances are": lambda: tt.rips(CUT, metric="precomputed"),
    "points[0]: expected (n, n) distances, got shape (5, 2)": lambda: tt.rips([POINTS], metric="precomputed"),
    "W[2]: 1 of 10 entries are NaN or infinite": lambda: tt.neural_persistence(WITH_NAN),
    "W[1]: 1 of 10 entries are NaN or infinite": lambda: tt.neural_persistence([POINTS.T, WITH_NAN[2]]),
    "W[2]: 1 of 10 entries are NaN": lambda: tt.neural_persistence(
        WITH_NAN, pairing=3 * [tt.neural_persistence(POINTS)]
    ),
    "points: 1 of 1 lengths are infinite or NaN in torch.float32": lambda: tt.rips(torch.tensor([[3e38], [-3e38]])),
    "W: 10 of 10 entries are NaN or infinite": lambda: tt.neural_persistence(
        POINTS * torch.nan, pairing=tt.neural_persistence(POINTS)
    ),
    "diagram: the norm of the points or distances is infinite in torch.float64; take": lambda: tt.total(
        *tt.rips(torch.tensor([[0.0, torch.inf], [torch.inf, 0.0]]).double(), 0, "precomputed"), scale_free=True
    ),
    "W: expected a matrix or several, shape (b, rows, columns), got ()": lambda: tt.neural_persistence(POINTS[0, 0]),
    "points: expected a torch.Tensor, got NoneType": lambda: tt.rips(None, pairing=[KEPT]),
    "metric: expected 'euclidean', 'cosine' or 'precomputed', got tensor(": lambda: tt.rips([POINTS], metric=POINTS),
    "W: expected a torch.Tensor": lambda: tt.neural_persistence(np.eye(3)),
    "pairing: 2 entries of a matrix of shape (5, 2), whose tree has 6": lambda: tt.neural_persistence(
        POINTS, pairing=np.zeros((2, 2), int)
    ),
    "scale: expected 'layer' or a number of at least max|W|": lambda: tt.neural_persistence(POINTS, scale=0.1),
    "scale: expected 'layer' or a number": lambda: tt.neural_persistence(POINTS, scale="network"),
    "diagram: expected a TensorDiagram, got list": lambda: tt.total(tt.rips(POINTS)),
    "diagram: expected a TensorDiagram, got Diagram": lambda: tt.wasserstein(*ts.rips(POINTS)),
    "target: expected a Diagram, got Tensor": lambda: tt.wasserstein(tt.rips(POINTS)[0], POINTS),
    "order: expected 1 or 2, got 3": lambda: tt.wasserstein(*tt.rips(POINTS, 0) * 2, order=3),
    "diagrams: dimensions 0 and 1 differ": lambda: tt.wasserstein(*tt.rips(POINTS)),
    "n_layers: expected a whole number of at least 1": lambda: tt.landscape(tt.rips(POINTS)[0], [1.0], 0),
    "rips: no argument 'maxdim'; did you mean 'max_dimension'?": lambda: tt.rips(POINTS, maxdim=0),
}


@pytest.mark.parametrize("message", FAULTS)
def test_faults_are_one_line(message: str) -> None:
    with pytest.raises(ToposcopeError, match="^" + re.escape(message)) as caught:
        FAULTS[message]()
    assert "\n" not in str(caught.value)
