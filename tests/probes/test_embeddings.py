"""Embedding matrices as clouds against other libraries' measures of the same rows."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from safetensors.torch import save_file
from small_models import loops, spectrum_of, total_of_components
from torch import Tensor

from toposcope.checkpoints import Checkpoint, Layer
from toposcope.checkpoints.formats.entry import in_memory
from toposcope.homology import two_nn
from toposcope.probes import Failure, Measurement, ProbeInput
from toposcope.probes.embeddings import PSEUDO_LAYERS, EmbeddingsProbe


def rows(seed: int, n: int = 60, d: int = 8, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)) + 0.5).to(dtype)


def checkpoint(folder: Path, **weights: Tensor) -> Checkpoint:
    path = folder / "step_3.safetensors"
    block = {"layers.0.mlp.fc1.weight": torch.ones(4, next(iter(weights.values())).shape[1])}
    save_file({**block, **{f"{name}.weight": w.contiguous() for name, w in weights.items()}}, path)
    return Checkpoint(path, 3)


def measure(probe: EmbeddingsProbe, found: Checkpoint) -> dict[str, Measurement | Failure]:
    subject = ProbeInput(found.analysed(), frozenset(PSEUDO_LAYERS), inputs={"embeddings": found.embeddings()})
    return {result.layer: result for result in probe.measure(subject)}


def measured(probe: EmbeddingsProbe, found: Checkpoint) -> dict[str, Measurement]:
    results = measure(probe, found)
    assert tuple(results) == PSEUDO_LAYERS
    assert all(isinstance(result, Measurement) for result in results.values()), results
    return {layer: result for layer, result in results.items() if isinstance(result, Measurement)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_two_matrices(tmp_path: Path, dtype: torch.dtype) -> None:
    embedding, head = rows(0, dtype=dtype), rows(1, n=50, dtype=dtype)
    found = measured(EmbeddingsProbe(), checkpoint(tmp_path, token_emb=embedding, head=head))
    for matrix, measurement in zip((embedding, head), found.values(), strict=True):
        points = matrix.double().numpy()
        assert measurement.role == "embedding"
        assert measurement.flag == ""
        expected = spectrum_of(points) | {"H0.total": total_of_components(points), "two_nn": two_nn(points).dimension}
        assert {name: measurement.statistics[name] for name in expected} == pytest.approx(expected, rel=1e-6)
        assert_allclose(measurement.diagrams["H1"].pairs, loops(points), rtol=1e-5, atol=1e-6)


def test_too_little_memory_is_one_line_that_names_the_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = checkpoint(tmp_path, token_emb=rows(0), head=rows(1, n=20))
    monkeypatch.setattr("toposcope.homology.memory.free_memory", lambda: 8 * 60 * 8 - 1)
    failed, fits = measure(EmbeddingsProbe(max_dimension=0), found).values()
    assert isinstance(failed, Failure)
    assert isinstance(fits, Measurement)
    assert re.fullmatch(
        r"layer token_emb\S*: its 60 rows of 8 entries in float64: needs .* GB are free; [^\n]*", failed.message
    )


def test_tied_ones_are_alike_and_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    matrix = Layer.matrix

    def counted(layer: Layer) -> NDArray[Any]:
        read.append(layer.name)
        return matrix(layer)

    monkeypatch.setattr(Layer, "matrix", counted)
    first, second = measured(EmbeddingsProbe(), checkpoint(tmp_path, token_emb=rows(0))).values()
    assert first.statistics == second.statistics
    assert read == ["token_emb.weight"]


def test_normalised_rows_and_cosines_have_no_scale(tmp_path: Path) -> None:
    for probe in (EmbeddingsProbe(normalize=True), EmbeddingsProbe(metric="cosine")):
        once, larger = (
            measured(probe, checkpoint(tmp_path, token_emb=scale * rows(0, dtype=torch.float64)))["embedding.input"]
            for scale in (1, 8)
        )
        for name, value in once.statistics.items():
            degree = 1 if name == "rms_radius" else probe.degree(name)
            assert larger.statistics[name] == pytest.approx(8**degree * value, rel=1e-9), name


def test_landmarks_from_many_rows(tmp_path: Path) -> None:
    points = rows(0, n=300)
    found = measured(EmbeddingsProbe(max_points=40), checkpoint(tmp_path, token_emb=points))["embedding.input"]
    assert found.flag == "landmarks"
    assert found.statistics["H1.cover_radius"] > 0
    assert len(found.diagrams["H0"].pairs) == 299
    assert found.statistics["H0.total"] == pytest.approx(total_of_components(points.double().numpy()), rel=1e-6)


def test_a_matrix_that_is_stored_transposed() -> None:
    matrix = rows(0)
    layers = [
        Layer("wte.weight", "embed", True, "memory", in_memory("wte.weight", matrix.T)),
        Layer("head.weight", "head", False, "memory", in_memory("head.weight", matrix)),
    ]
    stored, plain = EmbeddingsProbe().measure(ProbeInput([], frozenset(PSEUDO_LAYERS), inputs={"embeddings": layers}))
    assert isinstance(stored, Measurement)
    assert isinstance(plain, Measurement)
    assert stored.statistics == pytest.approx(plain.statistics, rel=1e-12)


@pytest.mark.slow
def test_fifty_thousand_rows(tmp_path: Path) -> None:
    """All of them for H0: the tree reaches every row, and no subtree of a part is longer than the part's own."""
    points = rows(0, n=50_000, d=64)
    found = measured(EmbeddingsProbe(max_points=200), checkpoint(tmp_path, token_emb=points))["embedding.input"]
    lengths = found.diagrams["H0"].lifetimes
    assert len(lengths) == 49_999
    assert found.statistics["H0.count"] == 49_999
    # Every row's nearest neighbour is joined to it by the tree: the longest of these is one of the edges.
    part = points[:: 50_000 // 200].double()
    nearest = torch.stack([torch.cdist(row[None], points.double())[0].topk(2, largest=False).values[1] for row in part])
    below = [bool(np.isclose(lengths, value, rtol=1e-6).any()) for value in nearest.tolist()]
    assert all(below)
