"""`toposcope.landscape`: any function of any module, against functions whose planes are known."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from chart_checks import check_chart
from torch import Tensor, nn
from torch.nn import functional

import toposcope as ts
from toposcope.errors import ToposcopeError

INPUTS = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(32) % 3


class Tied(nn.Module):
    """Embeds and unembeds with one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(3, 6), nn.Linear(6, 3, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.embedding(CLASSES))  # type: ignore[no-any-return]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))


def frozen() -> nn.Module:
    model = network()
    model.get_submodule("0").requires_grad_(False)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "batch normalisation and dropout": network,
    "frozen": frozen,
    "bf16": lambda: network().to(torch.bfloat16),
    "tied": Tied,
    "compiled": lambda: torch.compile(network(), backend="aot_eager"),  # type: ignore[dict-item, return-value]
}


def loss_of(model: nn.Module) -> Tensor:
    inputs = INPUTS.to(next(model.parameters()).dtype)
    return functional.cross_entropy(model(inputs).float(), CLASSES)


@pytest.mark.parametrize("as_float", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_quadratic_bowl(seed: int, as_float: bool) -> None:
    """Losses and second derivatives are those of the quadratic form along the directions; the minimum is the model."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(5, 4, bias=False).double()
    factor = torch.randn(20, 20, generator=generator, dtype=torch.float64)
    form, minimum = factor @ factor.T, model.weight.detach().clone()

    def bowl(module: nn.Module) -> Any:
        apart = (module.weight - minimum).flatten()  # type: ignore[operator]
        value = apart @ form @ apart / 2 + 3
        return value.item() if as_float else value

    found = ts.landscape(model, bowl, resolution=9, seeds=2, seed=seed)
    for plane in found.planes:
        directions = plane.axes.vectors
        expected = (directions @ form @ directions.T).numpy()
        np.testing.assert_allclose(plane.curvature, expected, rtol=1e-9 if not as_float else 1e-4)
        assert np.abs(plane.curvature - expected).max() <= max(plane.curvature_error, 1e-9 * expected.max())
        at = plane.surface.sample.coordinates
        np.testing.assert_allclose(plane.surface.values, 3 + np.einsum("ni,ij,nj->n", at, expected, at) / 2)
        assert (at[plane.surface.values.argmin()] == 0).all()
    curvature = [np.linalg.eigvalsh(plane.curvature) for plane in found.planes]
    assert found.is_one_minimum
    words = f"one minimum on each of 2 planes; second derivatives of {np.min(curvature):.3g} to {np.max(curvature):.3g}"
    assert words in found.headline()
    drawn = found.plot()
    check_chart(drawn)
    assert "merge tree" not in drawn.alt


def test_two_wells() -> None:
    """On a plane through both wells the merge tree joins them at the saddle, whose height is known."""
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(model.weight)

    def wells(module: nn.Module) -> Tensor:
        u, v = module.weight[0]  # type: ignore[index]
        return (u**2 - 1) ** 2 + v**2 + 0.125 * (u + 1)  # type: ignore[no-any-return]

    states = [{"weight": torch.tensor([[1.0, 0.0]])}, {"weight": torch.tensor([[0.0, 0.5]])}]
    found = ts.landscape(model, wells, path=states, resolution=11)
    (plane,) = found.planes
    # the wells at u = -1 and 1 and the saddle at 0 are points of the grid
    assert plane.shape.tree.diagram.pairs.round(12).tolist() == [[0.25, 1.125]]
    assert plane.shape.values.min() == pytest.approx(0)
    assert found.path is not None
    assert found.path[:, 0].round(12).tolist() == [0.8, 0.0, 0.0]
    assert "2 minima on the plane; the deepest side basin lies 0.875 below its saddle" in found.headline()
    assert "merge tree" in found.plot().alt
    np.testing.assert_allclose(np.linalg.eigvalsh(plane.curvature), [-4 * 1.25**2, 2 * 1.25**2])


@pytest.mark.parametrize("kind", MODELS)
def test_the_model_stays_as_it_is_and_the_numbers_are_the_same_again(kind: str) -> None:
    torch.manual_seed(0)
    model = MODELS[kind]()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters, state = [*model.parameters()], torch.get_rng_state()

    def unchanged() -> bool:
        after = model.state_dict()
        return (
            all(
                torch.equal(tensor, after[name]) and tensor.dtype == after[name].dtype
                for name, tensor in before.items()
            )
            and all(a is b and a.grad is None for a, b in zip(parameters, model.parameters(), strict=True))
            and all(part.training for part in model.modules())
            and torch.equal(torch.get_rng_state(), state)
        )

    def ends(error: BaseException) -> Callable[[nn.Module], Tensor]:
        calls = iter(range(10))

        def loss(module: nn.Module) -> Tensor:
            if next(calls) == 9:
                raise error
            module.eval()
            return loss_of(module)

        return loss

    first, again = (ts.landscape(model, loss_of, resolution=5, seeds=2) for _ in range(2))
    assert unchanged()
    assert all(
        np.array_equal(a.surface.values, b.surface.values) for a, b in zip(first.planes, again.planes, strict=True)
    )
    other = ts.landscape(model, loss_of, resolution=5, seeds=1, seed=1)
    assert not np.array_equal(first.planes[0].surface.values, other.planes[0].surface.values)
    for error in (RuntimeError("no"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            ts.landscape(model, ends(error), resolution=5)
        assert unchanged()


def test_a_compiled_model_has_the_numbers_of_the_plain_one() -> None:
    model = network().eval()
    compiled = torch.compile(model, backend="aot_eager")
    plain, other = (ts.landscape(each, loss_of, resolution=5, seeds=1) for each in (model, compiled))  # type: ignore[arg-type]
    np.testing.assert_allclose(other.planes[0].surface.values, plain.planes[0].surface.values, rtol=1e-6)
    np.testing.assert_allclose(other.planes[0].curvature, plain.planes[0].curvature, rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "options", "words"),
    [
        (lambda m: 3.0, {}, "it does not depend on the weights"),
        (lambda m: m(INPUTS), {}, "it returned Tensor, not one number"),
        (lambda m: None, {}, "it returned NoneType"),
        (lambda m: float("nan"), {}, "the loss is nan"),
        (lambda m: float(loss_of(m)) + np.random.default_rng().random(), {}, "two calls with the same weights gave"),
        (lambda m: float(loss_of(m)), {"directions": "hessian"}, "the loss has no gradient"),
        (loss_of, {"directions": "trajectory"}, "a path is what spans"),
        (loss_of, {"path": [{}, {}]}, r"0\.weight is missing in state 0"),
        (loss_of, {"resolution": 2}, "resolution is 2"),
    ],
)
def test_mistakes(loss: Callable[[nn.Module], Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(ToposcopeError, match=words):
        ts.landscape(network().eval(), loss, **({"resolution": 5} | options))
    with pytest.raises(ToposcopeError, match="it takes a torch"):
        ts.landscape("checkpoints/", loss)  # type: ignore[arg-type]
    with pytest.raises(ToposcopeError, match="no parameter requires a gradient"):
        ts.landscape(network().requires_grad_(False), loss_of)
