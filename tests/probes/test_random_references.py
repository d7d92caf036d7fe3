"""Random matrices of every layer's shape: the numbers, the work, and that a run has them once."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import pdist, squareform

from toposcope.checkpoints import series
from toposcope.homology.matrix_controls import ENSEMBLES, Ensemble, random_matrix
from toposcope.probes import Measurement, ProbeInput
from toposcope.probes import random_matrices as module
from toposcope.probes.feature import NETWORK
from toposcope.probes.random_matrices import RandomMatricesProbe, n_draws
from toposcope.seeds import derive_seed
from toposcope.study import Declaration, Study
from toposcope.study.declaration import DeclaredSeries
from toposcope.study.runner import run_study

SHAPES = {"a.weight": (14, 6), "b.weight": (6, 14), "c.weight": (14, 6)}


def write(folder: Path, step: int, seed: int, shapes: dict[str, tuple[int, int]] | None = None) -> None:
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in (shapes or SHAPES).items()}
    save_file(weights, folder / f"step_{step:06d}.safetensors")


def measured(folder: Path, probe: RandomMatricesProbe) -> dict[str, dict[str, float]]:
    found = {}
    for result in probe.measure(ProbeInput.of(series(folder)[0])):
        assert isinstance(result, Measurement), result
        found[result.layer] = result.statistics
    return found


def expected(ensemble: Ensemble, shape: tuple[int, int], draw: int) -> tuple[float, float]:
    """Both statistics of one matrix by spanning trees of SciPy."""
    W = random_matrix(ensemble, shape, derive_seed(7, ensemble, *shape, draw))
    a = np.abs(W) / np.abs(W).max()
    m, n = shape
    graph = np.zeros((m + n, m + n))
    graph[:m, m:] = 2 - a  # SciPy takes zero for no edge
    persistences = minimum_spanning_tree(graph).data - 1
    lengths = minimum_spanning_tree(squareform(pdist(W) + 1)).data - 1
    return float(persistences.sum() / (m + n - 1)), float(lengths.sum()) / math.sqrt((W**2).sum())


@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_means_and_deviations(ensemble: Ensemble, tmp_path: Path) -> None:
    write(tmp_path / "s", 0, 0)
    found = measured(tmp_path / "s", RandomMatricesProbe(draws=6, seed=7))
    for layer, shape in SHAPES.items():
        values = np.array([expected(ensemble, shape, draw) for draw in range(6)])
        for k, name in enumerate(("np_mean", "H0.total")):
            assert found[layer][f"{ensemble}.{name}"] == pytest.approx(values[:, k].mean(), rel=1e-12)
            assert found[layer][f"{ensemble}.{name}.sd"] == pytest.approx(values[:, k].std(ddof=1), rel=1e-10)
        assert found[layer]["n_draws"] == 6
    layers = [found[layer] for layer in SHAPES]
    name = f"{ensemble}.np_mean"
    assert found[NETWORK][name] == pytest.approx(np.mean([row[name] for row in layers]), rel=1e-14)
    deviation = math.hypot(*(row[f"{name}.sd"] for row in layers)) / 3
    assert found[NETWORK][f"{name}.sd"] == pytest.approx(deviation, rel=1e-14)
    assert f"{ensemble}.H0.total" not in found[NETWORK]


def test_large_shapes_have_fewer_draws() -> None:
    shapes = [(8, 8), (1024, 1024), (2048, 1024), (2048, 2048), (4096, 4096), (50304, 2048)]
    assert [n_draws(shape, 20) for shape in shapes] == [20, 20, 10, 5, 3, 3]
    assert [n_draws(shape, 3) for shape in shapes] == [3] * 6


def test_a_shape_is_drawn_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def noted(ensemble: Ensemble, shape: tuple[int, int], seed: int) -> tuple[float, float]:
        drawn.append(shape)
        return 0.0, 0.0

    monkeypatch.setattr(module, "_measured", noted)
    for name in ("s", "t"):
        write(tmp_path / name, 0, 0, {"a.weight": (31, 9), "b.weight": (9, 31), "c.weight": (31, 9)})
        measured(tmp_path / name, RandomMatricesProbe(draws=3))
    assert sorted(drawn) == [(9, 31)] * 15 + [(31, 9)] * 15


# In a study


def steps_measured(directory: Path) -> list[int]:
    steps: list[int] = Study.load(directory).frame()["step"].unique(maintain_order=True).to_list()
    return steps


def test_the_first_checkpoint_that_can_be_read_has_them(tmp_path: Path) -> None:
    folder, out = tmp_path / "s", tmp_path / "out"
    for step in (0, 10, 20):
        write(folder, step, step)
    declaration = Declaration(
        name="s", series=[DeclaredSeries(path=str(folder))], probes=[{"name": "random_matrices", "draws": 3}]
    )
    assert run_study(declaration, out, workers=1) == {}
    assert steps_measured(out) == [0]
    before = Study.load(out).frame()
    assert set(before["layer"]) == {*SHAPES, NETWORK}
    # Other weights of the same shapes: the rows stand.
    write(folder, 0, 99)
    assert run_study(declaration, out, workers=1) == {}
    assert Study.load(out).frame().rows() == before.rows()
    # Another shape is another reference.
    write(folder, 0, 0, SHAPES | {"a.weight": (9, 6)})
    assert run_study(declaration, out, workers=1) == {}
    after = Study.load(out).frame()
    assert after.filter(layer="a.weight")["value"].to_list() != before.filter(layer="a.weight")["value"].to_list()
    assert after.filter(layer="b.weight").rows() == before.filter(layer="b.weight").rows()
    # A first checkpoint that cannot be read leaves its place to the next, and takes it back.
    whole = (folder / "step_000000.safetensors").read_bytes()
    (folder / "step_000000.safetensors").write_bytes(b"broken")
    assert run_study(declaration, out, workers=1) != {}
    assert steps_measured(out) == [10]
    (folder / "step_000000.safetensors").write_bytes(whole)
    assert run_study(declaration, out, workers=1) == {}
    assert Study.load(out).frame().rows() == after.rows()
