"""Neural persistence and H0 of whole checkpoints in one call: to the last bit what each layer gives by itself."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from safetensors.torch import save_file

import toposcope as ts
from toposcope.checkpoints import Series
from toposcope.probes import layer_topology as module

SHAPES = {
    "lm_head.weight": (20, 8),
    "blocks.0.mlp.fc1.weight": (13, 7),
    "blocks.1.mlp.fc1.weight": (13, 7),
    "blocks.1.mlp.fc2.weight": (7, 13),
    "blocks.1.attn.qkv.weight": (300, 260),
}


def write(folder: Path, steps: range, dtype: torch.dtype, suffix: str) -> Series:
    folder.mkdir()
    for step in steps:
        rng = np.random.default_rng(step)
        weights = {name: torch.from_numpy(rng.normal(size=shape)).to(dtype) for name, shape in SHAPES.items()}
        path = folder / f"step_{step}.{suffix}"
        save_file(weights, path) if suffix == "safetensors" else torch.save(weights, path)
    return ts.series(folder)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_layer_is_as_it_is_alone(
    tmp_path: Path, dtype: torch.dtype, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CHECKPOINTS", 2)  # several groups
    series = write(tmp_path / "run", range(1, 6), dtype, suffix)
    measured = ts.layer_topology(series)
    assert len(measured) == len(series) == 5
    for checkpoint, layers in zip(series, measured, strict=True):
        assert list(layers) == [layer.name for layer in checkpoint.analysed()] == sorted(SHAPES)
        for layer in checkpoint.analysed():
            found, alone = layers[layer.name], ts.neural_persistence(layer.read())
            assert found.role == layer.role
            assert (found.neural_persistence.mean, found.neural_persistence.norm) == (alone.mean, alone.norm)
            assert_array_equal(found.neural_persistence.deaths, alone.deaths)
            assert_array_equal(found.components.pairs, ts.rips(layer.matrix(), max_dimension=0)[0].pairs)
    for first in (ts.layer_topology(series[0]), ts.layer_topology(str(tmp_path / "run"))[0]):
        assert list(first) == list(measured[0])
        for name, of_layer in first.items():
            assert_array_equal(of_layer.components.pairs, measured[0][name].components.pairs)


def test_a_layer_that_is_not_finite_is_named(tmp_path: Path) -> None:
    for step in (1, 2):
        weights = {name: torch.ones(shape) for name, shape in SHAPES.items()}
        if step == 2:
            weights["blocks.0.mlp.fc1.weight"][0, 0] = torch.nan
        torch.save(weights, tmp_path / f"step_{step}.pt")
    with pytest.raises(ts.ToposcopeError, match=r"step_2\.pt: layer blocks\.0\.mlp\.fc1\.weight: 1 of 91 entries"):
        ts.layer_topology(ts.series(tmp_path))


@pytest.mark.parametrize("given", [3, None, [3], ["a.safetensors"], {"fc.weight": torch.eye(3)}])
def test_what_is_no_checkpoint_is_refused(given: object) -> None:
    with pytest.raises(
        ts.ToposcopeError, match=r"expected a path, a matrix, a Checkpoint or several, such as series\(path\), got"
    ):
        ts.layer_topology(given)  # type: ignore[call-overload]
