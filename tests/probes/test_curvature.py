"""The Hessian of known losses, and of models read end to end."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import called
from function_loss import as_loss
from numpy.testing import assert_allclose
from once_differentiable import cube
from small_models import family_model, save, some_lines
from tiny_models import byte_tokenizer, made, saved
from torch import Tensor
from torch.nn import functional

from toposcope.checkpoints import Checkpoint
from toposcope.models.hessian_products import HessianProduct
from toposcope.models.summed_loss import Block, SummedLoss
from toposcope.probes import Failure, Measurement, ProbeInput
from toposcope.probes.curvature import CurvatureProbe
from toposcope.probes.feature import NETWORK
from toposcope.typing import Matrix

FLOAT64 = torch.float64


def hessian_of(function: Any, point: Any, blocks: Any = None) -> tuple[SummedLoss, Matrix]:
    """A loss and its whole Hessian, column by column."""
    loss = as_loss(function, torch.as_tensor(point, dtype=FLOAT64), blocks)
    product = HessianProduct(loss, loss.point)
    return loss, np.array([product(e).numpy() for e in torch.eye(len(loss.point), dtype=FLOAT64)])


def curvature_of(loss: SummedLoss, **options: Any) -> dict[str, float]:
    subject = ProbeInput([], frozenset([NETWORK]), inputs={"text_loss": lambda sequences, length, dtype=None: loss})
    (found,) = CurvatureProbe(**options).measure(subject)
    assert isinstance(found, Measurement), found
    return found.statistics


def test_a_quadratic_has_its_matrix() -> None:
    A = torch.tensor([[4.0, 1, 0], [1, 3, 2], [0, 2, -1]], dtype=FLOAT64)
    loss, hessian = hessian_of(lambda w: 0.5 * w @ A @ w, [0.3, -2.0, 5.0])
    assert_allclose(hessian, A, atol=1e-14)
    found = curvature_of(loss, top=3)
    assert_allclose([found[n] for n in ("sharpness", "eigenvalue_2", "eigenvalue_3")], [4.85410197, 3, -1.85410197])
    assert found["smallest_eigenvalue"] == pytest.approx(-1.85410197)
    assert found["trace"] == pytest.approx(6, rel=1e-12)
    assert found["positive_share"] + found["negative_share"] == pytest.approx(1)
    assert max(value for name, value in found.items() if name.endswith("e.noise") and "share" not in name) < 1e-12


# The scale of the weights

BLOCKS = {"in.weight": Block(0, 35, (7, 5)), "out.weight": Block(35, 56, (3, 7))}
INPUTS = torch.from_numpy(np.random.default_rng(2).normal(size=(60, 5)))
TARGETS = torch.from_numpy(np.random.default_rng(3).integers(0, 3, 60))


def relu_loss(point: Tensor) -> Tensor:
    first, second = point[:35].view(7, 5), point[35:].view(3, 7)
    return functional.cross_entropy(torch.relu(INPUTS @ first.T) @ second.T, TARGETS)


def rescaled() -> tuple[SummedLoss, SummedLoss]:
    """A network, and the same function with one matrix ten times as large and the other a tenth."""
    point = torch.from_numpy(np.random.default_rng(4).normal(size=56))
    factor = torch.cat([torch.full((35,), 10.0), torch.full((21,), 0.1)]).double().round(decimals=1)
    return (as_loss(relu_loss, point, BLOCKS), as_loss(relu_loss, point * factor, BLOCKS))


def test_rescaling_changes_sharpness_and_not_that_of_the_filter_normalised_loss() -> None:
    before, after = rescaled()
    assert before.value(before.point) == pytest.approx(after.value(after.point), rel=1e-14)
    plain, scaled = curvature_of(before), curvature_of(after)
    assert scaled["sharpness"] > 5 * plain["sharpness"]
    assert scaled["filter_normalised_sharpness"] == pytest.approx(plain["filter_normalised_sharpness"], rel=1e-6)
    direction = torch.from_numpy(np.random.default_rng(5).normal(size=56))
    for loss in rescaled():
        # its definition: the top eigenvalue in units of the filters
        norms = loss.filter_norms(loss.point)
        assert norms[:5].tolist() == [pytest.approx(float(loss.point[:5].norm()))] * 5
        _, whole = hessian_of(relu_loss, loss.point)
        expected = np.linalg.eigvalsh(norms.numpy()[:, None] * whole * norms.numpy())[-1]
        assert curvature_of(loss)["filter_normalised_sharpness"] == pytest.approx(expected, rel=1e-7)
    slices = [
        [loss.value(loss.point + step * loss.filter_norms(loss.point) * direction) for step in (-0.1, 0.05, 0.3)]
        for loss in (before, after)
    ]
    assert_allclose(slices[0], slices[1], rtol=0, atol=1e-15)


def test_what_has_not_converged_is_absent() -> None:
    """Of a band without gaps few eigenvalues are told apart; none is printed that is not one."""
    scales = torch.linspace(0, 1, 5000, dtype=FLOAT64)
    loss = as_loss(lambda w: 0.5 * (scales * w * w).sum(), torch.ones(5000, dtype=FLOAT64))
    found = curvature_of(loss, top=10)
    names = ["sharpness", *(f"eigenvalue_{i}" for i in range(2, 11))]
    for i, name in enumerate(names):
        if name in found:
            assert found[name] == pytest.approx(float(scales[-1 - i]), abs=2e-3)
            assert found[name + ".noise"] <= 1e-3
    assert found["trace"] == pytest.approx(2500, abs=5 * found["trace.noise"])
    assert abs(found["positive_share"] - 0.99) <= 3 * found["positive_share.noise"] + 1e-9


# Models


def whole_hessian(loss: SummedLoss) -> Matrix:
    product = HessianProduct(loss, loss.point)
    return np.array([product(e).numpy() for e in torch.eye(len(loss.point), dtype=loss.point.dtype)])


@pytest.mark.slow
def test_a_model_of_the_family_has_the_numbers_of_its_whole_hessian(tmp_path: Path) -> None:
    from toposcope.family import ModelSize
    from toposcope.family.model import build
    from toposcope.models import TokenSequence
    from toposcope.models.family_model import FamilyModel
    from toposcope.models.summed_loss import text_loss

    size = ModelSize(hidden=2, layers=1, heads=1, vocabulary=11, context=8)
    model = FamilyModel(build(size, seed=1, initial_scale=10).double(), "family", torch.device("cpu"))
    rng = np.random.default_rng(0)
    loss = text_loss(model, [TokenSequence(tuple(map(int, rng.integers(0, 11, n)))) for n in (8, 5, 3)], FLOAT64)
    hessian = whole_hessian(loss)
    assert_allclose(hessian, hessian.T, atol=1e-13)
    values = np.linalg.eigvalsh(hessian)
    found = curvature_of(loss, top=5, draws=10, steps=20)
    for i, name in enumerate(("sharpness", *(f"eigenvalue_{k}" for k in range(2, 6)))):
        assert abs(found[name] - values[-1 - i]) <= found[name + ".noise"] + 1e-12
    assert abs(found["smallest_eigenvalue"] - values[0]) <= found["smallest_eigenvalue.noise"] + 1e-12
    assert abs(found["trace"] - np.trace(hessian)) <= 4 * found["trace.noise"]
    cut = 0.01 * np.abs(values).max()
    for name, share in (("positive_share", (values > cut).mean()), ("negative_share", (values < -cut).mean())):
        assert abs(found[name] - share) <= 4 * found[name + ".noise"]


@pytest.mark.slow
def test_blocks_are_those_of_the_layers(tmp_path: Path) -> None:
    checkpoint = save(family_model(dtype=torch.float32), tmp_path)
    probe = CurvatureProbe(top=2, sequences=2, length=24, draws=2, steps=3, blocks=True, density=True)
    found = by_layer(probe, checkpoint)
    assert list(found) == [*(layer.name for layer in checkpoint.analysed()), NETWORK]
    layers = [m.statistics for name, m in found.items() if name != NETWORK]
    network = found[NETWORK].statistics
    # by interlacing, no block has more than the whole
    assert max(row["sharpness"] for row in layers) <= network["sharpness"] * (1 + 1e-3)
    assert min(row["smallest_eigenvalue"] for row in layers) >= network["smallest_eigenvalue"] * (1 + 1e-3)
    assert {"density@-1.025", "density@0.975", "density@1.025"} <= network.keys()
    densities = [network[name] for name in network if name.startswith("density@") and not name.endswith(".noise")]
    assert len(densities) == 42
    assert densities == sorted(densities)
    assert densities[-1] == pytest.approx(1)


def by_layer(probe: CurvatureProbe, checkpoint: Checkpoint) -> dict[str, Measurement]:
    from toposcope.models import Origin
    from toposcope.probes.needs import RunContext, needs

    load = needs()["text_loss"].provide(checkpoint, RunContext(Origin(), some_lines, "key"))
    layers = checkpoint.analysed()
    subject = ProbeInput(layers, frozenset([*(layer.name for layer in layers), NETWORK]), inputs={"text_loss": load})
    found = {}
    for result in probe.measure(subject):
        assert isinstance(result, Measurement), result
        found[result.layer] = result
    return found


def test_what_does_not_fit_is_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = as_loss(lambda w: (w**2).sum(), torch.ones(10**6))
    subject = ProbeInput([], frozenset([NETWORK]), inputs={"text_loss": lambda sequences, length, dtype=None: loss})
    monkeypatch.setattr("toposcope.homology.memory.free_memory", lambda: 10**8)
    (refused,) = CurvatureProbe().measure(subject)
    assert isinstance(refused, Failure)
    assert refused.message.startswith("curvature of 1,000,000 weights: needs 0.244 GB of memory, 0.1 GB are free; ")
    assert refused.message.endswith("take fewer eigenvalues (top=1 needs 0.184 GB)")


def test_the_expected_memory_is_that_of_the_vectors() -> None:
    shapes = {"layer": (9216, 9216)}  # 85M, of a model of 124M
    assert 24e9 < CurvatureProbe().expected_bytes(shapes) < 33e9
    assert CurvatureProbe(top=1).expected_bytes(shapes) < 19e9
    assert CurvatureProbe(top=30).expected_bytes(shapes) > 28e9


def test_without_second_derivatives_the_error_is_reported() -> None:
    scales = torch.arange(1.0, 31)

    def load(sequences: int, length: int, dtype: torch.dtype = torch.float32) -> SummedLoss:
        return as_loss(lambda w: (scales.to(w) * cube(w)).sum() / 6, torch.ones(30, dtype=dtype))

    (found,) = CurvatureProbe(top=3).measure(ProbeInput([], frozenset([NETWORK]), inputs={"text_loss": load}))
    assert isinstance(found, Measurement)
    assert found.flag == "finite differences"
    assert found.statistics["sharpness"] == pytest.approx(30, abs=found.statistics["sharpness.noise"] + 1e-6)
    assert 0 < found.statistics["hessian_error"] < 1e-6
    assert found.statistics["trace"] == pytest.approx(465, abs=found.statistics["trace.noise"])


def test_differences_stay_in_float32_where_an_operation_has_no_float64() -> None:

    def total(w: Tensor) -> Tensor:
        if w.dtype == FLOAT64:
            raise RuntimeError("expected Float32, got Double")
        value: Tensor = (torch.arange(1.0, 31) * cube(w)).sum() / 6
        return value

    def load(sequences: int, length: int, dtype: torch.dtype = torch.float32) -> SummedLoss:
        return as_loss(total, torch.ones(30, dtype=dtype))

    (found,) = CurvatureProbe(top=3).measure(ProbeInput([], frozenset([NETWORK]), inputs={"text_loss": load}))
    assert isinstance(found, Measurement)
    assert "finite differences" in found.flag
    assert found.statistics["hessian_error"] > 1e-6
    assert found.statistics["sharpness"] == pytest.approx(30, abs=found.statistics["sharpness.noise"])


@pytest.mark.parametrize("dtype", [torch.float32, FLOAT64])
def test_a_mixture_of_experts_has_second_derivatives(dtype: torch.dtype) -> None:
    pytest.importorskip("transformers")
    from toposcope.models import TokenSequence
    from toposcope.models.summed_loss import text_loss
    from toposcope.models.transformers_model import TransformersModel

    model = TransformersModel(made("mixtral"), "mixtral", torch.device("cpu"))
    rng = np.random.default_rng(0)
    loss = text_loss(model, [TokenSequence(tuple(map(int, rng.integers(0, 300, 20)))) for _ in range(2)], dtype)
    product = HessianProduct(loss, loss.point)
    one, other = (torch.from_numpy(rng.normal(size=len(loss.point))).to(dtype) for _ in range(2))
    images = product(one).double(), product(other).double()
    assert product.method == "double backward"
    assert float(other.double() @ images[0]) == pytest.approx(float(one.double() @ images[1]), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["family", "gpt_neox"])
def test_measure_reads_a_checkpoint_end_to_end(kind: str, tmp_path: Path) -> None:
    folder, text = tmp_path / "model", tmp_path / "text.txt"
    text.write_text(some_lines())
    if kind == "family":
        save(family_model(dtype=torch.float32), folder)
    else:
        pytest.importorskip("transformers")
        saved(folder)
        byte_tokenizer().save(str(folder / "tokenizer.json"))
    words = ["measure", str(folder), "--text", str(text), "--workers", "1", "--json", "--probe"]
    words += ["curvature:top=2,sequences=2,length=24,draws=2,steps=4,blocks=true"]
    done = called(*words)
    assert done.code == 0, done.err
    values = {(row["layer"], row["statistic"]): row["value"] for row in json.loads(done.out)}
    assert values[NETWORK, "sharpness"] > 0
    assert values[NETWORK, "sharpness.noise"] <= 1e-3 * values[NETWORK, "sharpness"]
    layers = {layer for layer, _ in values} - {NETWORK}
    assert len(layers) == 9
    assert all((layer, "trace") in values for layer in layers)
